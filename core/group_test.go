// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"net/netip"
	"testing"
)

// wantInPlay asks and compares the rules in play with what became of them.
func wantInPlay(t *testing.T, rs *Ruleset, a Attributes, want map[string]string) Decision {
	t.Helper()
	plan, d := newCounters().ask(t, a, rs)
	wantOutcomes(t, plan, want)
	return d
}

// TestGroupHasOneWinner: lower priority, then endpoint-specific, then document order.
func TestGroupHasOneWinner(t *testing.T) {
	l := limits(t, "10/1m")
	header := []HeaderMatch{{Name: "X-Plan", Values: []string{"gold"}}}
	rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{
		{Name: "general", Group: "g", Limits: l},
		{Name: "gold", Group: "g", Limits: l, Match: Match{Header: header}},
		{Name: "a", Group: "g", Limits: l, Match: Match{Path: []string{"/a"}}},
		{Name: "a2", Group: "g", Limits: l, Match: Match{Path: []string{"/a"}}},
		{Name: "first", Group: "g", Priority: -1, Limits: l, Match: Match{Path: []string{"/first"}}},
		{Name: "last", Group: "g", Priority: 1, Limits: l, Match: Match{Path: []string{"/*"}}},
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

// TestEnforceFirst: all rules are one group.
func TestEnforceFirst(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Enforce: EnforceFirst, Rules: []Rule{
		{Name: "all", Limits: limits(t, "1/1m"), Priority: 1},
		{Name: "health", Action: ActionAllow, Match: Match{Path: []string{"/health"}}},
		{Name: "no", Action: ActionBlock, Match: Match{Path: []string{"/health/no"}}},
	}})
	wantInPlay(t, rs, get("192.0.2.1", "/x"), map[string]string{"n/all": "allowed"})
	d := wantInPlay(t, rs, get("192.0.2.1", "/health"), map[string]string{"n/health": "exempt"})
	if d.Outcome != OutcomeExempt || d.Refused() {
		t.Errorf("allow: %+v", d)
	}
	d = wantInPlay(t, rs, get("192.0.2.1", "/health/no"), map[string]string{"n/no": "blocked"})
	if d.Status != 403 {
		t.Errorf("block: %+v", d)
	}
}

// TestAllowExemptsFromItsGroupOnly: rules of no group and of another still count.
func TestAllowExemptsFromItsGroupOnly(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{
		{Name: "limited", Group: "g", Limits: limits(t, "1/1m")},
		{Name: "free", Group: "g", Action: ActionAllow, Match: Match{Path: []string{"/free"}}},
		{Name: "beside", Limits: limits(t, "1/1m")},
	}})
	d := wantInPlay(t, rs, get("192.0.2.1", "/free"), map[string]string{"n/free": "exempt", "n/beside": "allowed"})
	if d.Outcome != OutcomeAllowed || d.Rule != "beside" {
		t.Errorf("%+v", d)
	}
}

// TestBlockIsStrongest: it wins against its group, against exempt, and against a missing dimension.
func TestBlockIsStrongest(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Exempt: []Listed{{IP: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}},
		Rules: []Rule{
			{Name: "free", Group: "g", Priority: -5, Action: ActionAllow, Match: Match{Path: []string{"/*"}}},
			{Name: "no", Group: "g", Action: ActionBlock, Match: Match{Method: []string{"DELETE"}}},
			{Name: "tenant", Limits: limits(t, "1/1m"), Missing: MissingDeny, Per: []Dimension{{Kind: PerAttr, Name: "t"}}},
		}})
	a := get("192.0.2.1", "/x")
	wantInPlay(t, rs, a, map[string]string{"n/free": "exempt", "n/tenant": "exempt"})
	a.method = "DELETE"
	if d := wantInPlay(t, rs, a, map[string]string{"n/no": "blocked"}); d.Outcome != OutcomeBlocked || d.Rule != "no" {
		t.Errorf("%+v", d)
	}
}

