// SPDX-License-Identifier: Apache-2.0

package shadow_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/enforce/shadow"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/request"
)

// panickingStore is a store whose calls panic.
type panickingStore struct{}

func (panickingStore) Take(context.Context, []counter.Check, []counter.Result) error {
	panic("the store")
}

// TestAPanicInATrialEndsTheTrial: without a recover, the panic would end the process. The trial
// counts as untried, and later trials run.
func TestAPanicInATrialEndsTheTrial(t *testing.T) {
	d, err := policyfile.Decode("policy.yaml", policyfile.YAML, []byte("name: shop.shadow\nrules: [{name: a, limit: 1/1m}]"))
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	p, err := live.Open(live.Options{Source: live.Fixed(d), Verifiers: live.NewVerifiers(quiet), Metrics: metrics.New(), Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	total, registry, panics := shadow.NewTotal(), prometheus.NewRegistry(), make(chan string, 4)
	registry.MustRegister(total)
	r := shadow.Start(shadow.Options{Store: panickingStore{}, Total: total, Panicked: func(policy string, _ any) { panics <- policy }})
	for range 2 {
		trial := r.Begin(p.Current(), false)
		trial.Add(new(request.Attributes), nil)
		trial.Start()
	}
	if name := <-panics; name != "shop.shadow" {
		t.Errorf("the panic is of %q", name)
	}
	eventually.Until(t, 10*time.Second, "both trials are untried", func() bool {
		families, err := registry.Gather()
		return err == nil && len(families) == 1 && families[0].GetMetric()[0].GetCounter().GetValue() == 2
	})
	r.Stop()
}
