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

// wantInPlay sends a request and compares the outcomes of the rules in play.
func wantInPlay(t *testing.T, rs *Ruleset, a policy.Attributes, want map[string]string) Decision {
	t.Helper()
	plan, d := newCounters().ask(t, a, rs)
	wantOutcomes(t, plan, want)
	return d
}

// TestGroupHasOneWinner: a group's winner has the lowest priority. Of rules with the same
// priority, endpoint-specific ones precede others. Otherwise document order decides.
func TestGroupHasOneWinner(t *testing.T) {
	l := limittest.All(t, "10/1m")
	header := []policy.HeaderMatch{{Name: "X-Plan", Values: []string{"gold"}}}
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{
		{Name: "general", Group: "g", Limits: l},
		{Name: "gold", Group: "g", Limits: l, Match: policy.Match{Header: header}},
		{Name: "a", Group: "g", Limits: l, Match: policy.Match{Path: []string{"/a"}}},
		{Name: "a2", Group: "g", Limits: l, Match: policy.Match{Path: []string{"/a"}}},
		{Name: "first", Group: "g", Priority: -1, Limits: l, Match: policy.Match{Path: []string{"/first"}}},
		{Name: "last", Group: "g", Priority: 1, Limits: l, Match: policy.Match{Path: []string{"/*"}}},
		{Name: "beside", Limits: l},
		{Name: "other", Group: "h", Limits: l},
	}})
	gold := map[string]string{"X-Plan": "gold"}
	peer := netip.MustParseAddr("192.0.2.1")
	for _, c := range []struct {
		path   string
		header map[string]string
		winner string
	}{
		{"/x", nil, "general"},
		{"/x", gold, "general"}, // neither names an endpoint
		{"/a", gold, "a"},
		{"/first", gold, "first"},
	} {
		wantInPlay(t, rs, &client{path: c.path, peer: peer, header: c.header},
			map[string]string{"n/" + c.winner: "allowed", "n/beside": "allowed", "n/other": "allowed"})
	}
}

// TestEnforceFirst: under enforce: first, all rules together form one group.
func TestEnforceFirst(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Enforce: policy.EnforceFirst, Rules: []policy.Rule{
		{Name: "all", Limits: limittest.All(t, "1/1m"), Priority: 1},
		{Name: "health", Action: policy.ActionAllow, Match: policy.Match{Path: []string{"/health"}}},
		{Name: "no", Action: policy.ActionBlock, Match: policy.Match{Path: []string{"/health/no"}}},
	}})
	wantInPlay(t, rs, get("192.0.2.1", "/x"), map[string]string{"n/all": "allowed"})
	d := wantInPlay(t, rs, get("192.0.2.1", "/health"), map[string]string{"n/health": "exempt"})
	if d.Outcome != OutcomeExempt || d.Denied() {
		t.Errorf("allow: %+v", d)
	}
	d = wantInPlay(t, rs, get("192.0.2.1", "/health/no"), map[string]string{"n/no": "blocked"})
	if d.Status != 403 {
		t.Errorf("block: %+v", d)
	}
}

// TestAllowExemptsFromItsGroupOnly: rules outside the group of an allow rule still count.
func TestAllowExemptsFromItsGroupOnly(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{
		{Name: "limited", Group: "g", Limits: limittest.All(t, "1/1m")},
		{Name: "free", Group: "g", Action: policy.ActionAllow, Match: policy.Match{Path: []string{"/free"}}},
		{Name: "beside", Limits: limittest.All(t, "1/1m")},
	}})
	d := wantInPlay(t, rs, get("192.0.2.1", "/free"), map[string]string{"n/free": "exempt", "n/beside": "allowed"})
	if d.Outcome != OutcomeAllowed || d.Rule != "beside" {
		t.Errorf("%+v", d)
	}
}