// TestMissing: what stands in for a header that is not sent, or sent empty.
func TestMissing(t *testing.T) {
	for _, c := range []struct {
		missing Missing
		key     string
		outcome string
	}{
		{MissingClient, "rl1:n:r:{ip:192.0.2.1}:60s:sw", "allowed"},
		{MissingShare, "rl1:n:r:{header.x-tenant:}:60s:sw", "allowed"},
		{MissingSkip, "", ""},
		{MissingDeny, "", "missing"},
	} {
		rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{{Name: "r", Limits: limits(t, "9/1m"), Missing: c.missing,
			Unverified: true, Per: []Dimension{{Kind: PerHeader, Name: "x-tenant"}}}}})
		for _, header := range []map[string]string{nil, {"X-Tenant": ""}} {
			plan, d := newCounters().ask(t, &client{peer: netip.MustParseAddr("192.0.2.1"), header: header}, rs)
			if got := len(plan.Checks()); got > 1 || (c.key == "") != (got == 0) {
				t.Fatalf("missing %d: %d checks", c.missing, got)
			}
			if c.key != "" {
				wantKeys(t, plan, c.key)
			}
			if outcomes(plan)["n/r"] != c.outcome || (d.Status == 403) != (c.outcome == "missing") {
				t.Errorf("missing %d: %v, %+v", c.missing, outcomes(plan), d)
			}
		}
		plan, _ := newCounters().ask(t, &client{header: map[string]string{"X-Tenant": "acme"}}, rs)
		wantKeys(t, plan, "rl1:n:r:{header.x-tenant:acme}:60s:sw")
	}
}

// TestSkippedDoesNotCompete: the next of the group wins instead; one that denies does compete.
func TestSkippedDoesNotCompete(t *testing.T) {
	per := []Dimension{{Kind: PerAttr, Name: "user"}}
	for missing, want := range map[Missing]map[string]string{
		MissingSkip: {"n/client": "allowed", "n/beside": "allowed"},
		MissingDeny: {"n/user": "missing", "n/beside": "uncharged"},
	} {
		rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{
			{Name: "user", Group: "g", Limits: limits(t, "1/1m"), Per: per, Missing: missing},
			{Name: "client", Group: "g", Limits: limits(t, "1/1m")},
			{Name: "beside", Limits: limits(t, "1/1m")},
		}})
		wantInPlay(t, rs, get("192.0.2.1", "/"), want)
	}
}

// TestSpellingChoosesNoWinner: of a path that servers read as /free or as /api, neither group winner nor cost is the
// client's to choose.
func TestSpellingChoosesNoWinner(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{
		{Name: "free", Group: "g", Priority: 1, Limits: limits(t, "1000/1m"), Match: Match{Path: []string{"/free/*"}},
			Cost: []Cost{{Match: Match{Path: []string{"/free/cheap"}}, N: 1}, {N: 7}}},
		{Name: "api", Group: "g", Priority: 2, Limits: limits(t, "10/1m"), Match: Match{Path: []string{"/api/*"}}},
		{Name: "rest", Group: "g", Priority: 3, Limits: limits(t, "10/1m")},
	}})
	wantInPlay(t, rs, get("192.0.2.1", "/free/cheap"), map[string]string{"n/free": "allowed"})
	two := get("192.0.2.1", "/free/..\\api\\x")
	plan, _ := newCounters().ask(t, two, rs)
	if len(plan.request.readings) < 2 {
		t.Fatalf("%s is read in %d ways", two.path, len(plan.request.readings))
	}
	wantOutcomes(t, plan, map[string]string{"n/free": "allowed", "n/api": "allowed", "n/rest": "allowed"})
	if cost := plan.Checks()[0].Cost; cost != 7 {
		t.Errorf("cost is %d", cost)
	}
}

// TestDegrade: of the limits a request is under the strictest holds, and log_only refuses nothing.
func TestDegrade(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{
		{Name: "open", Limits: limits(t, "1/1m")},
		{Name: "closed", Limits: limits(t, "1/1m"), OnError: OnErrorDeny, Match: Match{Path: []string{"/pay"}}},
	}})
	strict := mustCompile(t, Policy{Name: "s", OnError: OnErrorDeny, Rules: []Rule{
		{Name: "shadow", Limits: limits(t, "1/1m"), Action: ActionLogOnly},
		{Name: "open", Limits: limits(t, "1/1m"), OnError: OnErrorAllow},
		{Name: "closed", Limits: limits(t, "1/1m"), Match: Match{Path: []string{"/pay"}}},
	}, Exempt: []Listed{{IP: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}})
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
		if f := plan.Headers(&d); f != (Fields{}) {
			t.Errorf("%s %s: tells %+v", c.peer, c.path, f)
		}
	}
}

