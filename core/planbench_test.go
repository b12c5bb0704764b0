// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"net/netip"
	"testing"
)

// manyRules is a policy of n rules of which three match GET /api/items/42: everybody, /api/* and the exact path.
func manyRules(tb testing.TB, n int) *Ruleset {
	tb.Helper()
	limit := mustLimit(tb, "1000000/1m")
	p := Policy{Name: "shop", Rules: []Rule{
		{Name: "everyone", PerNone: true, Limits: []Limit{limit}},
		{Name: "api", Match: Match{Path: []string{"/api/*"}}, Limits: []Limit{limit}},
		{Name: "item", Match: Match{Path: []string{"/api/items/42"}, Method: []string{"GET"}}, Limits: []Limit{limit}},
	}}
	for i := len(p.Rules); i < n; i++ {
		p.Rules = append(p.Rules, Rule{Name: fmt.Sprintf("rule-%d", i), Limits: []Limit{limit},
			Match: Match{Path: []string{fmt.Sprintf("/service-%d/%d", i%100, i), fmt.Sprintf("/v%d/*", i)}}})
	}
	return mustCompile(tb, p)
}

func BenchmarkPlan(b *testing.B) {
	for _, n := range []int{1_000, 10_000} {
		b.Run(fmt.Sprintf("rules=%d", n), func(b *testing.B) {
			rs := manyRules(b, n)
			var a Attributes = &client{path: "/api/items/42", peer: netip.MustParseAddr("203.0.113.7")}
			var plan Plan
			b.ReportAllocs()
			for b.Loop() {
				plan.Reset()
				plan.Add(rs, a)
				if len(plan.Checks()) != 3 {
					b.Fatalf("%d checks, want 3", len(plan.Checks()))
				}
			}
		})
	}
}

func BenchmarkHeaders(b *testing.B) {
	rs := manyRules(b, 1_000)
	var plan Plan
	plan.Add(rs, &client{path: "/api/items/42", peer: netip.MustParseAddr("203.0.113.7")})
	(&counters{now: 1_700_000_000 * Second}).take(plan.Checks(), plan.Results())
	b.ReportAllocs()
	for b.Loop() {
		d := plan.Decide()
		if f := plan.Headers(&d); f.Limit == "" {
			b.Fatal("no limit is shown")
		}
	}
}

// BenchmarkPlanBadCases are the policies that an index can help least with; 1,000 rules, one request that three match.
func BenchmarkPlanBadCases(b *testing.B) {
	limit := mustLimit(b, "1000000/1m")
	for name, match := range map[string]func(i int) Match{
		"headers": func(i int) Match {
			return Match{Header: []HeaderMatch{{Name: "X-Plan", Values: []string{fmt.Sprintf("plan-%d", max(2, i))}}}}
		},
		"cidrs": func(i int) Match {
			return Match{IP: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(max(2, i) >> 8), byte(max(2, i))}), 24)}}
		},
		"same path": func(i int) Match {
			return Match{Path: []string{"/*"}, Header: []HeaderMatch{{Name: "X-Plan", Values: []string{fmt.Sprintf("plan-%d", max(2, i))}}}}
		},
		"one group": func(int) Match { return Match{Path: []string{"/*"}} },
	} {
		p := Policy{Name: "shop"}
		for i := range 1_000 {
			p.Rules = append(p.Rules, Rule{Name: fmt.Sprintf("rule-%d", i), Limits: []Limit{limit}, Match: match(i)})
			if name == "one group" {
				p.Rules[i].Group = fmt.Sprintf("group-%d", i%3)
			}
		}
		b.Run(name, func(b *testing.B) {
			rs := mustCompile(b, p)
			var a Attributes = &client{path: "/x", peer: netip.MustParseAddr("10.0.2.7"), header: map[string]string{"X-Plan": "plan-2"}}
			var plan Plan
			b.ReportAllocs()
			for b.Loop() {
				plan.Reset()
				plan.Add(rs, a)
				if len(plan.Checks()) != 3 {
					b.Fatalf("%d checks, want 3", len(plan.Checks()))
				}
			}
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	limit := mustLimit(b, "10/1m")
	var p Policy
	for i := range 10_000 {
		p.Rules = append(p.Rules, Rule{Name: fmt.Sprintf("rule-%d", i), Limits: []Limit{limit},
			Match: Match{Path: []string{fmt.Sprintf("/service-%d/%d", i%100, i)}}})
	}
	for b.Loop() {
		if _, err := Compile(p); err != nil {
			b.Fatal(err)
		}
	}
}

// TestPlanAllocates holds the promise that a request is planned and decided without allocating, and told about with one
// allocation, whichever way the client is identified.
func TestPlanAllocates(t *testing.T) {
	limit := mustLimit(t, "1000000/1m")
	long := string(make([]byte, 5_000))
	bucket := mustLimit(t, "100/1s burst 200")
	rules := []Rule{
		{Name: "one", Limits: []Limit{limit, mustLimit(t, "5000000/1d")}, Group: "g", Priority: 2},
		{Name: "two", Limits: []Limit{bucket}, Per: []Dimension{{Kind: PerIP}, {Kind: PerHost}, {Kind: PerMethod}}},
		{Name: "three", Limits: []Limit{limit}, Unverified: true, Missing: MissingShare,
			Per: []Dimension{{Kind: PerHeader, Name: "X-Tenant"}, {Kind: PerAttr, Name: "zone"}}},
		{Name: "four", Limits: []Limit{limit}, Match: Match{Path: []string{"/api/*", "/api/items/*"}},
			Per: []Dimension{{Kind: PerEndpoint}}, Cost: []Cost{{Match: Match{Method: []string{"POST"}}, N: 5}, {N: 2}}},
	}
	policies := map[string]Policy{
		"ip":     {Name: "a", Rules: rules},
		"header": {Name: "b", Rules: rules, Identify: []Identify{{Kind: IdentifyHeader, Name: "X-User", Unverified: true}}},
		"attr":   {Name: "c", Rules: rules, Identify: []Identify{{Kind: IdentifyAttr, Name: "user"}}},
	}
	requests := map[string]*client{
		"plain": {path: "/api/items/42", peer: netip.MustParseAddr("203.0.113.7"), header: map[string]string{"X-User": "u"}},
		"long": {path: "/api/items/../%41", method: long, peer: netip.MustParseAddr("2001:db8::1"),
			header: map[string]string{"X-User": long, "X-Tenant": long}, attr: map[string]string{"user": long}},
	}
	for how, policy := range policies {
		rs := mustCompile(t, policy)
		for which, request := range requests {
			var a Attributes = request
			var plan Plan
			var d Decision
			store := &counters{now: 1_700_000_000 * Second}
			decide := func() {
				plan.Reset()
				plan.Add(rs, a)
				plan.Checks()
				d = plan.Decide()
			}
			if n := testing.AllocsPerRun(100, decide); n != 0 {
				t.Errorf("%s, %s: planning and deciding allocates %v times", how, which, n)
			}
			store.take(plan.Checks(), plan.Results())
			d = plan.Decide()
			if d.Outcome != OutcomeAllowed || d.Limit == nil {
				t.Fatalf("%s, %s: %+v", how, which, d)
			}
			if n := testing.AllocsPerRun(100, func() { plan.Headers(&d) }); n != 1 {
				t.Errorf("%s, %s: the fields take %v allocations, want 1", how, which, n)
			}
		}
	}
}