// TestBlockIsStrongest: a block rule wins over its group, over exemptions, and over a missing
// dimension.
func TestBlockIsStrongest(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Exempt: []policy.Listed{{IP: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}},
		Rules: []policy.Rule{
			{Name: "free", Group: "g", Priority: -5, Action: policy.ActionAllow, Match: policy.Match{Path: []string{"/*"}}},
			{Name: "no", Group: "g", Action: policy.ActionBlock, Match: policy.Match{Method: []string{"DELETE"}}},
			{Name: "tenant", Limits: limittest.All(t, "1/1m"), Missing: policy.MissingDeny, Per: []policy.Dimension{{Kind: policy.PerAttr, Name: "t"}}},
		}})
	a := get("192.0.2.1", "/x")
	wantInPlay(t, rs, a, map[string]string{"n/free": "exempt", "n/tenant": "exempt"})
	a.method = "DELETE"
	if d := wantInPlay(t, rs, a, map[string]string{"n/no": "blocked"}); d.Outcome != OutcomeBlocked || d.Rule != "no" {
		t.Errorf("%+v", d)
	}
}

// TestMissing tests the counter of a rule whose header is missing or empty.
func TestMissing(t *testing.T) {
	for _, c := range []struct {
		missing policy.Missing
		key     string
		outcome string
	}{
		{policy.MissingClient, "rl1:n:r:{ip:192.0.2.1}:60s:sw", "allowed"},
		{policy.MissingShare, "rl1:n:r:{header.x-tenant:}:60s:sw", "allowed"},
		{policy.MissingSkip, "", ""},
		{policy.MissingDeny, "", "missing"},
	} {
		rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "9/1m"), Missing: c.missing,
			Unverified: true, Per: []policy.Dimension{{Kind: policy.PerHeader, Name: "x-tenant"}}}}})
		for _, header := range []map[string]string{nil, {"X-Tenant": ""}} {
			plan, d := newCounters().ask(t, &client{peer: netip.MustParseAddr("192.0.2.1"), header: header}, rs)
			if got := len(plan.Checks()); got > 1 || (c.key == "") != (got == 0) {
				t.Fatalf("missing %d: %d checks", c.missing, got)
			}
			if c.key != "" {
				wantKeys(t, plan, c.key)
			}
			if outcomesByRule(plan)["n/r"] != c.outcome || (d.Status == 403) != (c.outcome == "missing") {
				t.Errorf("missing %d: %v, %+v", c.missing, outcomesByRule(plan), d)
			}
		}
		plan, _ := newCounters().ask(t, &client{header: map[string]string{"X-Tenant": "acme"}}, rs)
		wantKeys(t, plan, "rl1:n:r:{header.x-tenant:acme}:60s:sw")
	}
}

// TestSkippedDoesNotCompete: if a rule is skipped, the next one of its group wins instead. A rule
// with missing: deny, however, does compete.
func TestSkippedDoesNotCompete(t *testing.T) {
	per := []policy.Dimension{{Kind: policy.PerAttr, Name: "user"}}
	for missing, want := range map[policy.Missing]map[string]string{
		policy.MissingSkip: {"n/client": "allowed", "n/beside": "allowed"},
		policy.MissingDeny: {"n/user": "missing", "n/beside": "uncharged"},
	} {
		rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{
			{Name: "user", Group: "g", Limits: limittest.All(t, "1/1m"), Per: per, Missing: missing},
			{Name: "client", Group: "g", Limits: limittest.All(t, "1/1m")},
			{Name: "beside", Limits: limittest.All(t, "1/1m")},
		}})
		wantInPlay(t, rs, get("192.0.2.1", "/"), want)
	}
}

