// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"github.com/penstock/penstock/internal/test/limittest"
	"net/netip"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/benchpair"
)

// fullRuleset returns a policy of n rules that uses all client features: tokens,
// tiers, penalties, and lists of 1,000 exempt or blocked address ranges. Up to three of the rules
// match GET /api/items/42.
func fullRuleset(tb testing.TB, n int, v policy.Verifier) *Ruleset {
	tb.Helper()
	limit, more := limittest.Parse(tb, "1000000/1m"), limittest.Parse(tb, "2000000/1m")
	tiers := map[string]policy.LimitSet{"premium": {Limits: []counter.Limit{more}}, "enterprise": {Unlimited: true}}
	p := policy.Policy{Name: "shop", Identify: []policy.Identify{{Kind: policy.IdentifyJWT, Verifier: v}, {}},
		Tier: []policy.Source{{Name: "tier"}}, Penalty: &counter.Penalty{Window: counter.Hour, Threshold: 3, Multipliers: []int64{1, 2, 4, 8}},
		Exempt: []policy.Listed{{IP: thousandRanges(10), User: []string{"admin"}}},
		Block:  []policy.Listed{{IP: thousandRanges(11), Tenant: []string{"lost"}, Reason: "abuse"}}}
	for i := range n {
		r := policy.Rule{Name: fmt.Sprintf("rule-%d", i), Limits: []counter.Limit{limit}, Tiers: tiers}
		switch i {
		case 0:
			r.Name = "api"
		case 1:
			r.Match = policy.Match{Path: []string{"/api/*"}, Tier: []string{"premium", "enterprise", "free"}}
		case 2:
			r.Match = policy.Match{Path: []string{"/api/items/42"}, Method: []string{"GET"}}
			r.Per = []policy.Dimension{{Kind: policy.PerUser}, {Kind: policy.PerTenant}, {Kind: policy.PerTier}}
		default:
			r.Match = policy.Match{Path: []string{fmt.Sprintf("/service-%d/%d", i%100, i), fmt.Sprintf("/v%d/*", i)}}
		}
		p.Rules = append(p.Rules, r)
	}
	return mustCompile(tb, p)
}

// thousandRanges returns address ranges with eight prefix lengths inside NET.0.0.0/8, and some IPv6
// ranges.
func thousandRanges(net byte) (ranges []netip.Prefix) {
	for i := range 1_000 {
		a := netip.AddrFrom4([4]byte{net, byte(i >> 2), byte(i << 6), 0})
		if i%4 == 3 {
			a = netip.AddrFrom16([16]byte{0xfd, net, byte(i >> 8), byte(i)})
		}
		p, err := a.Prefix(26 - i%8)
		if err != nil {
			panic(err) // the lengths are valid for the addresses
		}
		ranges = append(ranges, p)
	}
	return ranges
}

// tokens maps tokens to identities.
type tokens map[string]*policy.Identity

func (t tokens) Verify(credential string) (*policy.Identity, policy.CredentialState) {
	who, ok := t[credential]
	if !ok {
		return nil, policy.CredentialInvalid
	}
	return who, policy.CredentialValid
}

// visitor is a client with its expected outcome under the policy of fullRuleset.
type visitor struct {
	name    string
	request *client
	want    Outcome
}

// visitors returns clients that use the features of the policy, and the verifier for
// their tokens. The first client uses none of these features.
func visitors(tb testing.TB) ([]visitor, policy.Verifier) {
	tb.Helper()
	overrides, err := policy.NewOverrides(map[string]policy.LimitSet{"*": {Limits: []counter.Limit{limittest.Parse(tb, "8000000/1m")}},
		"api": {Limits: []counter.Limit{limittest.Parse(tb, "7000000/1m")}}})
	if err != nil {
		tb.Fatal(err)
	}
	user := func(tier string, own *policy.Overrides) *policy.Identity {
		return &policy.Identity{Kind: "user", ID: "u_42", User: "u_42", Tier: tier, Tenant: "acme", Overrides: own}
	}
	known := tokens{"user": user("", nil), "tier": user("premium", nil), "own": user("premium", overrides)}
	by := func(token, peer string) *client {
		c := get(peer, "/api/items/42")
		if token != "" {
			c.header = map[string]string{"Authorization": "Bearer " + token}
		}
		return c
	}
	return []visitor{
		{"ip", by("", "198.51.100.7"), OutcomeAllowed},
		{"user", by("user", "198.51.100.7"), OutcomeAllowed},
		{"tier", by("tier", "198.51.100.7"), OutcomeAllowed},
		{"own limits", by("own", "2001:db8::7"), OutcomeAllowed},
		{"exempt", by("user", "10.9.64.1"), OutcomeExempt},
		{"blocked", by("user", "11.9.64.1"), OutcomeBlocked},
	}, known
}

// sizes lists the numbers of rules to test, beginning with the baseline.
var sizes = []int{1, 100, 1_000, 10_000}

// TestEverythingAllocates: planning and deciding a request allocates nothing, whatever features the
// policy uses and however many rules it has.
func TestEverythingAllocates(t *testing.T) {
	all, verifier := visitors(t)
	for _, n := range sizes {
		rs := fullRuleset(t, n, verifier)
		for _, v := range all {
			var plan Plan
			var d Decision
			var a policy.Attributes = v.request
			if got := testing.AllocsPerRun(100, func() {
				plan.Reset()
				plan.Add(rs, a)
				plan.Checks()
				d = plan.Decide()
			}); got != 0 {
				t.Errorf("%s of %d rules: %v allocations", v.name, n, got)
			}
			if d.Outcome != v.want {
				t.Errorf("%s of %d rules: %+v, want %v", v.name, n, d, v.want)
			}
		}
	}
}

// BenchmarkEverything measures planning and deciding requests under the policies of fullRuleset.
// The first policy is the baseline: one rule, and a client identified by address.
func BenchmarkEverything(b *testing.B) {
	all, verifier := visitors(b)
	var ways []benchpair.Way
	for _, n := range sizes {
		rs := fullRuleset(b, n, verifier)
		for _, v := range all {
			var a policy.Attributes = v.request
			plan := new(Plan)
			ways = append(ways, benchpair.Way{Name: fmt.Sprintf("rules=%d/%s", n, v.name), Call: func() {
				plan.Reset()
				plan.Add(rs, a)
				plan.Checks()
				if d := plan.Decide(); d.Outcome != v.want {
					b.Fatalf("%+v", d)
				}
			}})
		}
	}
	benchpair.Measure(b, ways)
}
