// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"github.com/penstock/penstock/internal/test/limittest"
	"net/netip"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// manyRules returns a policy of n rules, three of which match GET /api/items/42: one for all paths,
// one for /api/*, and one for the exact path.
func manyRules(tb testing.TB, n int) *Ruleset {
	tb.Helper()
	limit := limittest.Parse(tb, "1000000/1m")
	p := policy.Policy{Name: "shop", Rules: []policy.Rule{
		{Name: "everyone", PerNone: true, Limits: []counter.Limit{limit}},
		{Name: "api", Match: policy.Match{Path: []string{"/api/*"}}, Limits: []counter.Limit{limit}},
		{Name: "item", Match: policy.Match{Path: []string{"/api/items/42"}, Method: []string{"GET"}}, Limits: []counter.Limit{limit}},
	}}
	for i := len(p.Rules); i < n; i++ {
		p.Rules = append(p.Rules, policy.Rule{Name: fmt.Sprintf("rule-%d", i), Limits: []counter.Limit{limit},
			Match: policy.Match{Path: []string{fmt.Sprintf("/service-%d/%d", i%100, i), fmt.Sprintf("/v%d/*", i)}}})
	}
	return mustCompile(tb, p)
}

func BenchmarkPlan(b *testing.B) {
	for _, n := range []int{1_000, 10_000} {
		b.Run(fmt.Sprintf("rules=%d", n), func(b *testing.B) {
			rs := manyRules(b, n)
			var a policy.Attributes = &client{path: "/api/items/42", peer: netip.MustParseAddr("203.0.113.7")}
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

// BenchmarkPlanBadCases measures policies for which an index helps least, with 1,000 rules of which
// three match the request.
func BenchmarkPlanBadCases(b *testing.B) {
	limit := limittest.Parse(b, "1000000/1m")
	for name, match := range map[string]func(i int) policy.Match{
		"headers": func(i int) policy.Match {
			return policy.Match{Header: []policy.HeaderMatch{{Name: "X-Plan", Values: []string{fmt.Sprintf("plan-%d", max(2, i))}}}}
		},
		"cidrs": func(i int) policy.Match {
			return policy.Match{IP: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(max(2, i) >> 8), byte(max(2, i))}), 24)}}
		},
		"same path": func(i int) policy.Match {
			return policy.Match{Path: []string{"/*"}, Header: []policy.HeaderMatch{{Name: "X-Plan", Values: []string{fmt.Sprintf("plan-%d", max(2, i))}}}}
		},
		"one group": func(int) policy.Match { return policy.Match{Path: []string{"/*"}} },
	} {
		p := policy.Policy{Name: "shop"}
		for i := range 1_000 {
			p.Rules = append(p.Rules, policy.Rule{Name: fmt.Sprintf("rule-%d", i), Limits: []counter.Limit{limit}, Match: match(i)})
			if name == "one group" {
				p.Rules[i].Group = fmt.Sprintf("group-%d", i%3)
			}
		}
		b.Run(name, func(b *testing.B) {
			rs := mustCompile(b, p)
			var a policy.Attributes = &client{path: "/x", peer: netip.MustParseAddr("10.0.2.7"), header: map[string]string{"X-Plan": "plan-2"}}
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
	limit := limittest.Parse(b, "10/1m")
	var p policy.Policy
	for i := range 10_000 {
		p.Rules = append(p.Rules, policy.Rule{Name: fmt.Sprintf("rule-%d", i), Limits: []counter.Limit{limit},
			Match: policy.Match{Path: []string{fmt.Sprintf("/service-%d/%d", i%100, i)}}})
	}
	for b.Loop() {
		if _, err := Compile(p); err != nil {
			b.Fatal(err)
		}
	}
}

// TestPlanAllocates: planning and deciding a request does not allocate, and its headers take one
// allocation, however the client is identified.
func TestPlanAllocates(t *testing.T) {
	limit := limittest.Parse(t, "1000000/1m")
	long := string(make([]byte, 5_000))
	bucket := limittest.Parse(t, "100/1s burst 200")
	rules := []policy.Rule{
		{Name: "one", Limits: []counter.Limit{limit, limittest.Parse(t, "5000000/1d")}, Group: "g", Priority: 2},
		{Name: "two", Limits: []counter.Limit{bucket}, Per: []policy.Dimension{{Kind: policy.PerIP}, {Kind: policy.PerHost}, {Kind: policy.PerMethod}}},
		{Name: "three", Limits: []counter.Limit{limit}, Unverified: true, Missing: policy.MissingShare,
			Per: []policy.Dimension{{Kind: policy.PerHeader, Name: "X-Tenant"}, {Kind: policy.PerAttr, Name: "zone"}}},
		{Name: "four", Limits: []counter.Limit{limit}, Match: policy.Match{Path: []string{"/api/*", "/api/items/*"}},
			Per: []policy.Dimension{{Kind: policy.PerEndpoint}}, Cost: []policy.Cost{{Match: policy.Match{Method: []string{"POST"}}, N: 5}, {N: 2}}},
	}
	policies := map[string]policy.Policy{
		"ip":     {Name: "a", Rules: rules},
		"header": {Name: "b", Rules: rules, Identify: []policy.Identify{{Kind: policy.IdentifyHeader, Name: "X-User", Unverified: true}}},
		"attr":   {Name: "c", Rules: rules, Identify: []policy.Identify{{Kind: policy.IdentifyAttr, Name: "user"}}},
	}
	requests := map[string]*client{
		"plain": {path: "/api/items/42", peer: netip.MustParseAddr("203.0.113.7"), header: map[string]string{"X-User": "u"}},
		"long": {path: "/api/items/../%41", method: long, peer: netip.MustParseAddr("2001:db8::1"),
			header: map[string]string{"X-User": long, "X-Tenant": long}, attr: map[string]string{"user": long}},
	}
	for how, pol := range policies {
		rs := mustCompile(t, pol)
		for which, request := range requests {
			var a policy.Attributes = request
			var plan Plan
			var d Decision
			store := &mapStore{now: 1_700_000_000 * counter.Second}
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
			if n := testing.AllocsPerRun(100, func() { HeadersOf(&plan, &d) }); n != 1 {
				t.Errorf("%s, %s: the fields take %v allocations, want 1", how, which, n)
			}
		}
	}
}
