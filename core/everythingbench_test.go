// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/penstock/penstock/internal/inturns"
)

// everything is a policy of n rules, of which up to three match GET /api/items/42, with all that can be said of clients:
// tokens, tiers, penalties, and lists of 1,000 ranges of addresses who are exempt or blocked.
func everything(tb testing.TB, n int, v Verifier) *Ruleset {
	tb.Helper()
	limit, more := mustLimit(tb, "1000000/1m"), mustLimit(tb, "2000000/1m")
	tiers := map[string]LimitSet{"premium": {Limits: []Limit{more}}, "enterprise": {Unlimited: true}}
	p := Policy{Name: "shop", Identify: []Identify{{Kind: IdentifyJWT, Verifier: v}, {}},
		Tier: []Source{{Name: "tier"}}, Penalty: &Penalty{Window: Hour, Threshold: 3, Multipliers: []int64{1, 2, 4, 8}},
		Exempt: []Listed{{IP: thousandRanges(10), User: []string{"admin"}}},
		Block:  []Listed{{IP: thousandRanges(11), Tenant: []string{"lost"}, Reason: "abuse"}}}
	for i := range n {
		r := Rule{Name: fmt.Sprintf("rule-%d", i), Limits: []Limit{limit}, Tiers: tiers}
		switch i {
		case 0:
			r.Name = "api"
		case 1:
			r.Match = Match{Path: []string{"/api/*"}, Tier: []string{"premium", "enterprise", "free"}}
		case 2:
			r.Match = Match{Path: []string{"/api/items/42"}, Method: []string{"GET"}}
			r.Per = []Dimension{{Kind: PerUser}, {Kind: PerTenant}, {Kind: PerTier}}
		default:
			r.Match = Match{Path: []string{fmt.Sprintf("/service-%d/%d", i%100, i), fmt.Sprintf("/v%d/*", i)}}
		}
		p.Rules = append(p.Rules, r)
	}
	return mustCompile(tb, p)
}

// thousandRanges are address ranges of eight lengths below NET.0.0.0/8, and IPv6 ones.
func thousandRanges(net byte) (ranges []netip.Prefix) {
	for i := range 1_000 {
		a := netip.AddrFrom4([4]byte{net, byte(i >> 2), byte(i << 6), 0})
		if i%4 == 3 {
			a = netip.AddrFrom16([16]byte{0xfd, net, byte(i >> 8), byte(i)})
		}
		p, err := a.Prefix(26 - i%8)
		if err != nil {
			panic(err) // the lengths are those of addresses
		}
		ranges = append(ranges, p)
	}
	return ranges
}

// tokens says whose token each is.
type tokens map[string]*Identity

func (t tokens) Verify(credential string) (*Identity, CredentialState) {
	who, ok := t[credential]
	if !ok {
		return nil, CredentialInvalid
	}
	return who, CredentialValid
}

// visitor is a client of everything.
type visitor struct {
	name    string
	request *client
	want    Outcome
}

// visitors are clients who meet what a policy says of them, the plain one first, and the verifier that knows them.
func visitors(tb testing.TB) ([]visitor, Verifier) {
	tb.Helper()
	overrides, err := NewOverrides(map[string]LimitSet{"*": {Limits: []Limit{mustLimit(tb, "8000000/1m")}},
		"api": {Limits: []Limit{mustLimit(tb, "7000000/1m")}}})
	if err != nil {
		tb.Fatal(err)
	}
	user := func(tier string, own *Overrides) *Identity {
		return &Identity{Kind: "user", ID: "u_42", User: "u_42", Tier: tier, Tenant: "acme", Overrides: own}
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

// sizes are how many rules a policy has; the plain one first.
var sizes = []int{1, 100, 1_000, 10_000}

// TestEverythingAllocates: a request is planned and decided without allocating whatever the policy says of clients, and
// however many rules it has.
func TestEverythingAllocates(t *testing.T) {
	all, verifier := visitors(t)
	for _, n := range sizes {
		rs := everything(t, n, verifier)
		for _, v := range all {
			var plan Plan
			var d Decision
			var a Attributes = v.request
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

// BenchmarkEverything measures planning and deciding requests of such a policy, in turns. The first is the baseline: one
// rule, a client by address.
func BenchmarkEverything(b *testing.B) {
	all, verifier := visitors(b)
	var ways []inturns.Way
	for _, n := range sizes {
		rs := everything(b, n, verifier)
		for _, v := range all {
			var a Attributes = v.request
			plan := new(Plan)
			ways = append(ways, inturns.Way{Name: fmt.Sprintf("rules=%d/%s", n, v.name), Call: func() {
				plan.Reset()
				plan.Add(rs, a)
				plan.Checks()
				if d := plan.Decide(); d.Outcome != v.want {
					b.Fatalf("%+v", d)
				}
			}})
		}
	}
	inturns.Measure(b, ways)
}
