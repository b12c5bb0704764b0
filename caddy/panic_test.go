// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"context"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/memstore"
	"github.com/penstock/penstock/internal/policy"
)

// panicking is a store that does nothing else.
type panicking struct{}

func (panicking) Take(context.Context, []core.Check, []core.Result) error { panic("the store") }

func editionOf(t *testing.T, text string) *enforced {
	t.Helper()
	d, err := policy.Decode("policy.yaml", policy.YAML, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	rs, err := d.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return newEnforced(newEdition(d, rs, new(verifiers)))
}

// TestAPanicInATrialEndsTheTrial: nobody waits for it, and in its goroutine it would end the process.
func TestAPanicInATrialEndsTheTrial(t *testing.T) {
	s := &shadows{store: panicking{}, queue: make(chan *trial, 1)}
	s.try(editionOf(t, "name: candidate\nrules: [{name: a, limit: 1/1m}]"), httptest.NewRequest("GET", "/", nil), false)
	s.run(<-s.queue)
}

// TestARequestOutlivesItsConfiguration: one that is under way when its configuration ends goes on, and what a candidate would
// have made of it is untried.
func TestARequestOutlivesItsConfiguration(t *testing.T) {
	memory, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	a := &App{logger: zap.NewNop(), shadows: startShadows(memory)}
	h := &Handler{app: a, tried: []*enforced{editionOf(t, "name: outlived\nrules: [{name: a, limit: 1/1m}]")}}
	if err := a.Cleanup(); err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("GET", "/", nil)
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), nil, nil)
	metrics := prometheus.NewPedanticRegistry()
	metrics.MustRegister(shadowTotal.WithLabelValues("outlived", "admitted", "untried"))
	untried := func() float64 {
		told, err := metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		return told[0].GetMetric()[0].GetCounter().GetValue()
	}
	before := untried()
	h.tryOut(recordOf(r), r, false)
	if n := untried() - before; n != 1 {
		t.Errorf("%v trials are untried, want 1", n)
	}
	if err := a.Cleanup(); err != nil { // a second time does nothing
		t.Fatal(err)
	}
}

// TestAPanicOverAnEditRefusesIt: the policy before stays in force.
func TestAPanicOverAnEditRefusesIt(t *testing.T) {
	const text = "name: shop\nrules: [{name: a, limit: 1/1m}]"
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f := &policyFile{path: path, enforced: editionOf(t, text), complete: func(*policy.Document) error { panic("provoked") }}
	a, before := &App{logger: zap.NewNop(), files: []*policyFile{f}}, f.enforced.current.Load()
	if err := a.watch(); err != nil { // which takes over what was edited since the start
		t.Fatal(err)
	}
	a.unwatch()
	panicked := new(policy.PanicError)
	if refused := f.refused.Load(); refused == nil || !errors.As(*refused, &panicked) || !strings.Contains(string(panicked.Stack), "panic_test.go") {
		t.Errorf("refused: %v, with the stack %s", refused, panicked.Stack)
	}
	if f.enforced.current.Load() != before {
		t.Error("the policy before is not in force")
	}
}
