// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/wire"
)

// TestLimitsOfNoEditionAreCounted: those that Envoy sends are made ready elsewhere, and are told of beside the policy's.
func TestLimitsOfNoEditionAreCounted(t *testing.T) {
	h := open(t, "name: shop\nrules: [{ name: a, limit: 5/1m }]\n", nil)
	limit, err := core.ParseLimit("1/1h")
	if err != nil {
		t.Fatal(err)
	}
	sent, err := core.Compile(core.Policy{Name: "shop", Rules: []core.Rule{{Name: "sent", Limits: []core.Limit{limit}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, rs := range []*core.Ruleset{sent, sent, h.b.editions.inForce().ruleset} {
		var plan core.Plan
		plan.Add(rs, &wire.View{Ask: &wire.Ask{Path: "/"}, Reads: new(core.Reads)})
		d := plan.Decide()
		h.b.Observer().Decided(&plan, &d)
	}
	for series, want := range map[string]int{
		`penstock_requests_total{outcome="allowed",policy="shop",rule="sent"}`: 2,
		`penstock_requests_total{outcome="allowed",policy="shop",rule="a"}`:    1,
	} {
		if got := h.counted(series); got != want {
			t.Errorf("%s is %d, want %d", series, got, want)
		}
	}
}
