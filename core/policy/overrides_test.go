// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/limittest"
)

// TestNewOverrides tests that each mistake is reported, and that the map is copied.
func TestNewOverrides(t *testing.T) {
	many := map[string]policy.LimitSet{}
	for i := range policy.OverridesMax + 1 {
		many[fmt.Sprint("r", i)] = policy.LimitSet{Unlimited: true}
	}
	var long []counter.Limit
	for i := range policy.OverrideLimitsMax + 1 {
		long = append(long, limittest.Parse(t, fmt.Sprintf("1/%dm", i+1)))
	}
	for says, sets := range map[string]map[string]policy.LimitSet{
		"at most 64":                    many,
		`"a b" is not the name`:         {"a b": {Unlimited: true}},
		`"" is not the name`:            {"": {Unlimited: true}},
		`rule "r": 9 are more than 8`:   {"r": {Limits: long}},
		`"r": unlimited does not go`:    {"r": {Unlimited: true, Limits: limittest.All(t, "1/1m")}},
		`"r": a limit is missing`:       {"r": {}},
		`"r": limit[0] is not a limit`:  {"r": {Limits: []counter.Limit{{}}}},
		`limit[1], 2/1m, has the`:       {"*": {Limits: limittest.All(t, "1/1m", "2/60s")}},
		`limit[1], 7/month, has the`:    {"*": {Limits: limittest.All(t, "1/month", "7/month")}},
		"\"*\": a limit is missing; wr": {"r": {Unlimited: true}, "*": {}},
	} {
		if o, err := policy.NewOverrides(sets); err == nil || o != nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v and %v, want %q", o, err, says)
		}
	}
	if o, err := policy.NewOverrides(nil); o != nil || err != nil || o.Rules() != nil {
		t.Errorf("none: %v, %v", o, err)
	}
	both := map[string]policy.LimitSet{"b b": {}, "a a": {}}
	if _, err := policy.NewOverrides(both); err == nil || strings.Index(err.Error(), `"a a"`) > strings.Index(err.Error(), `"b b"`) {
		t.Errorf("two mistakes: %v", err)
	}
	sets := map[string]policy.LimitSet{"r": {Limits: limittest.All(t, "5/1m")}, "*": {Unlimited: true}}
	o, err := policy.NewOverrides(sets)
	if err != nil {
		t.Fatal(err)
	}
	sets["r"].Limits[0] = limittest.Parse(t, "9/1s")
	delete(sets, "*")
	if set, ok := o.Of("r"); !ok || set.Limits[0].String() != "5/1m" || strings.Join(o.Rules(), " ") != "* r" {
		t.Errorf("%v of %v", set, o.Rules())
	}
}
