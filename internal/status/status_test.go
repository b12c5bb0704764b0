// SPDX-License-Identifier: Apache-2.0

package status

import (
	"net/http"
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/request"
)

// TestStatusDistinguishesLimitsOfOneName: shards of one limit are merged, but limits of the same
// name that belong to two rules are not.
func TestStatusDistinguishesLimitsOfOneName(t *testing.T) {
	limit := func(count int64, window counter.Micros) counter.Limit {
		l, err := counter.NewLimit(counter.FixedWindow, count, window, 0)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	own, err := policy.NewOverrides(map[string]policy.LimitSet{"api": {Limits: []counter.Limit{limit(7, counter.Minute), limit(9, counter.Hour)}}})
	if err != nil {
		t.Fatal(err)
	}
	rs, err := core.Compile(policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "api", Limits: []counter.Limit{limit(5, counter.Minute)}},
		{Name: "api-1m", Limits: []counter.Limit{limit(3, counter.Second)}}}})
	if err != nil {
		t.Fatal(err)
	}
	var plan core.Plan
	var answer Answer
	for range plan.AllCountersOf(rs, policy.Identity{Kind: "user", ID: "u", Overrides: own}, &request.Attributes{MethodText: http.MethodGet, PathText: "/"}) {
		answer.addPage(&plan, 0)
	}
	if n := len(answer.Limits); n != 3 {
		t.Errorf("%d limits of 3: %+v", n, answer.Limits)
	}
}