// TestSpellingChoosesNoWinner: if some servers read a path as /free and others as /api, the client
// can choose neither the group's winner nor the cost by spelling the path differently.
func TestSpellingChoosesNoWinner(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{
		{Name: "free", Group: "g", Priority: 1, Limits: limittest.All(t, "1000/1m"), Match: policy.Match{Path: []string{"/free/*"}},
			Cost: []policy.Cost{{Match: policy.Match{Path: []string{"/free/cheap"}}, N: 1}, {N: 7}}},
		{Name: "api", Group: "g", Priority: 2, Limits: limittest.All(t, "10/1m"), Match: policy.Match{Path: []string{"/api/*"}}},
		{Name: "rest", Group: "g", Priority: 3, Limits: limittest.All(t, "10/1m")},
	}})
	wantInPlay(t, rs, get("192.0.2.1", "/free/cheap"), map[string]string{"n/free": "allowed"})
	two := get("192.0.2.1", "/free/..\\api\\x")
	plan, _ := newCounters().ask(t, two, rs)
	if len(plan.who.Request.Readings) < 2 {
		t.Fatalf("%s is read in %d ways", two.path, len(plan.who.Request.Readings))
	}
	wantOutcomes(t, plan, map[string]string{"n/free": "allowed", "n/api": "allowed", "n/rest": "allowed"})
	if cost := plan.Checks()[0].Cost; cost != 7 {
		t.Errorf("cost is %d", cost)
	}
}

// TestSeveralValuesChooseNoWinner: a server may read any of the values of a header. So a client can
// choose neither the group's winner, nor the cost, nor the rules that are replaced, by a second
// value.
func TestSeveralValuesChooseNoWinner(t *testing.T) {
	l := limittest.All(t, "100/1m")
	small := policy.Match{Header: []policy.HeaderMatch{{Name: "X-Size", Values: []string{"small", "tiny*"}}}}
	large := policy.Match{Header: []policy.HeaderMatch{{Name: "X-Size", Values: []string{"large"}}}}
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{
		{Name: "cost", Limits: l, Cost: []policy.Cost{{Match: small, N: 2}, {Match: large, N: 9}, {N: 5}}},
		{Name: "won", Group: "g", Limits: l, Match: small},
		{Name: "lost", Group: "g", Limits: l},
		{Name: "free", Group: "h", Action: policy.ActionAllow, Match: small},
		{Name: "paid", Group: "h", Limits: l},
		{Name: "instead", Match: small, Limits: l, Replaces: []string{"replaced"}},
		{Name: "replaced", Limits: l},
	}})
	cheap := map[string]string{"n/cost": "allowed", "n/won": "allowed", "n/free": "exempt", "n/instead": "allowed"}
	dear := map[string]string{"n/cost": "allowed", "n/lost": "allowed", "n/paid": "allowed", "n/replaced": "allowed"}
	both := map[string]string{"n/cost": "allowed", "n/won": "allowed", "n/lost": "allowed", "n/paid": "allowed", "n/instead": "allowed", "n/replaced": "allowed"}
	for _, c := range []struct {
		size string
		cost int64
		want map[string]string
	}{
		{"small", 2, cheap}, {"small, small", 2, cheap}, {"small,tiny2", 2, cheap}, {"large", 9, dear}, {"other", 5, dear},
		{"small, large", 9, both}, {"large,small", 9, both}, {"small, other", 5, both}, {"tiny, large", 9, both}, {"small,", 5, both},
	} {
		a := get("192.0.2.1", "/")
		a.header = map[string]string{"X-Size": c.size}
		plan, _ := newCounters().ask(t, a, rs)
		wantOutcomes(t, plan, c.want)
		if cost := plan.Checks()[0].Cost; cost != c.cost {
			t.Errorf("%q costs %d, want %d", c.size, cost, c.cost)
		}
	}
}

