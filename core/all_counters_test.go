// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"github.com/penstock/penstock/internal/test/limittest"
	"iter"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// readAll reads every counter, page by page. For each counter it returns the text KEY LIMIT, and
// also the source of the limit unless that is the rule.
func readAll(t *testing.T, rs *Ruleset, pagesOf func(p *Plan) iter.Seq[[]counter.Check]) (looks []string, pages int) {
	t.Helper()
	store := newCounters()
	plan := new(Plan)
	for checks := range pagesOf(plan) {
		if len(checks) == 0 {
			break
		}
		if err := counter.ValidateChecks(plan.Checks(), plan.Results()); err != nil {
			t.Fatal(err)
		}
		store.take(plan.Checks(), plan.Results())
		for i, c := range plan.Checks() {
			ctr := plan.Counter(i)
			if c.Op != counter.OpLook || ctr.Ruleset != rs || (ctr.Rule < 0) != (c.Penalty != nil) {
				t.Fatalf("%+v is of %+v", c, ctr)
			}
			look := string(c.Key)
			if c.Penalty == nil {
				look += " " + c.Limit.String()
				if c.Cost != 1 || !strings.Contains(look, ":"+rs.RuleName(ctr.Rule)+":") {
					t.Fatalf("%+v is of %+v", c, ctr)
				}
			}
			if ctr.Whose != "" && ctr.Whose != "the rule" {
				look += " of " + ctr.Whose
			}
			looks = append(looks, look)
		}
		if pages++; pages > 200 {
			t.Fatal("the pages do not end")
		}
	}
	return looks, pages
}

