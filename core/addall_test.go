// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// all looks at every counter, page by page, and returns what is looked at: KEY LIMIT, and whose it is if it is not the
// rule's.
func all(t *testing.T, rs *Ruleset, page func(p *Plan, from int) (next int)) (looks []string, pages int) {
	t.Helper()
	store := newCounters()
	for from := 0; ; {
		plan := new(Plan)
		next := page(plan, from)
		if err := ValidateChecks(plan.Checks(), plan.Results()); err != nil {
			t.Fatal(err)
		}
		store.take(plan.Checks(), plan.Results())
		for i, c := range plan.Checks() {
			counter := plan.Counter(i)
			if c.Op != OpLook || counter.Ruleset != rs || (counter.Rule < 0) != (c.Penalty != nil) {
				t.Fatalf("%+v is of %+v", c, counter)
			}
			look := string(c.Key)
			if c.Penalty == nil {
				look += " " + c.Limit.String()
				if c.Cost != 1 || !strings.Contains(look, ":"+rs.RuleName(counter.Rule)+":") {
					t.Fatalf("%+v is of %+v", c, counter)
				}
			}
			if counter.Whose != "" && counter.Whose != "the rule" {
				look += " of " + counter.Whose
			}
			looks = append(looks, look)
		}
		if pages++; next == 0 {
			return looks, pages
		}
		if next <= from {
			t.Fatalf("page %d goes from %d on to %d", pages, from, next)
		}
		from = next
	}
}

// TestAddAll: the counters of every rule, whether it matches, wins its group or is over its limit; but for those that the
// request could not be counted by.
func TestAddAll(t *testing.T) {
	l := limits(t, "10/1m")
	who := &knownClient{&Identity{Kind: "user", ID: "u", User: "u", Tier: "gold",
		Overrides: own(t, map[string]string{"loser": "7/1m"})}, CredentialValid}
	rs := mustCompile(t, Policy{Name: "n", Identify: []Identify{{Kind: IdentifyJWT, Verifier: who}, {Kind: IdentifyIP}},
		Exempt:  []Listed{{User: []string{"u"}}},
		Penalty: &Penalty{Window: Hour, Threshold: 3, Multipliers: []int64{2}},
		Rules: []Rule{
			{Name: "winner", Group: "g", Limits: l, Tiers: map[string]LimitSet{"gold": {Limits: limits(t, "20/1m", "5/day")}}},
			{Name: "loser", Group: "g", Limits: l},
			{Name: "elsewhere", Limits: l, Match: Match{Path: []string{"/x"}}, Action: ActionLogOnly},
			{Name: "off", Limits: l, Disabled: true},
			{Name: "everybody", Limits: l, PerNone: true},
			{Name: "free", Group: "h", Action: ActionAllow},
			{Name: "no", Action: ActionBlock},
			{Name: "unlimited", Limits: l, Tiers: map[string]LimitSet{"gold": {Unlimited: true}}},
			{Name: "zone", Limits: l, Per: []Dimension{{Kind: PerAttr, Name: "zone"}}},
			{Name: "shared", Limits: l, Per: []Dimension{{Kind: PerAttr, Name: "zone"}}, Missing: MissingShare},
			{Name: "skipped", Limits: l, Per: []Dimension{{Kind: PerAttr, Name: "zone"}}, Missing: MissingSkip},
			{Name: "denied", Limits: l, Per: []Dimension{{Kind: PerAttr, Name: "zone"}}, Missing: MissingDeny},
			{Name: "here", Limits: l, Per: []Dimension{{Kind: PerEndpoint}}, Match: Match{Path: []string{"/here", "/there"}}},
			{Name: "there", Limits: l, Per: []Dimension{{Kind: PerEndpoint}}, Match: Match{Path: []string{"/there"}}},
		}})
	const theirs = "rl1:n:winner:{user:u}:60s:sw 20/1m of tier gold,rl1:n:winner:{user:u}:day:fw 5/day of tier gold," +
		"rl1:n:loser:{user:u}:60s:sw 7/1m of this client's own,rl1:n:elsewhere:{user:u}:60s:sw 10/1m," +
		"rl1:n:everybody:{everybody}:60s:sw 10/1m,rl1:n:zone:{user:u}:60s:sw 10/1m,rl1:n:shared:{attr.zone%3A}:60s:sw 10/1m," +
		"rl1:n:here:{endpoint:/here}:60s:sw 10/1m"
	want := append([]string{"rl1:n:~penalty:{user:u}"}, strings.Split(strings.Replace(theirs, "%3A", ":", 1), ",")...)
	a := get("192.0.2.1", "/here")
	a.header, a.now = map[string]string{"Authorization": "Bearer x"}, newCounters().now
	got, _ := all(t, rs, func(p *Plan, from int) int { return p.AddAll(rs, a, from) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("by its credential (-want +got):\n%s", diff)
	}
	known := *who.identity
	a.header, who.state = nil, CredentialUnknown
	got, _ = all(t, rs, func(p *Plan, from int) int { return p.AddAllOf(rs, known, a, from) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("by name (-want +got):\n%s", diff)
	}
	a.header, who.state = map[string]string{"Authorization": "Bearer x"}, CredentialRevoked
	if got, _ = all(t, rs, func(p *Plan, from int) int { return p.AddAll(rs, a, from) }); got != nil {
		t.Errorf("by a revoked credential: %q", got)
	}
}

// TestAddAllPages: every counter of a large policy comes once, at most 64 at a time, whatever the rules have.
func TestAddAllPages(t *testing.T) {
	var most []Limit
	for i := range ChecksMax {
		most = append(most, mustLimit(t, fmt.Sprintf("1/%dm", i+1)))
	}
	for _, each := range []int{1, 3, ChecksMax - 1, ChecksMax} {
		p := Policy{Name: "n"}
		if each < ChecksMax { // beside as many, there is no room for a penalty
			p.Penalty = &Penalty{Window: Hour, Threshold: 3, Multipliers: []int64{2}}
		}
		for i := range 200 / each {
			p.Rules = append(p.Rules, Rule{Name: fmt.Sprint("r", i), Limits: most[:each], Group: "g"})
		}
		rs := mustCompile(t, p)
		a := get("192.0.2.1", "/")
		looks, pages := all(t, rs, func(p *Plan, from int) int { return p.AddAll(rs, a, from) })
		seen := map[string]bool{}
		for _, look := range looks {
			seen[look] = true
		}
		want := len(p.Rules) * each
		if p.Penalty != nil {
			want++
		}
		if len(looks) != want || len(seen) != want || pages < 3 {
			t.Errorf("%d limits each: %d looks at %d counters on %d pages, want %d", each, len(looks), len(seen), pages, want)
		}
	}
}

// TestAddAllChargesNothing: and tells what is left.
func TestAddAllChargesNothing(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{{Name: "r", Limits: limits(t, "2/1m")}}})
	store, a := newCounters(), &client{peer: netip.MustParseAddr("192.0.2.1")}
	for _, left := range []int64{2, 1, 0} {
		for range 2 {
			plan := new(Plan)
			if next := plan.AddAll(rs, a, 0); next != 0 {
				t.Fatalf("next is %d", next)
			}
			store.take(plan.Checks(), plan.Results())
			r := plan.Results()[0]
			if r.Remaining != left || r.Refused != (left == 0) || plan.Counter(0).Policy != "r" {
				t.Errorf("%+v, want %d left", r, left)
			}
		}
		store.ask(t, a, rs)
	}
}
