// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestEnvoyPanics: a panic in the filter costs one request its decision, by on_error, and what cannot be recovered from costs one
// request its answer; then the limit holds as before. The filter is built with a tag that lets requests provoke them.
func TestEnvoyPanics(t *testing.T) {
	path, err := compileWasm("provoked.wasm", "-tags", "provoke")
	if err != nil {
		t.Fatal(err)
	}
	allow, deny := &site{set: patient + "\non_error: allow"}, &site{set: patient + "\non_error: deny"}
	startEnvoy(t, path, nil, allow, deny)
	for word, s := range map[string]*site{"allow": allow, "deny": deny} {
		s.startBridge(t, strings.Replace(panicPolicy, "ON_ERROR", word, 1))
		s.isDecided(t)
		for _, where := range []string{"property", "wake", "call"} {
			t.Run(where+"/"+word, func(t *testing.T) { s.isDegraded(t, s.bearsPanic(t, "/", where), word) })
		}
		// Here the request was decided before.
		t.Run("resume/"+word, func(t *testing.T) { s.isDecidedBy(t, s.bearsPanic(t, "/", "resume"), word) })
		s.get(t, "/refused")
		t.Run("respond/"+word, func(t *testing.T) { s.isDecidedBy(t, s.bearsPanic(t, "/refused", "respond"), word) })
	}
	t.Run("fatal", allow.bearsFatal)
}

const panicPolicy = `name: shop
on_error: ON_ERROR
rules:
  - {name: all, limit: 100000/31d}
  - {name: none, match: {path: /refused}, limit: 1/31d}
`

// isDecidedBy checks the status alone.
func (s *site) isDecidedBy(t *testing.T, a answer, word string) {
	t.Helper()
	if want := map[string]int{"allow": http.StatusOK, "deny": http.StatusServiceUnavailable}[word]; a.status != want {
		t.Errorf("status %d, want %d", a.status, want)
	}
}

// bearsPanic has the filter panic while it handles one request, and returns that one's answer; the next ones, on the same
// worker, are limited.
func (s *site) bearsPanic(t *testing.T, path, where string) answer {
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

// bearsFatal has the filter end in its worker, twice. Envoy starts it again, as failure_policy says.
func (s *site) bearsFatal(t *testing.T) {
	for range 2 {
		reloads := s.envoy.stat("wasm.penstock.vm_reload_success")
		if a := s.get(t, "/", "X-Provoke", "fatal"); a.status != http.StatusServiceUnavailable {
			t.Errorf("status %d: the filter has not ended", a.status)
		}
		s.isDecided(t)
		if s.envoy.stat("wasm.penstock.vm_reload_success") == reloads {
			t.Error("the filter was not started again")
		}
	}
}
