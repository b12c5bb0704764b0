// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"

	"github.com/penstock/penstock/internal/enforce"
	"github.com/penstock/penstock/internal/envoy/bridge"
	"github.com/penstock/penstock/internal/otlp"
)

// serviceName is the name of the bridge's service in spans and metrics, unless OTEL_SERVICE_NAME is
// set.
const serviceName = "penstock-bridge"

// openSending starts to send spans and metrics if environment variables request it, and adds the
// tracer to the bridge's options. The caller calls end() after the bridge has ended.
func openSending(ctx context.Context, o *bridge.Options) (end func(), err error) {
	sending, err := otlp.Open(ctx, os.Getenv, serviceName, o.Registry, o.Logger)
	if err != nil {
		return nil, err
	}
	if spans := sending.Spans(); spans != nil {
		o.Tracer = enforce.NewTracer(spans)
	}
	return func() {
		if err := sending.Close(); err != nil {
			o.Logger.Warn("the last spans or metrics could not be sent by OTLP", "error", err)
		}
	}, nil
}
