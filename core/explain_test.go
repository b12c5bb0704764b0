// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/internal/test/limittest"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/core/policy"
)

// explainedPolicy returns a policy whose rules have many different fates.
func explainedPolicy(t *testing.T, who *knownClient) *Ruleset {
	t.Helper()
	l := limittest.All(t, "10/1m")
	return mustCompile(t, policy.Policy{Name: "shop", Identify: []policy.Identify{{Kind: policy.IdentifyJWT, Verifier: who},
		{Kind: policy.IdentifyHeader, Name: "x-user", Unverified: true}, {Kind: policy.IdentifyIP}},
		Exempt: []policy.Listed{{User: []string{"nobody"}}, {User: []string{"admin"}, Reason: "on call"}},
		Block:  []policy.Listed{{IP: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}, Reason: "abuse"}},
		Rules: []policy.Rule{
			{Name: "general", Group: "g", Limits: l},
			{Name: "gold", Group: "g", Limits: l, Match: policy.Match{Tier: []string{"gold"}}},
			{Name: "first", Group: "g", Priority: -1, Limits: limittest.All(t, "20/1m"), Match: policy.Match{Path: []string{"/first"}}},
			{Name: "a", Group: "g", Limits: l, Match: policy.Match{Path: []string{"/a"}}},
			{Name: "a2", Group: "g", Limits: l, Match: policy.Match{Path: []string{"/a"}}},
			{Name: "zone", Limits: l, Per: []policy.Dimension{{Kind: policy.PerMethod}, {Kind: policy.PerAttr, Name: "zone"}}, Missing: policy.MissingSkip},
			{Name: "must", Limits: l, Per: []policy.Dimension{{Kind: policy.PerTenant}}, Missing: policy.MissingDeny, Match: policy.Match{Path: []string{"/must"}}},
			{Name: "tiered", PerNone: true, Limits: l, Tiers: map[string]policy.LimitSet{"gold": {Unlimited: true},
				"silver": {Limits: limittest.All(t, "50/1m", "500/day")}}, Cost: []policy.Cost{{N: 3}}},
			{Name: "no", Action: policy.ActionBlock, Match: policy.Match{Path: []string{"/no"}}},
		}})
}

// explain runs a traced plan and returns the explanation of the first policy.
func explain(t *testing.T, a policy.Attributes, policies ...*Ruleset) Explanation {
	t.Helper()
	plan := new(Plan)
	plan.Trace()
	for _, rs := range policies {
		plan.Add(rs, a)
	}
	newCounters().take(plan.Checks(), plan.Results())
	plan.Decide()
	explanations := plan.Explain()
	if len(explanations) != len(policies) {
		t.Fatalf("%d explanations of %d policies", len(explanations), len(policies))
	}
	plan.Reset()
	if plan.Explain() != nil {
		t.Error("after Reset something is explained")
	}
	return explanations[0]
}

// ruleFates returns, by the name of a rule, why the rule applies to the request or not.
func ruleFates(e Explanation) map[string]string {
	all := map[string]string{}
	for _, r := range e.Rules {
		if all[r.Name] = r.Fate; r.Limits != "" {
			all[r.Name] += " | " + r.Limits
		}
	}
	return all
}

// TestExplainRules: the explanation states for each matching rule why it is in play or not.
func TestExplainRules(t *testing.T) {
	user := func(id, tier string) *knownClient {
		return &knownClient{&policy.Identity{Kind: "user", ID: id, User: id, Tier: tier}, policy.CredentialValid}
	}
	mine := user("u", "gold")
	mine.identity.Overrides = parseOwnLimits(t, map[string]string{"general": "1/1m", "tiered": "2/1m"})
	skipped := "skipped: the request lacks attr:zone"
	for _, c := range []struct {
		who  *knownClient
		path string
		want map[string]string
	}{
		{user("u", ""), "/", map[string]string{"general": "applies | the rule", "zone": skipped, "tiered": "applies | the rule"}},
		{user("u", "gold"), "/", map[string]string{"general": "lost to gold: it is tier-specific, which is before general",
			"gold": "applies | the rule", "zone": skipped, "tiered": "applies | tier gold"}},
		{user("u", "silver"), "/first", map[string]string{"general": "lost to first: its priority -1 is before 0",
			"first": "applies | the rule", "zone": skipped, "tiered": "applies | tier silver"}},
		{user("u", "gold"), "/a", map[string]string{"general": "lost to a: it is endpoint-specific, which is before general",
			"gold": "lost to a: it is endpoint-specific, which is before tier-specific", "a": "applies | the rule",
			"a2": "lost to a: it is written first", "zone": skipped, "tiered": "applies | tier gold"}},
		{user("admin", ""), "/", map[string]string{"general": "exempt: exempt[1] lists the client", "zone": skipped,
			"tiered": "exempt: exempt[1] lists the client"}},
		{user("u", ""), "/must", map[string]string{"general": "applies | the rule", "zone": skipped,
			"must": "denied: the request lacks tenant", "tiered": "applies | the rule"}},
		{user("u", ""), "/no", map[string]string{"general": "not checked: the request is denied", "no": "applies: blocks the request",
			"zone": "not checked: the request is denied", "tiered": "not checked: the request is denied"}},
		{&knownClient{nil, policy.CredentialRevoked}, "/", map[string]string{"general": "not checked: the request is denied",
			"zone": "not checked: the request is denied", "tiered": "not checked: the request is denied"}},
		{mine, "/", map[string]string{"general": "lost to gold: it is tier-specific, which is before general",
			"gold": "applies | the rule", "zone": skipped, "tiered": "applies | this client's own"}},
	} {
		a := get("192.0.2.7", c.path)
		a.header = map[string]string{"Authorization": "Bearer x"}
		e := explain(t, a, explainedPolicy(t, c.who))
		if diff := cmp.Diff(c.want, ruleFates(e)); diff != "" {
			t.Errorf("%s by %+v (-want +got):\n%s", c.path, c.who.identity, diff)
		}
	}
}

