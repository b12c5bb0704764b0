// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/penstock/penstock/core"
)

// TestStatusTellsLimitsOfOneNameApart: only shards are put together, not two rules' limits that happen to be called alike.
func TestStatusTellsLimitsOfOneNameApart(t *testing.T) {
	limit := func(count int64, window core.Micros) core.Limit {
		l, err := core.NewLimit(core.FixedWindow, count, window, 0)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	own, err := core.NewOverrides(map[string]core.LimitSet{"api": {Limits: []core.Limit{limit(7, core.Minute), limit(9, core.Hour)}}})
	if err != nil {
		t.Fatal(err)
	}
	rs, err := core.Compile(core.Policy{Name: "n", Rules: []core.Rule{{Name: "api", Limits: []core.Limit{limit(5, core.Minute)}},
		{Name: "api-1m", Limits: []core.Limit{limit(3, core.Second)}}}})
	if err != nil {
		t.Fatal(err)
	}
	var plan core.Plan
	var a attributes
	a.reset(httptest.NewRequest(http.MethodGet, "/", nil))
	plan.AddAllOf(rs, core.Identity{Kind: "user", ID: "u", Overrides: own}, &a, 0)
	var answer status
	answer.add(&plan, 0)
	if n := len(answer.Limits); n != 3 {
		t.Errorf("%d limits of 3: %+v", n, answer.Limits)
	}
}
