// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"github.com/penstock/penstock/internal/test/limittest"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// client is a request; the default is GET / of example.com.
type client struct {
	path, method, host string
	peer               netip.Addr
	header, attr       map[string]string
	query              string
	remote             netip.Addr
	now                counter.Micros
}

func (c *client) Path() string {
	if c.path == "" {
		return "/"
	}
	return c.path
}

func (c *client) Method() string {
	if c.method == "" {
		return "GET"
	}
	return c.method
}

func (c *client) Host() string {
	if c.host == "" {
		return "example.com"
	}
	return c.host
}

func (c *client) Header(name string) (string, bool) { v, ok := c.header[name]; return v, ok }
func (c *client) Peer() netip.Addr                  { return c.peer }
func (c *client) Query() string                     { return c.query }
func (c *client) Remote() netip.Addr                { return c.remote }
func (c *client) Now() counter.Micros               { return c.now }
func (c *client) Attr(name string) (string, bool)   { v, ok := c.attr[name]; return v, ok }

// get returns a request from an address.
func get(peer, path string) *client { return &client{path: path, peer: netip.MustParseAddr(peer)} }

// mapStore is a store that keeps its counters in a map and applies Decide.
type mapStore struct {
	now   counter.Micros
	slots map[string]counter.Slot
}

func (c *mapStore) take(checks []counter.Check, results []counter.Result) {
	if c.slots == nil {
		c.slots = map[string]counter.Slot{}
	}
	slots := make([]counter.Slot, len(checks))
	for i := range checks {
		slots[i] = c.slots[string(checks[i].Key)]
	}
	counter.Decide(c.now, checks, slots, results)
	for i := range checks {
		if slots[i].Write { // a slot that only a denial changed is dropped, as in real stores
			c.slots[string(checks[i].Key)] = slots[i]
		}
	}
}

// mapStore.ask sends a request through the policies and returns the plan with its decision.
func (c *mapStore) ask(t *testing.T, a policy.Attributes, policies ...*Ruleset) (*Plan, Decision) {
	t.Helper()
	plan := new(Plan)
	for _, rs := range policies {
		plan.Add(rs, a)
	}
	if err := counter.ValidateChecks(plan.Checks(), plan.Results()); err != nil {
		t.Fatal(err)
	}
	c.take(plan.Checks(), plan.Results())
	return plan, plan.Decide()
}

func newCounters() *mapStore {
	return &mapStore{now: 1_700_000_000*counter.Second + 300*counter.Millisecond}
}

func mustCompile(tb testing.TB, p policy.Policy) *Ruleset {
	tb.Helper()
	rs, err := Compile(p)
	if err != nil {
		tb.Fatal(err)
	}
	return rs
}

// outcomesByRule returns the outcome of each rule by name.
func outcomesByRule(p *Plan) map[string]string {
	names := map[string]string{}
	for _, o := range p.Outcomes() {
		names[o.Ruleset.Name()+"/"+o.Ruleset.RuleName(o.Index)] = o.Outcome.String()
	}
	return names
}

func wantOutcomes(t *testing.T, p *Plan, want map[string]string) {
	t.Helper()
	if diff := cmp.Diff(want, outcomesByRule(p)); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
}

func wantKeys(t *testing.T, p *Plan, want ...string) {
	t.Helper()
	var got []string
	for _, c := range p.Checks() {
		got = append(got, string(c.Key))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
}

// TestEveryMatchingRuleCounts tests that a request is charged to each rule that matches it, and
// that a denied request is charged to none of them.
func TestEveryMatchingRuleCounts(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "shop", Rules: []policy.Rule{
		{Name: "wide", Limits: limittest.All(t, "2/1m")},
		{Name: "off", Limits: limittest.All(t, "1/1m"), Disabled: true},
		{Name: "narrow", Limits: limittest.All(t, "1/1m"), Match: policy.Match{Path: []string{"/a"}}},
	}})
	store := newCounters()
	plan, d := store.ask(t, get("192.0.2.1", "/a"), rs)
	if d.Outcome != OutcomeAllowed || d.Denied() || d.Rule != "narrow" || d.Remaining != 0 || d.Used != 1 {
		t.Errorf("first: %+v", d)
	}
	wantOutcomes(t, plan, map[string]string{"shop/wide": "allowed", "shop/narrow": "allowed"})

	plan, d = store.ask(t, get("192.0.2.1", "/a"), rs)
	if d.Outcome != OutcomeDenied || d.Status != 429 || d.Rule != "narrow" || d.RetryAfter <= 0 {
		t.Errorf("second: %+v", d)
	}
	wantOutcomes(t, plan, map[string]string{"shop/wide": "uncharged", "shop/narrow": "denied"})

	_, d = store.ask(t, get("192.0.2.1", "/b"), rs)
	if d.Outcome != OutcomeAllowed || d.Rule != "wide" || d.Remaining != 0 {
		t.Errorf("third, which the second must not have used up: %+v", d)
	}
	if d.Client.Kind != "ip" || d.Client.ID != "192.0.2.1" {
		t.Errorf("client is %+v", d.Client)
	}
	if rs.Len() != 3 || rs.RuleName(1) != "off" {
		t.Errorf("a disabled rule lost its index")
	}
}