// TestExplainClient: the explanation states which client was found, by which method, at which
// address, and with which tier.
func TestExplainClient(t *testing.T) {
	valid := &policy.Identity{Kind: "user", ID: "u", User: "u"}
	for _, c := range []struct {
		who     knownClient
		header  map[string]string
		peer    string
		methods string
		denied  string
		Entry   string
	}{
		{who: knownClient{valid, policy.CredentialValid}, header: map[string]string{"Authorization": "Bearer x"}, peer: "192.0.2.7",
			methods: "jwt: found user u; header X-User: not tried; ip: not tried"},
		{who: knownClient{nil, policy.CredentialExpired}, header: map[string]string{"Authorization": "Bearer x"}, peer: "192.0.2.7",
			methods: "jwt: expired; header X-User: absent; ip: found ip 192.0.2.7"},
		{header: map[string]string{"X-User": "v"}, peer: "192.0.2.7",
			methods: "jwt: absent; header X-User: found header.x-user v; ip: not tried"},
		{header: map[string]string{"X-User": strings.Repeat("v", 300)}, peer: "192.0.2.7",
			methods: "jwt: absent; header X-User: found header.x-user-sha256 HASH; ip: not tried"},
		{methods: "jwt: absent; header X-User: absent; ip: absent"},
		{who: knownClient{nil, policy.CredentialRevoked}, header: map[string]string{"Authorization": "Bearer x"}, peer: "192.0.2.7",
			methods: "jwt: rejected: revoked; header X-User: not tried; ip: not tried", denied: "its credential is revoked"},
		{peer: "198.51.100.7", methods: "jwt: absent; header X-User: absent; ip: found ip 198.51.100.7",
			denied: "blocked by block[0]", Entry: "block[0]: abuse"},
	} {
		a := &client{header: c.header}
		address := "unknown, as the proxy knows it"
		if c.peer != "" {
			a.peer, address = netip.MustParseAddr(c.peer), c.peer+", as the proxy knows it"
		}
		e := explain(t, a, explainedPolicy(t, &c.who))
		var methods []string
		for _, m := range e.Methods {
			methods = append(methods, m.Method+": "+m.Fate)
		}
		got := strings.Join(methods, "; ")
		if strings.HasSuffix(e.Client.Kind, policy.HashSuffix) {
			got = strings.ReplaceAll(got, e.Client.ID, "HASH")
		}
		if got != c.methods || e.Denied != c.denied || e.Listed != c.Entry || e.Address != address || e.Policy != "shop" {
			t.Errorf("%+v\nwant %s, refused %q, listed %q", e, c.methods, c.denied, c.Entry)
		}
		if len(e.Credentials) != map[bool]int{true: 1}[c.header["Authorization"] != ""] {
			t.Errorf("credentials: %+v", e.Credentials)
		}
	}
}

