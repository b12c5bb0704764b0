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
// previous one. The VM keeps running, so the next configuration starts.
func TestAPanicAtTheStart(t *testing.T) {
	log.SetOutput(io.Discard)
	vm, err := compileFilter("-tags", "penstock_filter,provoke")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := vm.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, start := range []struct {
		configuration string
		want          types.OnPluginStartStatus
	}{
		{"cluster: panic", types.OnPluginStartStatusFailed},
		{"cluster: penstock", types.OnPluginStartStatusOK},
	} {
		host, reset := proxytest.NewHostEmulator(proxytest.NewEmulatorOption().WithVMContext(vm).
			WithPluginConfiguration([]byte(start.configuration)))
		if host.StartVM() != types.OnVMStartStatusOK || host.StartPlugin() != start.want {
			t.Errorf("%s: %q", start.configuration, host.GetCriticalLogs())
		}
		reset()
	}
}
