// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"log"
	"testing"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/proxytest"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"
)

// TestAPanicAtTheStart: a panic at the start rejects the configuration, and Envoy keeps the
// previous one.
func TestAPanicAtTheStart(t *testing.T) {
	log.SetOutput(io.Discard)
	host, reset := proxytest.NewHostEmulator(proxytest.NewEmulatorOption().WithVMContext(&vm{plugins: []*plugin{nil}}))
	t.Cleanup(reset)
	if host.StartVM() != types.OnVMStartStatusOK || host.StartPlugin() != types.OnPluginStartStatusFailed {
		t.Errorf("it starts: %q", host.GetCriticalLogs())
	}
}
