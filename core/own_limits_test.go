// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"github.com/penstock/penstock/internal/test/limittest"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// starPolicy returns a policy of n rules, eight of them for /all, and a client with its own limits
// for all rules.
func starPolicy(tb testing.TB, n int, named bool) (*Ruleset, *client) {
	tb.Helper()
	sets := map[string]string{"*": "1000/1m,9000/1h burst 9500"}
	p := policy.Policy{Name: "n"}
	for i := range n {
		paths := []string{fmt.Sprintf("/%d", i)}
		if i < 8 {
			paths = append(paths, "/all")
		}
		p.Rules = append(p.Rules, policy.Rule{Name: fmt.Sprintf("rule-%d", i), Limits: limittest.All(tb, "5/1m"),
			Tiers: map[string]policy.LimitSet{"gold": {Limits: limittest.All(tb, "70/1m", "700/day")}},
			Match: policy.Match{Path: paths}})
		if named && i%2 == 0 {
			sets[p.Rules[i].Name] = "7/1s"
		}
	}
	who := &knownClient{&policy.Identity{Kind: "user", ID: "u", User: "u", Overrides: parseOwnLimits(tb, sets)}, policy.CredentialValid}
	p.Identify = []policy.Identify{{Kind: policy.IdentifyJWT, Verifier: who}}
	p.Tier = tierOf
	return mustCompile(tb, p), &client{path: "/all", header: map[string]string{"Authorization": "Bearer x"},
		peer: netip.MustParseAddr("192.0.2.1"), now: 1_700_000_000 * counter.Second}
}

// TestOverridesInHeaders: a client's own limits are shown under the names that they would have as
// limits of the rule.
func TestOverridesInHeaders(t *testing.T) {
	rs, a := starPolicy(t, 2, true)
	plan, d := newCounters().ask(t, a, rs)
	f := HeadersOf(plan, &d)
	want := `"rule-0";q=7;w=1, "rule-1-1m";q=1000;w=60, "rule-1-1h";q=9000;w=3600;penstock-burst=9500`
	if f.Policy != want || d.Policy != "rule-0" || f.Limit != "7" || d.Limit.Count() != 7 {
		t.Errorf("%+v of %+v\nwant %s", f, d, want)
	}
	wantKeys(t, plan, "rl1:n:rule-0:{user:u}:1s:sw", "rl1:n:rule-1:{user:u}:60s:sw", "rl1:n:rule-1:{user:u}:3600s:tb")
}

// TestOverridesAllocate: after the first request, a decision by a client's own limits or by the
// limits of a tier allocates nothing.
func TestOverridesAllocate(t *testing.T) {
	for _, named := range []bool{false, true} {
		rs, request := starPolicy(t, 16, named)
		var a policy.Attributes = request
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
	rs, request := starPolicy(t, 16, false)
	request.header, request.attr = nil, map[string]string{"tier": "gold"}
	var a policy.Attributes = request
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

// TestOverridesUnderManyRules: rules beyond the capacity of the cache get the same limits as cached
// ones, under concurrent requests.
func TestOverridesUnderManyRules(t *testing.T) {
	rs, request := starPolicy(t, 4*overrideSlots, false)
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
				if len(plan.checks) != 2 || plan.asked[0].limit.text.Name != name+"-1m" || plan.checks[0].Limit.Count() != 1000 {
					t.Errorf("%s is asked for %d checks, the first %v", name, len(plan.checks), plan.checks[0])
					return
				}
			}
		})
	}
	wait.Wait()
}
