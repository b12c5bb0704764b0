// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"github.com/penstock/penstock/internal/test/conformance"
)

// TestConformanceOfModule runs the conformance corpus against Envoy with the native module.
func TestConformanceOfModule(t *testing.T) {
	t.Parallel()
	attrs := map[string]string{"query": "request.query", "protocol": "request.protocol"}
	runConformance(t, "module", attrs, func(redis string, policies []string) (*server, []string) {
		var settings []string
		for _, policy := range policies {
			settings = append(settings, "policy: "+policy+"\nstore: {type: redis, url: \""+redis+"\", timeout: 5s}\n")
		}
		envoy, sites := startModule(t, module(t), conformance.Upstream(), settings...)
		var addresses []string
		for _, s := range sites {
			addresses = append(addresses, s.address)
		}
		return envoy.server, addresses
	})
}