// TestAllCounters: AllCounters includes the counters of rules that do not match the request, that
// lose in their group, or whose limit is exhausted. AllCounters omits rules that have no counter
// for the request.
func TestAllCounters(t *testing.T) {
	l := limittest.All(t, "10/1m")
	who := &knownClient{&policy.Identity{Kind: "user", ID: "u", User: "u", Tier: "gold",
		Overrides: parseOwnLimits(t, map[string]string{"loser": "7/1m"})}, policy.CredentialValid}
	rs := mustCompile(t, policy.Policy{Name: "n", Identify: []policy.Identify{{Kind: policy.IdentifyJWT, Verifier: who}, {Kind: policy.IdentifyIP}},
		Exempt:  []policy.Listed{{User: []string{"u"}}},
		Penalty: &counter.Penalty{Window: counter.Hour, Threshold: 3, Multipliers: []int64{2}},
		Rules: []policy.Rule{
			{Name: "winner", Group: "g", Limits: l, Tiers: map[string]policy.LimitSet{"gold": {Limits: limittest.All(t, "20/1m", "5/day")}}},
			{Name: "loser", Group: "g", Limits: l},
			{Name: "elsewhere", Limits: l, Match: policy.Match{Path: []string{"/x"}}, Action: policy.ActionLogOnly},
			{Name: "off", Limits: l, Disabled: true},
			{Name: "everybody", Limits: l, PerNone: true},
			{Name: "free", Group: "h", Action: policy.ActionAllow},
			{Name: "no", Action: policy.ActionBlock},
			{Name: "unlimited", Limits: l, Tiers: map[string]policy.LimitSet{"gold": {Unlimited: true}}},
			{Name: "zone", Limits: l, Per: []policy.Dimension{{Kind: policy.PerAttr, Name: "zone"}}},
			{Name: "shared", Limits: l, Per: []policy.Dimension{{Kind: policy.PerAttr, Name: "zone"}}, Missing: policy.MissingShare},
			{Name: "skipped", Limits: l, Per: []policy.Dimension{{Kind: policy.PerAttr, Name: "zone"}}, Missing: policy.MissingSkip},
			{Name: "denied", Limits: l, Per: []policy.Dimension{{Kind: policy.PerAttr, Name: "zone"}}, Missing: policy.MissingDeny},
			{Name: "here", Limits: l, Per: []policy.Dimension{{Kind: policy.PerEndpoint}}, Match: policy.Match{Path: []string{"/here", "/there"}}},
			{Name: "there", Limits: l, Per: []policy.Dimension{{Kind: policy.PerEndpoint}}, Match: policy.Match{Path: []string{"/there"}}},
		}})
	const theirs = "rl1:n:winner:{user:u}:60s:sw 20/1m of tier gold,rl1:n:winner:{user:u}:day:fw 5/day of tier gold," +
		"rl1:n:loser:{user:u}:60s:sw 7/1m of this client's own,rl1:n:elsewhere:{user:u}:60s:sw 10/1m," +
		"rl1:n:everybody:{everybody}:60s:sw 10/1m,rl1:n:zone:{user:u}:60s:sw 10/1m,rl1:n:shared:{attr.zone%3A}:60s:sw 10/1m," +
		"rl1:n:here:{endpoint:/here}:60s:sw 10/1m"
	want := append([]string{"rl1:n:~penalty:{user:u}"}, strings.Split(strings.Replace(theirs, "%3A", ":", 1), ",")...)
	a := get("192.0.2.1", "/here")
	a.header, a.now = map[string]string{"Authorization": "Bearer x"}, newCounters().now
	got, _ := readAll(t, rs, func(p *Plan) iter.Seq[[]counter.Check] { return p.AllCounters(rs, a) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("by its credential (-want +got):\n%s", diff)
	}
	known := *who.identity
	a.header, who.state = nil, policy.CredentialUnknown
	got, _ = readAll(t, rs, func(p *Plan) iter.Seq[[]counter.Check] { return p.AllCountersOf(rs, known, a) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("by name (-want +got):\n%s", diff)
	}
	a.header, who.state = map[string]string{"Authorization": "Bearer x"}, policy.CredentialRevoked
	if got, _ = readAll(t, rs, func(p *Plan) iter.Seq[[]counter.Check] { return p.AllCounters(rs, a) }); got != nil {
		t.Errorf("by a revoked credential: %q", got)
	}
}

// TestAllCountersPages: every counter of a large policy appears exactly once, and no page has more
// than 64 checks, whatever the rules contain.
func TestAllCountersPages(t *testing.T) {
	var most []counter.Limit
	for i := range counter.ChecksMax {
		most = append(most, limittest.Parse(t, fmt.Sprintf("1/%dm", i+1)))
	}
	for _, each := range []int{1, 3, counter.ChecksMax - 1, counter.ChecksMax} {
		p := policy.Policy{Name: "n"}
		if each < counter.ChecksMax { // a full page has no room for a penalty
			p.Penalty = &counter.Penalty{Window: counter.Hour, Threshold: 3, Multipliers: []int64{2}}
		}
		for i := range 200 / each {
			p.Rules = append(p.Rules, policy.Rule{Name: fmt.Sprint("r", i), Limits: most[:each], Group: "g"})
		}
		rs := mustCompile(t, p)
		a := get("192.0.2.1", "/")
		looks, pages := readAll(t, rs, func(p *Plan) iter.Seq[[]counter.Check] { return p.AllCounters(rs, a) })
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

// TestAllCountersChargesNothing: looking at all counters charges nothing and reports what is left.
func TestAllCountersChargesNothing(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "2/1m")}}})
	store, a := newCounters(), &client{peer: netip.MustParseAddr("192.0.2.1")}
	for _, left := range []int64{2, 1, 0} {
		for range 2 {
			plan := new(Plan)
			var looked []counter.Result
			for checks := range plan.AllCounters(rs, a) {
				store.take(checks, plan.Results())
				looked = append(looked, plan.Results()...)
			}
			if len(looked) != 1 {
				t.Fatalf("%d looks, want 1", len(looked))
			}
			r := looked[0]
			if r.Remaining != left || r.Denied != (left == 0) || plan.Counter(0).Policy != "r" {
				t.Errorf("%+v, want %d left", r, left)
			}
		}
		store.ask(t, a, rs)
	}
}
