// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
)

// TestNewOverrides holds each mistake, and that nothing is kept of the map.
func TestNewOverrides(t *testing.T) {
	many := map[string]LimitSet{}
	for i := range OverridesMax + 1 {
		many[fmt.Sprint("r", i)] = LimitSet{Unlimited: true}
	}
	var long []Limit
	for i := range OverrideLimitsMax + 1 {
		long = append(long, mustLimit(t, fmt.Sprintf("1/%dm", i+1)))
	}
	for says, sets := range map[string]map[string]LimitSet{
		"at most 64":                    many,
		`"a b" is not the name`:         {"a b": {Unlimited: true}},
		`"" is not the name`:            {"": {Unlimited: true}},
		`rule "r": 9 are more than 8`:   {"r": {Limits: long}},
		`"r": unlimited does not go`:    {"r": {Unlimited: true, Limits: limits(t, "1/1m")}},
		`"r": a limit is missing`:       {"r": {}},
		`"r": limit[0] is not a limit`:  {"r": {Limits: []Limit{{}}}},
		`limit[1], 2/1m, has the`:       {"*": {Limits: limits(t, "1/1m", "2/60s")}},
		`limit[1], 7/month, has the`:    {"*": {Limits: limits(t, "1/month", "7/month")}},
		"\"*\": a limit is missing; wr": {"r": {Unlimited: true}, "*": {}},
	} {
		if o, err := NewOverrides(sets); err == nil || o != nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v and %v, want %q", o, err, says)
		}
	}
	if o, err := NewOverrides(nil); o != nil || err != nil || o.Rules() != nil {
		t.Errorf("none: %v, %v", o, err)
	}
	both := map[string]LimitSet{"b b": {}, "a a": {}}
	if _, err := NewOverrides(both); err == nil || strings.Index(err.Error(), `"a a"`) > strings.Index(err.Error(), `"b b"`) {
		t.Errorf("two mistakes: %v", err)
	}
	sets := map[string]LimitSet{"r": {Limits: limits(t, "5/1m")}, "*": {Unlimited: true}}
	o, err := NewOverrides(sets)
	if err != nil {
		t.Fatal(err)
	}
	sets["r"].Limits[0] = mustLimit(t, "9/1s")
	delete(sets, "*")
	if set, ok := o.Of("r"); !ok || set.Limits[0].String() != "5/1m" || strings.Join(o.Rules(), " ") != "* r" {
		t.Errorf("%v of %v", set, o.Rules())
	}
}

// starred is a policy of n rules, of which eight are for /all, and a client that has limits of its own for all of them.
func starred(tb testing.TB, n int, named bool) (*Ruleset, *client) {
	tb.Helper()
	sets := map[string]string{"*": "1000/1m,9000/1h burst 9500"}
	p := Policy{Name: "n"}
	for i := range n {
		paths := []string{fmt.Sprintf("/%d", i)}
		if i < 8 {
			paths = append(paths, "/all")
		}
		p.Rules = append(p.Rules, Rule{Name: fmt.Sprintf("rule-%d", i), Limits: limits(tb, "5/1m"),
			Tiers: map[string]LimitSet{"gold": {Limits: limits(tb, "70/1m", "700/day")}},
			Match: Match{Path: paths}})
		if named && i%2 == 0 {
			sets[p.Rules[i].Name] = "7/1s"
		}
	}
	who := &knownClient{&Identity{Kind: "user", ID: "u", User: "u", Overrides: own(tb, sets)}, CredentialValid}
	p.Identify = []Identify{{Kind: IdentifyJWT, Verifier: who}}
	p.Tier = tierOf
	return mustCompile(tb, p), &client{path: "/all", header: map[string]string{"Authorization": "Bearer x"},
		peer: netip.MustParseAddr("192.0.2.1"), now: 1_700_000_000 * Second}
}

// TestOverridesAreTold: limits of a client's own are shown by the names that the rule's would have.
func TestOverridesAreTold(t *testing.T) {
	rs, a := starred(t, 2, true)
	plan, d := newCounters().ask(t, a, rs)
	f := plan.Headers(&d)
	want := `"rule-0";q=7;w=1, "rule-1-1m";q=1000;w=60, "rule-1-1h";q=9000;w=3600;penstock-burst=9500`
	if f.Policy != want || d.Policy != "rule-0" || f.Limit != "7" || d.Limit.Count() != 7 {
		t.Errorf("%+v of %+v\nwant %s", f, d, want)
	}
	wantKeys(t, plan, "rl1:n:rule-0:{user:u}:1s:sw", "rl1:n:rule-1:{user:u}:60s:sw", "rl1:n:rule-1:{user:u}:3600s:tb")
}

// TestOverridesAllocate: limits of a client's own and of a tier are planned and decided without allocating, after the
// first request.
func TestOverridesAllocate(t *testing.T) {
	for _, named := range []bool{false, true} {
		rs, request := starred(t, 16, named)
		var a Attributes = request
		var plan Plan
		plan.Add(rs, a)
		if len(plan.Checks()) < 12 {
			t.Fatalf("%d checks", len(plan.Checks()))
		}
		if n := testing.AllocsPerRun(100, func() {
			plan.Reset()
			plan.Add(rs, a)
			plan.Decide()
		}); n != 0 {
			t.Errorf("own limits, named %v: %v allocations", named, n)
		}
	}
	rs, request := starred(t, 16, false)
	request.header, request.attr = nil, map[string]string{"tier": "gold"}
	var a Attributes = request
	var plan Plan
	plan.Add(rs, a)
	if checks := plan.Checks(); len(checks) < 12 || checks[1].Bounds == nil || checks[1].Limit.String() != "700/day" {
		t.Fatalf("%d checks: %+v", len(checks), checks[1])
	}
	if n := testing.AllocsPerRun(100, func() {
		plan.Reset()
		plan.Add(rs, a)
		plan.Decide()
	}); n != 0 {
		t.Errorf("a tier's limits: %v allocations", n)
	}
}

// TestOverridesUnderManyRules: more rules than are remembered get the same limits as those that are, whoever asks at once.
func TestOverridesUnderManyRules(t *testing.T) {
	rs, request := starred(t, 4*overrideSlots, false)
	var wait sync.WaitGroup
	for worker := range 4 {
		wait.Go(func() {
			a := *request
			var plan Plan
			for i := range 2 * len(rs.rules) {
				name := rs.rules[(i+worker*37)%len(rs.rules)].name
				a.path = "/" + strings.TrimPrefix(name, "rule-")
				plan.Reset()
				plan.Add(rs, &a)
				if len(plan.checks) != 2 || plan.asked[0].limit.policy != name+"-1m" || plan.checks[0].Limit.count != 1000 {
					t.Errorf("%s is asked for %d checks, the first %v", name, len(plan.checks), plan.checks[0])
					return
				}
			}
		})
	}
	wait.Wait()
}
