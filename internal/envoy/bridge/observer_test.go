// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/enforce"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// TestLimitsOfNoEditionAreCounted: limits that Envoy sends are counted, although no version of the
// policy contains them.
func TestLimitsOfNoEditionAreCounted(t *testing.T) {
	h := open(t, "name: shop\nrules: [{ name: a, limit: 5/1m }]\n", nil)
	limit, err := counter.ParseLimit("1/1h")
	if err != nil {
		t.Fatal(err)
	}
	sent, err := core.Compile(policy.Policy{Name: "shop", Rules: []policy.Rule{{Name: "sent", Limits: []counter.Limit{limit}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, rs := range []*core.Ruleset{sent, sent, h.b.policy.Current().Ruleset} {
		var plan core.Plan
		plan.Add(rs, &wire.View{Ask: &wire.Ask{Path: "/"}, Inputs: new(core.Inputs)})
		d := plan.Decide()
		h.b.Observer().Decided(&plan, &d, new(enforce.Span), nil)
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
