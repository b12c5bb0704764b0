// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/status"
	"github.com/penstock/penstock/internal/store/memstore"
)

func policyOf(t *testing.T, text string) *live.Policy {
	t.Helper()
	d, err := policyfile.Decode("policy.yaml", policyfile.YAML, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p, err := live.Open(live.Options{Source: live.Fixed(d), Verifiers: verifiers, Metrics: common, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestARequestOutlivesItsConfiguration: a request that is running when its configuration ends is
// completed, and its trial counts as untried.
func TestARequestOutlivesItsConfiguration(t *testing.T) {
	memory, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	a := &App{logger: zap.NewNop(), shadows: startShadows(memory), store: new(pooledStore)}
	h := &Handler{app: a, tried: []*live.Policy{policyOf(t, "name: outlived\nrules: [{name: a, limit: 1/1m}]")}}
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
	h.tryOut(recordOf(r, varsOf(r)), r, false, nil)
	if n := untried() - before; n != 1 {
		t.Errorf("%v trials are untried, want 1", n)
	}
	if err := a.Cleanup(); err != nil { // a second call does nothing
		t.Fatal(err)
	}
}

// TestAPanicKeepsNoPlaceOfRequestsForLimits: if the store panics while limits are read, the request
// leaves its place, so that further requests are answered.
func TestAPanicKeepsNoPlaceOfRequestsForLimits(t *testing.T) {
	policy := policyOf(t, "name: panics\nrules: [{name: a, limit: 1/1m}]")
	s := &Status{app: &App{store: &pooledStore{statuses: status.NewBounds()}, policies: []*live.Policy{policy}}}
	for i := range status.UnderMax + 1 {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = fmt.Sprintf("192.0.2.%d:1", i)
		r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), nil, nil)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("request %d did not panic", i)
				}
			}()
			if err := s.ServeHTTP(httptest.NewRecorder(), r, nil); err != nil {
				t.Error(err)
			}
		}()
	}
}

// TestAPanicOverAnEditRejectsIt tests that an edit is rejected if a panic occurs while it is
// applied. The previous policy stays in force.
func TestAPanicOverAnEditRejectsIt(t *testing.T) {
	const text = "name: shop\nrules: [{name: a, limit: 1/1m}]"
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	a := &App{logger: zap.NewNop(), policiesByText: map[string]*placedPolicy{}, owners: map[ruleName]*placedPolicy{},
		counted: map[ruleName]string{}}
	started := false
	p, err := a.openFile(path, appPlace, func(*policyfile.Document) error {
		if started {
			panic("provoked")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	before := p.Current()
	started = true
	if err := a.watch(); err != nil { // Follow applies edits made since the start
		t.Fatal(err)
	}
	a.unwatch()
	panicked := new(policyfile.PanicError)
	if err := p.Err(); !errors.As(err, &panicked) || !strings.Contains(string(panicked.Stack), "panic_test.go") {
		t.Errorf("rejected: %v, with the stack %s", err, panicked.Stack)
	}
	if p.Current() != before {
		t.Error("the policy before is not in force")
	}
}
