// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/proxytest"

	corecounter "github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/envoy/bridge"
	"github.com/penstock/penstock/internal/store/fallback"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/test/conformance"
	"github.com/penstock/penstock/internal/test/eventually"
)

// shippedFilter returns the filter as it is shipped. The tests share it, because every
// load compiles the filter.
func shippedFilter(t testing.TB) proxytest.WasmVMContext {
	t.Helper()
	vm, err := shippedOnce()
	if err != nil {
		t.Fatal(err)
	}
	return vm
}

var shippedOnce = sync.OnceValues(func() (proxytest.WasmVMContext, error) { return compileFilter() })

// compileFilter compiles the filter as it is shipped, with further flags for go build,
// and loads it.
func compileFilter(flags ...string) (proxytest.WasmVMContext, error) {
	dir, err := os.MkdirTemp("", "penstock")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "penstock.wasm")
	args := []string{"build", "-tags", "penstock_filter", "-trimpath", "-buildmode=c-shared", "-ldflags", "-s -w", "-o", file}
	command := exec.Command("go", append(append(args, flags...), ".")...)
	command.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	if out, err := command.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the filter: %w\n%s", err, out)
	}
	wasm, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return proxytest.NewWasmVMContext(wasm)
}

// wasmFront is the filter in an emulator. Each story has a bridge in this process.
type wasmFront struct {
	vm    proxytest.WasmVMContext
	store *conformance.Store
	local corecounter.Store // the fallback while the store is down
	set   conformance.Setting
}

func newWasmFront(t testing.TB) *wasmFront {
	t.Helper()
	kept, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	local, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = kept.Close()
		_ = local.Close()
	})
	return &wasmFront{vm: shippedFilter(t), store: &conformance.Store{Of: kept}, local: local, set: conformance.Setting{Now: time.Now(),
		KeySetURL: conformance.ServeKeySet(t), Attrs: map[string]string{"query": "request.query", "protocol": "request.protocol"}}}
}

// wasmFront.begin starts the bridge and the filter. The filter fetches the policy.
func (f *wasmFront) begin(t testing.TB, s *conformance.Story) conformance.Asker {
	t.Helper()
	f.store.SetAway(s.Away)
	b, err := bridge.New(bridge.Options{PolicyFile: s.Write(t, t.TempDir(), f.set), Shared: true,
		Store: fallback.New(f.store, fallback.Options{Counts: fallback.NewCounts(f.local)}), Corrections: f.store})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	e := emulate(t, f.vm, b.Handler())
	e.host.Tick()
	e.answerCalls(t)
	return func(t testing.TB, exchange *conformance.Exchange) conformance.Answer {
		settlements, before := f.store.Settled()
		answer := e.ask(t, &exchange.Request)
		if exchange.For("wasm").Settled != nil {
			eventually.Until(t, 10*time.Second, "something is settled", func() bool {
				calls, _ := f.store.Settled()
				return calls > settlements
			})
		}
		_, after := f.store.Settled()
		answer.Settled, answer.Counted = after-before, true
		return answer
	}
}

// TestConformanceOfTheFilter runs the conformance corpus against the shipped filter.
func TestConformanceOfTheFilter(t *testing.T) {
	f := newWasmFront(t)
	conformance.Run(t, "wasm", conformance.Load(t), f.begin)
	conformance.RunWrong(t, "wasm", conformance.LoadWrong(t), f.begin)
}
