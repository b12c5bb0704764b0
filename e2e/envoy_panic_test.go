// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestEnvoyPanics tests panics and fatal errors in the filter. After a panic, on_error decides the
// request. A fatal error affects only one request, which Envoy answers with 503. Afterwards the
// limit is enforced as before. The filter is built with a tag that lets requests provoke panics.
func TestEnvoyPanics(t *testing.T) {
	t.Parallel()
	path, err := compileWasm("provoked.wasm", "-tags", "penstock_filter,provoke")
	if err != nil {
		t.Fatal(err)
	}
	allow, deny := &site{set: longDeadline + "\non_error: allow"}, &site{set: longDeadline + "\non_error: deny"}
	startEnvoy(t, path, nil, allow, deny)
	for word, s := range map[string]*site{"allow": allow, "deny": deny} {
		s.startBridge(t, strings.Replace(panicPolicy, "ON_ERROR", word, 1))
		s.awaitDecided(t)
		for _, where := range []string{"property", "wake", "call"} {
			t.Run(where+"/"+word, func(t *testing.T) { s.checkDegraded(t, s.survivesPanic(t, "/", where), word) })
		}
		// In the following cases, the request is decided before the panic.
		t.Run("resume/"+word, func(t *testing.T) { s.checkStatus(t, s.survivesPanic(t, "/", "resume"), word) })
		s.get(t, "/refused")
		t.Run("respond/"+word, func(t *testing.T) { s.checkStatus(t, s.survivesPanic(t, "/refused", "respond"), word) })
	}
	t.Run("fatal", allow.survivesFatal)
}

const panicPolicy = `name: shop
on_error: ON_ERROR
rules:
  - {name: all, limit: 100000/31d}
  - {name: none, match: {path: /refused}, limit: 1/31d}
`

// checkStatus checks the status of an answer that on_error has decided, and nothing else of the
// answer.
func (s *site) checkStatus(t *testing.T, a answer, word string) {
	t.Helper()
	if want := map[string]int{"allow": http.StatusOK, "deny": http.StatusServiceUnavailable}[word]; a.status != want {
		t.Errorf("status %d, want %d", a.status, want)
	}
}

// survivesPanic makes the filter panic in one request, and returns the answer to this request. It
// checks that the limit applies to the next requests on the same worker.
func (s *site) survivesPanic(t *testing.T, path, where string) answer {
	t.Helper()
	panics := s.envoy.counter("penstock.panic")
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	defer client.CloseIdleConnections()
	start := time.Now()
	a, err := ask(client, "http://"+s.address+path, "X-Provoke", where)
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > answerWithin {
		t.Errorf("the answer took %v", took)
	}
	if grown := s.envoy.counter("penstock.panic") - panics; grown != 1 {
		t.Errorf("%d panics are counted", grown)
	}
	for range 5 {
		if a, err := ask(client, "http://"+s.address+"/"); err != nil || a.status != http.StatusOK || a.header.Get("RateLimit") == "" {
			t.Errorf("after the panic: status %d, %v, %v, want a limited answer", a.status, a.header, err)
		}
	}
	return a
}

// survivesFatal provokes a fatal error in the filter twice. Because of failure_policy, Envoy starts
// the filter again.
func (s *site) survivesFatal(t *testing.T) {
	for range 2 {
		reloads := s.envoy.stat("wasm.penstock.vm_reload_success")
		if a := s.get(t, "/", "X-Provoke", "fatal"); a.status != http.StatusServiceUnavailable {
			t.Errorf("status %d: the filter has not ended", a.status)
		}
		s.awaitDecided(t)
		if s.envoy.stat("wasm.penstock.vm_reload_success") == reloads {
			t.Error("the filter was not started again")
		}
	}
}