// TestDegrade: without the store, the strictest on_error of the request's limits applies, and
// log_only rules deny nothing.
func TestDegrade(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{
		{Name: "open", Limits: limittest.All(t, "1/1m")},
		{Name: "closed", Limits: limittest.All(t, "1/1m"), OnError: counter.OnErrorDeny, Match: policy.Match{Path: []string{"/pay"}}},
	}})
	strict := mustCompile(t, policy.Policy{Name: "s", OnError: counter.OnErrorDeny, Rules: []policy.Rule{
		{Name: "shadow", Limits: limittest.All(t, "1/1m"), Action: policy.ActionLogOnly},
		{Name: "open", Limits: limittest.All(t, "1/1m"), OnError: counter.OnErrorAllow},
		{Name: "closed", Limits: limittest.All(t, "1/1m"), Match: policy.Match{Path: []string{"/pay"}}},
	}, Exempt: []policy.Listed{{IP: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}})
	for _, c := range []struct {
		peer, path string
		rs         *Ruleset
		status     int
		want       map[string]string
	}{
		{"192.0.2.1", "/", rs, 0, map[string]string{"n/open": "degraded_allowed"}},
		{"192.0.2.1", "/pay", rs, 503, map[string]string{"n/open": "uncharged", "n/closed": "degraded_denied"}},
		{"192.0.2.1", "/", strict, 0, map[string]string{"s/shadow": "degraded_allowed", "s/open": "degraded_allowed"}},
		{"192.0.2.1", "/pay", strict, 503,
			map[string]string{"s/shadow": "uncharged", "s/open": "uncharged", "s/closed": "degraded_denied"}},
		{"10.0.0.1", "/pay", strict, 0, map[string]string{"s/shadow": "exempt", "s/open": "exempt", "s/closed": "exempt"}},
	} {
		var plan Plan
		plan.Add(c.rs, get(c.peer, c.path))
		d := plan.Degrade()
		wantOutcomes(t, &plan, c.want)
		if d.Status != c.status || d.Limit != nil || (d.Status != 0) != (d.Rule == "closed") {
			t.Errorf("%s %s: %+v", c.peer, c.path, d)
		}
		if f := HeadersOf(&plan, &d); f != (Fields{}) {
			t.Errorf("%s %s: tells %+v", c.peer, c.path, f)
		}
	}
}

// TestOverload: when too many requests are waiting for the store, a request is denied regardless of
// on_error. log_only rules deny nothing.
func TestOverload(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{
		{Name: "shadow", Limits: limittest.All(t, "1/1m"), Action: policy.ActionLogOnly},
		{Name: "open", Limits: limittest.All(t, "1/1m"), Match: policy.Match{Path: []string{"/a", "/c"}}},
		{Name: "local", Limits: limittest.All(t, "1/1m"), OnError: counter.OnErrorLocal, Match: policy.Match{Path: []string{"/b", "/c"}}},
	}, Exempt: []policy.Listed{{IP: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}})
	for _, c := range []struct {
		peer, path, rule string
		want             map[string]string
	}{
		{peer: "192.0.2.1", path: "/", want: map[string]string{"n/shadow": "degraded_allowed"}},
		{peer: "192.0.2.1", path: "/a", rule: "open", want: map[string]string{"n/shadow": "uncharged", "n/open": "degraded_denied"}},
		{peer: "192.0.2.1", path: "/b", rule: "local", want: map[string]string{"n/shadow": "uncharged", "n/local": "degraded_denied"}},
		{peer: "192.0.2.1", path: "/c", rule: "open", want: map[string]string{"n/shadow": "uncharged", "n/open": "degraded_denied", "n/local": "degraded_denied"}},
		{peer: "10.0.0.1", path: "/a", want: map[string]string{"n/shadow": "exempt", "n/open": "exempt"}},
	} {
		var plan Plan
		plan.Add(rs, get(c.peer, c.path))
		plan.Fail(fmt.Errorf("a store: %w", counter.ErrInvalid))
		wantOutcomes(t, &plan, c.want)
		d := plan.Fail(fmt.Errorf("a store: %w", counter.ErrOverloaded))
		wantOutcomes(t, &plan, c.want)
		status, wait := 0, ""
		if c.rule != "" {
			status, wait = 503, "1"
		}
		if d.Status != status || d.Rule != c.rule || d.Limit != nil {
			t.Errorf("%s %s: %+v", c.peer, c.path, d)
		}
		if f := HeadersOf(&plan, &d); f != (Fields{RetryAfter: wait}) {
			t.Errorf("%s %s: tells %+v", c.peer, c.path, f)
		}
		if d = plan.Fail(fmt.Errorf("a store: %w", counter.ErrUnavailable)); d.Denied() && c.path != "/" {
			t.Errorf("%s %s: without the store: %+v", c.peer, c.path, d)
		}
	}
}