func TestNoRuleIsFor(t *testing.T) {
	store := newCounters()
	for name, p := range map[string]policy.Policy{
		"empty":    {},
		"disabled": {Disabled: true, Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "1/1m")}}},
		"else":     {Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "1/1m"), Match: policy.Match{Path: []string{"/x"}}}}},
	} {
		plan, d := store.ask(t, get("192.0.2.1", "/"), mustCompile(t, p))
		if d.Outcome != OutcomeNone || d.Denied() || len(plan.Checks()) != 0 || len(plan.Outcomes()) != 0 {
			t.Errorf("%s: %+v", name, d)
		}
		if f := HeadersOf(plan, &d); f != (Fields{}) {
			t.Errorf("%s: tells %+v", name, f)
		}
	}
}

// TestSeveralPolicies: the checks of several policies are sent in one call. Each policy counts in
// its own namespace and has its own exemptions, and a block in any of them denies.
func TestSeveralPolicies(t *testing.T) {
	app := mustCompile(t, policy.Policy{Name: "app", Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "1/1m")}},
		Exempt: []policy.Listed{{IP: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}})
	site := mustCompile(t, policy.Policy{Name: "site", Rules: []policy.Rule{
		{Name: "r", Limits: limittest.All(t, "5/1m")},
		{Name: "no", Action: policy.ActionBlock, Match: policy.Match{Path: []string{"/no"}}},
	}})
	store := newCounters()
	plan, d := store.ask(t, get("192.0.2.1", "/"), app, site, app)
	wantKeys(t, plan, "rl1:app:r:{ip:192.0.2.1}:60s:sw", "rl1:site:r:{ip:192.0.2.1}:60s:sw")
	if d.Outcome != OutcomeAllowed {
		t.Errorf("first: %+v", d)
	}
	plan, _ = store.ask(t, get("192.0.2.1", "/"), app, site)
	wantOutcomes(t, plan, map[string]string{"app/r": "denied", "site/r": "uncharged"})

	plan, d = store.ask(t, get("10.1.2.3", "/"), app, site)
	wantKeys(t, plan, "rl1:site:r:{ip:10.1.2.3}:60s:sw")
	wantOutcomes(t, plan, map[string]string{"app/r": "exempt", "site/r": "allowed"})
	if d.Outcome != OutcomeAllowed {
		t.Errorf("exempt by one of two: %+v", d)
	}
	for _, order := range [][]*Ruleset{{app, site}, {site, app}} {
		plan, d = store.ask(t, get("10.1.2.3", "/no"), order...)
		wantKeys(t, plan)
		wantOutcomes(t, plan, map[string]string{"site/no": "blocked"})
		if d.Outcome != OutcomeBlocked || d.Status != 403 || d.Rule != "no" {
			t.Errorf("blocked: %+v", d)
		}
	}
}

// TestTooManyChecks: several policies together can need more checks than a store accepts at once;
// the request is then denied.
func TestTooManyChecks(t *testing.T) {
	var policies []*Ruleset
	for _, name := range []string{"a", "b"} {
		p := policy.Policy{Name: name}
		for i := range 33 {
			p.Rules = append(p.Rules, policy.Rule{Name: fmt.Sprintf("r%d", i), Limits: limittest.All(t, "1/1m")})
		}
		policies = append(policies, mustCompile(t, p))
	}
	plan, d := newCounters().ask(t, get("192.0.2.1", "/"), policies...)
	if d.Status != 503 || d.Outcome != OutcomeDegradedDenied || len(plan.Checks()) != 0 {
		t.Errorf("%d checks: %+v", len(plan.Checks()), d)
	}
	if degraded := plan.Degrade(); degraded.Status != 503 {
		t.Errorf("without the store: %+v", degraded)
	}
}

func TestPlanIsReusable(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "1/1m")}}})
	var plan Plan
	for _, peer := range []string{"192.0.2.1", "2001:db8::1", "192.0.2.3"} {
		plan.Reset()
		plan.Add(rs, get(peer, "/"))
		if len(plan.Checks()) != 1 || len(plan.Results()) != 1 {
			t.Fatalf("%s: %d checks, %d results", peer, len(plan.Checks()), len(plan.Results()))
		}
	}
	wantKeys(t, &plan, "rl1:n:r:{ip:192.0.2.3}:60s:sw")
	plan.Reset()
	if len(plan.Checks()) != 0 || plan.Identity().Kind != "" {
		t.Errorf("after Reset: %d checks for %v", len(plan.Checks()), plan.Identity())
	}
}