// TestExplainNumbers: the explanation has keys, numbers, cost and the store's results, under the
// names that clients see.
func TestExplainNumbers(t *testing.T) {
	who := &knownClient{&policy.Identity{Kind: "user", ID: "u", User: "u", Tier: "silver"}, policy.CredentialValid}
	a := get("192.0.2.7", "/")
	a.header, a.now = map[string]string{"Authorization": "Bearer x"}, newCounters().now
	other := mustCompile(t, policy.Policy{Name: "other", Disabled: true})
	e := explain(t, a, explainedPolicy(t, who), other)
	r := e.Rules[len(e.Rules)-1]
	var keys []string
	for _, c := range r.Checks {
		keys = append(keys, string(c.Key)+" "+c.Limit.String())
	}
	if diff := cmp.Diff([]string{"rl1:shop:tiered:{tiered}:60s:sw 50/1m", "rl1:shop:tiered:{tiered}:day:fw 500/day"}, keys); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if r.Cost != 3 || r.Outcome != OutcomeAllowed || !r.Hidden || len(r.Results) != 2 || r.Results[0].Remaining != 47 ||
		strings.Join(r.Policies, " ") != "tiered-1m tiered-day" || r.Index != 7 {
		t.Errorf("%+v", r)
	}
}

// TestExplainAnotherPolicysBlock: if another policy blocks the request, the explanation reports it.
func TestExplainAnotherPolicysBlock(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "app", Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "1/1m")}}})
	no := mustCompile(t, policy.Policy{Name: "site", Rules: []policy.Rule{{Name: "no", Action: policy.ActionBlock}}})
	e := explain(t, get("192.0.2.1", "/"), rs, no)
	if len(e.Rules) != 1 || e.Rules[0].Fate != "not checked: another policy blocks the request" {
		t.Errorf("before it: %+v", e)
	}
	plan := new(Plan)
	plan.Trace()
	plan.Add(no, get("192.0.2.1", "/"))
	plan.Add(rs, get("192.0.2.1", "/"))
	if said := plan.Explain(); said[0].Denied != "blocked by the rule no" || said[1].Denied != "blocked by another policy, site" {
		t.Errorf("after it: %+v", said)
	}
}

// TestExplainWithoutTheStore: if a request is denied without the store, the explanation has no
// numbers, not even 0.
func TestExplainWithoutTheStore(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Penalty: strictPenalty(), Rules: []policy.Rule{{Name: "plain", Limits: limittest.All(t, "10/1m")},
		{Name: "spread", Shards: 5, Limits: limittest.All(t, "10/1m")},
		{Name: "must", Per: []policy.Dimension{{Kind: policy.PerAttr, Name: "zone"}}, Missing: policy.MissingDeny, Limits: limittest.All(t, "10/1m")}}})
	e := explain(t, get("192.0.2.1", "/"), rs)
	if e.Denied == "" || e.Penalty != nil || len(e.Rules) != 3 {
		t.Errorf("%+v", e)
	}
	for _, r := range e.Rules {
		if len(r.Checks)+len(r.Results)+len(r.Limited)+len(r.Used)+r.Shards != 0 {
			t.Errorf("%s: %+v", r.Name, r)
		}
	}
}

// TestExplainReadings: if servers read a path in two ways, rules that match only one reading are in
// play together with the winner of the other reading.
func TestExplainReadings(t *testing.T) {
	l := limittest.All(t, "10/1m")
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{
		{Name: "free", Group: "g", Priority: 1, Limits: l, Match: policy.Match{Path: []string{"/free/*"}}},
		{Name: "api", Group: "g", Priority: 2, Limits: l, Match: policy.Match{Path: []string{"/api/*"}}},
		{Name: "rest", Group: "g", Priority: 3, Limits: l},
		{Name: "last", Group: "g", Priority: 4, Limits: l},
	}})
	const beside = "applies: the path has several readings, and the rule matches some of them | the rule"
	want := map[string]string{"free": beside, "api": beside, "rest": "applies | the rule",
		"last": "lost to rest: its priority 3 is before 4"}
	if diff := cmp.Diff(want, ruleFates(explain(t, get("192.0.2.1", "/free/..\\api\\x"), rs))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestExplainValues: if a header has several values, rules that match only some of them exclude and
// replace no others.
func TestExplainValues(t *testing.T) {
	l := limittest.All(t, "10/1m")
	small := policy.Match{Path: []string{"/*"}, Header: []policy.HeaderMatch{{Name: "X-Size", Values: []string{"small"}}}}
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{
		{Name: "won", Group: "g", Limits: l, Match: small},
		{Name: "rest", Group: "g", Limits: l},
		{Name: "instead", Limits: l, Match: small, Replaces: []string{"all"}},
		{Name: "all", Limits: l},
	}})
	const beside = "applies: a header has several values, and the rule matches some of them | the rule"
	want := map[string]string{"won": beside, "rest": "applies | the rule", "instead": beside, "all": "applies | the rule"}
	a := get("192.0.2.1", "/x;y")
	a.header = map[string]string{"X-Size": "small, large"}
	if diff := cmp.Diff(want, ruleFates(explain(t, a, rs))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