// TestLogOnly: a log_only rule denies nothing even over its limit. Within its limit it charges only
// requests that are admitted.
func TestLogOnly(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{
		{Name: "shadow", Limits: limittest.All(t, "1/1m"), Action: policy.ActionLogOnly},
		{Name: "real", Limits: limittest.All(t, "2/1m")},
	}})
	store := newCounters()
	for i, want := range []map[string]string{
		{"n/shadow": "allowed", "n/real": "allowed"},
		{"n/shadow": "shadow_denied", "n/real": "allowed"},
		{"n/shadow": "shadow_denied", "n/real": "denied"},
	} {
		plan, d := store.ask(t, get("192.0.2.1", "/"), rs)
		wantOutcomes(t, plan, want)
		if d.Rule != "real" || d.Denied() != (i == 2) {
			t.Errorf("%d: %+v", i, d)
		}
	}
}

// TestMissingUnderLogOnly: a log_only rule with missing: deny does not deny a request without the
// dimension, but reports that it would.
func TestMissingUnderLogOnly(t *testing.T) {
	watched := policy.Rule{Name: "watched", Per: []policy.Dimension{{Kind: policy.PerAttr, Name: "user"}}, Missing: policy.MissingDeny,
		Action: policy.ActionLogOnly, Limits: limittest.All(t, "1/1m")}
	alone := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{watched}})
	if d := wantInPlay(t, alone, get("192.0.2.1", "/"), map[string]string{"n/watched": "shadow_denied"}); d.Denied() ||
		d.Outcome != OutcomeAllowed {
		t.Errorf("alone: %s, status %d", d.Outcome, d.Status)
	}
	both := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{watched, {Name: "api", Limits: limittest.All(t, "1/1m")}}})
	store := newCounters()
	for _, want := range []string{"allowed", "denied"} {
		plan, d := store.ask(t, get("192.0.2.1", "/"), both)
		wantOutcomes(t, plan, map[string]string{"n/watched": "shadow_denied", "n/api": want})
		if d.Outcome.String() != want {
			t.Errorf("%s, want %s", d.Outcome, want)
		}
	}
	plan := new(Plan)
	plan.Add(both, get("192.0.2.1", "/"))
	plan.Degrade()
	wantOutcomes(t, plan, map[string]string{"n/watched": "shadow_denied", "n/api": "degraded_allowed"})
}

// TestOnErrorOfAPolicyThatSaysNothing: if a policy does not set on_error, its rules get the default
// explicitly, because the fallback store depends on it.
func TestOnErrorOfAPolicyThatSaysNothing(t *testing.T) {
	for said, want := range map[counter.OnError]counter.OnError{counter.OnErrorInherit: counter.OnErrorAllow, counter.OnErrorAllow: counter.OnErrorAllow, counter.OnErrorDeny: counter.OnErrorDeny, counter.OnErrorLocal: counter.OnErrorLocal} {
		rs := mustCompile(t, policy.Policy{Name: "n", OnError: said, Rules: []policy.Rule{{Name: "all", Limits: limittest.All(t, "1/1m")}}})
		if got := rs.rules[0].onError; got != want {
			t.Errorf("on_error %v of the policy is %v of its rule, want %v", said, got, want)
		}
	}
}