// TestOverload: where too many wait for the store, a request is refused whatever on_error says, and log_only refuses
// nothing.
func TestOverload(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{
		{Name: "shadow", Limits: limits(t, "1/1m"), Action: ActionLogOnly},
		{Name: "open", Limits: limits(t, "1/1m"), Match: Match{Path: []string{"/a", "/c"}}},
		{Name: "local", Limits: limits(t, "1/1m"), OnError: OnErrorLocal, Match: Match{Path: []string{"/b", "/c"}}},
	}, Exempt: []Listed{{IP: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}})
	for _, c := range []struct {
		peer, path, rule string
		want             map[string]string
	}{
		{"192.0.2.1", "/", "", map[string]string{"n/shadow": "degraded_allowed"}},
		{"192.0.2.1", "/a", "open", map[string]string{"n/shadow": "uncharged", "n/open": "degraded_denied"}},
		{"192.0.2.1", "/b", "local", map[string]string{"n/shadow": "uncharged", "n/local": "degraded_denied"}},
		{"192.0.2.1", "/c", "open", map[string]string{"n/shadow": "uncharged", "n/open": "degraded_denied", "n/local": "degraded_denied"}},
		{"10.0.0.1", "/a", "", map[string]string{"n/shadow": "exempt", "n/open": "exempt"}},
	} {
		var plan Plan
		plan.Add(rs, get(c.peer, c.path))
		d := plan.Fail(fmt.Errorf("a store: %w", ErrOverloaded))
		wantOutcomes(t, &plan, c.want)
		status, wait := 0, ""
		if c.rule != "" {
			status, wait = 503, "1"
		}
		if d.Status != status || d.Rule != c.rule || d.Limit != nil {
			t.Errorf("%s %s: %+v", c.peer, c.path, d)
		}
		if f := plan.Headers(&d); f != (Fields{RetryAfter: wait}) {
			t.Errorf("%s %s: tells %+v", c.peer, c.path, f)
		}
		if d = plan.Fail(fmt.Errorf("a store: %w", ErrUnavailable)); d.Refused() && c.path != "/" {
			t.Errorf("%s %s: without the store: %+v", c.peer, c.path, d)
		}
	}
}

// TestLogOnly: over its limit it refuses nothing, and within it it charges only what is admitted.
func TestLogOnly(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{
		{Name: "shadow", Limits: limits(t, "1/1m"), Action: ActionLogOnly},
		{Name: "real", Limits: limits(t, "2/1m")},
	}})
	store := newCounters()
	for i, want := range []map[string]string{
		{"n/shadow": "allowed", "n/real": "allowed"},
		{"n/shadow": "shadow_denied", "n/real": "allowed"},
		{"n/shadow": "shadow_denied", "n/real": "denied"},
	} {
		plan, d := store.ask(t, get("192.0.2.1", "/"), rs)
		wantOutcomes(t, plan, want)
		if d.Rule != "real" || d.Refused() != (i == 2) {
			t.Errorf("%d: %+v", i, d)
		}
	}
}

// TestMissingUnderLogOnly: a log_only rule refuses nothing, not even what lacks a dimension under missing: deny; it reports
// that it would.
func TestMissingUnderLogOnly(t *testing.T) {
	watched := Rule{Name: "watched", Per: []Dimension{{Kind: PerAttr, Name: "user"}}, Missing: MissingDeny,
		Action: ActionLogOnly, Limits: limits(t, "1/1m")}
	alone := mustCompile(t, Policy{Name: "n", Rules: []Rule{watched}})
	if d := wantInPlay(t, alone, get("192.0.2.1", "/"), map[string]string{"n/watched": "shadow_denied"}); d.Refused() ||
		d.Outcome != OutcomeAllowed {
		t.Errorf("alone: %s, status %d", d.Outcome, d.Status)
	}
	both := mustCompile(t, Policy{Name: "n", Rules: []Rule{watched, {Name: "api", Limits: limits(t, "1/1m")}}})
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

// TestOnErrorOfAPolicyThatSaysNothing: the default reaches the checks by its name, for what stands in for a store goes by it.
func TestOnErrorOfAPolicyThatSaysNothing(t *testing.T) {
	for said, want := range map[OnError]OnError{OnErrorInherit: OnErrorAllow, OnErrorAllow: OnErrorAllow, OnErrorDeny: OnErrorDeny, OnErrorLocal: OnErrorLocal} {
		rs := mustCompile(t, Policy{Name: "n", OnError: said, Rules: []Rule{{Name: "all", Limits: limits(t, "1/1m")}}})
		if got := rs.rules[0].onError; got != want {
			t.Errorf("on_error %v of the policy is %v of its rule, want %v", said, got, want)
		}
	}
}
