// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/store/memstore"
)

// shadowOptions returns the options of a bridge with a candidate. The bridge's metrics are in a
// separate registry. The candidate has so many rules that loading it takes longer than anything
// else in these tests.
func shadowOptions(t *testing.T) (o Options, registry *prometheus.Registry) {
	t.Helper()
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	folder := t.TempDir()
	o = Options{PolicyFile: filepath.Join(folder, "policy.yaml"), ShadowPolicyFile: filepath.Join(folder, "candidate.yaml"), Store: store,
		Metrics: metrics.New()}
	candidate := []byte("name: next\nrules:\n")
	for i := range 300 {
		candidate = fmt.Appendf(candidate, "- {name: rule%d, group: g, limit: 1/31d}\n", i)
	}
	if err := errors.Join(os.WriteFile(o.PolicyFile, []byte(shop), 0o600), os.WriteFile(o.ShadowPolicyFile, candidate, 0o600)); err != nil {
		t.Fatal(err)
	}
	registry = prometheus.NewRegistry()
	registry.MustRegister(o.Metrics.Policies)
	return o, registry
}

// countPolicies returns the number of policies that the metrics show.
func countPolicies(t *testing.T, registry *prometheus.Registry) (n int) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Error(err)
	}
	for _, family := range families {
		if family.GetName() == "penstock_policy_info" {
			n += len(family.GetMetric())
		}
	}
	return n
}

// TestPoliciesAreShownWhileTheBridgeIsOpen: the metrics show no policy of a bridge that has closed,
// or whose candidate is rejected.
func TestPoliciesAreShownWhileTheBridgeIsOpen(t *testing.T) {
	o, registry := shadowOptions(t)
	b, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if n := countPolicies(t, registry); n != 2 {
		t.Errorf("the metrics show %d policies, want 2", n)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if n := countPolicies(t, registry); n != 0 {
		t.Errorf("the metrics show %d policies of a bridge that has closed", n)
	}
	if err := os.WriteFile(o.ShadowPolicyFile, []byte("rules: nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := New(o); err == nil {
		t.Errorf("the candidate is accepted; the bridge closes with %v", b.Close())
	}
	if n := countPolicies(t, registry); n != 0 {
		t.Errorf("the metrics show %d policies of a bridge that did not open", n)
	}
}

// TestMetricsAreReadWhileABridgeOpens: the race detector finds no access to a policy that is being
// opened.
func TestMetricsAreReadWhileABridgeOpens(t *testing.T) {
	o, registry := shadowOptions(t)
	opened := make(chan struct{})
	var reads sync.WaitGroup
	reads.Go(func() {
		for {
			select {
			case <-opened:
				return
			default:
				countPolicies(t, registry)
			}
		}
	})
	for range 5 {
		b, err := New(o)
		if err != nil {
			t.Error(err)
			break
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	close(opened)
	reads.Wait()
}
