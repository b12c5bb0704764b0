// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// explained is a policy in which much can happen to a rule.
func explained(t *testing.T, who *knownClient) *Ruleset {
	t.Helper()
	l := limits(t, "10/1m")
	return mustCompile(t, Policy{Name: "shop", Identify: []Identify{{Kind: IdentifyJWT, Verifier: who},
		{Kind: IdentifyHeader, Name: "x-user", Unverified: true}, {Kind: IdentifyIP}},
		Exempt: []Listed{{User: []string{"nobody"}}, {User: []string{"admin"}, Reason: "on call"}},
		Block:  []Listed{{IP: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}, Reason: "abuse"}},
		Rules: []Rule{
			{Name: "general", Group: "g", Limits: l},
			{Name: "gold", Group: "g", Limits: l, Match: Match{Tier: []string{"gold"}}},
			{Name: "first", Group: "g", Priority: -1, Limits: limits(t, "20/1m"), Match: Match{Path: []string{"/first"}}},
			{Name: "a", Group: "g", Limits: l, Match: Match{Path: []string{"/a"}}},
			{Name: "a2", Group: "g", Limits: l, Match: Match{Path: []string{"/a"}}},
			{Name: "zone", Limits: l, Per: []Dimension{{Kind: PerMethod}, {Kind: PerAttr, Name: "zone"}}, Missing: MissingSkip},
			{Name: "must", Limits: l, Per: []Dimension{{Kind: PerTenant}}, Missing: MissingDeny, Match: Match{Path: []string{"/must"}}},
			{Name: "tiered", PerNone: true, Limits: l, Tiers: map[string]LimitSet{"gold": {Unlimited: true},
				"silver": {Limits: limits(t, "50/1m", "500/day")}}, Cost: []Cost{{N: 3}}},
			{Name: "no", Action: ActionBlock, Match: Match{Path: []string{"/no"}}},
		}})
}

// explain asks a traced plan and returns what it says of the first policy.
func explain(t *testing.T, a Attributes, policies ...*Ruleset) Explanation {
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

// fates returns what is said of each rule.
func fates(e Explanation) map[string]string {
	all := map[string]string{}
	for _, r := range e.Rules {
		if all[r.Name] = r.Fate; r.Limits != "" {
			all[r.Name] += " | " + r.Limits
		}
	}
	return all
}

// TestExplainRules: why each rule that matches is in play, or not.
func TestExplainRules(t *testing.T) {
	user := func(id, tier string) *knownClient {
		return &knownClient{&Identity{Kind: "user", ID: id, User: id, Tier: tier}, CredentialValid}
	}
	mine := user("u", "gold")
	mine.identity.Overrides = own(t, map[string]string{"general": "1/1m", "tiered": "2/1m"})
	skipped := "skipped: the request lacks attr:zone"
	for _, c := range []struct {
		who  *knownClient
		path string
		want map[string]string
	}{
		{user("u", ""), "/", map[string]string{"general": "in play | the rule", "zone": skipped, "tiered": "in play | the rule"}},
		{user("u", "gold"), "/", map[string]string{"general": "lost to gold: it is tier-specific, which is before general",
			"gold": "in play | the rule", "zone": skipped, "tiered": "in play | tier gold"}},
		{user("u", "silver"), "/first", map[string]string{"general": "lost to first: its priority -1 is before 0",
			"first": "in play | the rule", "zone": skipped, "tiered": "in play | tier silver"}},
		{user("u", "gold"), "/a", map[string]string{"general": "lost to a: it is endpoint-specific, which is before general",
			"gold": "lost to a: it is endpoint-specific, which is before tier-specific", "a": "in play | the rule",
			"a2": "lost to a: it is written first", "zone": skipped, "tiered": "in play | tier gold"}},
		{user("admin", ""), "/", map[string]string{"general": "exempt: exempt[1] tells of the client", "zone": skipped,
			"tiered": "exempt: exempt[1] tells of the client"}},
		{user("u", ""), "/must", map[string]string{"general": "in play | the rule", "zone": skipped,
			"must": "refuses: the request lacks tenant", "tiered": "in play | the rule"}},
		{user("u", ""), "/no", map[string]string{"general": "not asked: the request is refused", "no": "in play: it blocks the request",
			"zone": "not asked: the request is refused", "tiered": "not asked: the request is refused"}},
		{&knownClient{nil, CredentialRevoked}, "/", map[string]string{"general": "not asked: the request is refused",
			"zone": "not asked: the request is refused", "tiered": "not asked: the request is refused"}},
		{mine, "/", map[string]string{"general": "lost to gold: it is tier-specific, which is before general",
			"gold": "in play | the rule", "zone": skipped, "tiered": "in play | this client's own"}},
	} {
		a := get("192.0.2.7", c.path)
		a.header = map[string]string{"Authorization": "Bearer x"}
		e := explain(t, a, explained(t, c.who))
		if diff := cmp.Diff(c.want, fates(e)); diff != "" {
			t.Errorf("%s by %+v (-want +got):\n%s", c.path, c.who.identity, diff)
		}
	}
}

// TestExplainWho: who the client is found to be, by which of the ways, at which address, and what that comes to.
func TestExplainWho(t *testing.T) {
	valid := &Identity{Kind: "user", ID: "u", User: "u"}
	for _, c := range []struct {
		who     knownClient
		header  map[string]string
		peer    string
		methods string
		refused string
		listed  string
	}{
		{who: knownClient{valid, CredentialValid}, header: map[string]string{"Authorization": "Bearer x"}, peer: "192.0.2.7",
			methods: "jwt: found user u; header X-User: not tried; ip: not tried"},
		{who: knownClient{nil, CredentialExpired}, header: map[string]string{"Authorization": "Bearer x"}, peer: "192.0.2.7",
			methods: "jwt: expired; header X-User: absent; ip: found ip 192.0.2.7"},
		{header: map[string]string{"X-User": "v"}, peer: "192.0.2.7",
			methods: "jwt: absent; header X-User: found header.x-user v; ip: not tried"},
		{header: map[string]string{"X-User": strings.Repeat("v", 300)}, peer: "192.0.2.7",
			methods: "jwt: absent; header X-User: found header.x-user-sha256 HASH; ip: not tried"},
		{methods: "jwt: absent; header X-User: absent; ip: absent"},
		{who: knownClient{nil, CredentialRevoked}, header: map[string]string{"Authorization": "Bearer x"}, peer: "192.0.2.7",
			methods: "jwt: refused: revoked; header X-User: not tried; ip: not tried", refused: "its credential is revoked"},
		{peer: "198.51.100.7", methods: "jwt: absent; header X-User: absent; ip: found ip 198.51.100.7",
			refused: "blocked by block[0]", listed: "block[0]: abuse"},
	} {
		a := &client{header: c.header}
		address := "unknown, as the proxy knows it"
		if c.peer != "" {
			a.peer, address = netip.MustParseAddr(c.peer), c.peer+", as the proxy knows it"
		}
		e := explain(t, a, explained(t, &c.who))
		var methods []string
		for _, m := range e.Methods {
			methods = append(methods, m.Method+": "+m.Fate)
		}
		got := strings.Join(methods, "; ")
		if strings.HasSuffix(e.Client.Kind, hashSuffix) {
			got = strings.ReplaceAll(got, e.Client.ID, "HASH")
		}
		if got != c.methods || e.Refused != c.refused || e.Listed != c.listed || e.Address != address || e.Policy != "shop" {
			t.Errorf("%+v\nwant %s, refused %q, listed %q", e, c.methods, c.refused, c.listed)
		}
		if len(e.Credentials) != map[bool]int{true: 1}[c.header["Authorization"] != ""] {
			t.Errorf("credentials: %+v", e.Credentials)
		}
	}
}

// TestExplainNumbers: keys, numbers, cost and what the store said, under the names that clients are told.
func TestExplainNumbers(t *testing.T) {
	who := &knownClient{&Identity{Kind: "user", ID: "u", User: "u", Tier: "silver"}, CredentialValid}
	a := get("192.0.2.7", "/")
	a.header, a.now = map[string]string{"Authorization": "Bearer x"}, newCounters().now
	other := mustCompile(t, Policy{Name: "other", Disabled: true})
	e := explain(t, a, explained(t, who), other)
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

// TestExplainAnotherPolicysBlock: a policy whose rules do not count says which policy is to blame.
func TestExplainAnotherPolicysBlock(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "app", Rules: []Rule{{Name: "r", Limits: limits(t, "1/1m")}}})
	no := mustCompile(t, Policy{Name: "site", Rules: []Rule{{Name: "no", Action: ActionBlock}}})
	e := explain(t, get("192.0.2.1", "/"), rs, no)
	if len(e.Rules) != 1 || e.Rules[0].Fate != "not asked: another policy blocks the request" {
		t.Errorf("before it: %+v", e)
	}
	plan := new(Plan)
	plan.Trace()
	plan.Add(no, get("192.0.2.1", "/"))
	plan.Add(rs, get("192.0.2.1", "/"))
	if said := plan.Explain(); said[0].Refused != "blocked by the rule no" || said[1].Refused != "blocked by another policy, site" {
		t.Errorf("after it: %+v", said)
	}
}

// TestExplainWithoutTheStore: where a request is refused without asking, there are no numbers to tell, not even 0.
func TestExplainWithoutTheStore(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Penalty: strict(), Rules: []Rule{{Name: "plain", Limits: limits(t, "10/1m")},
		{Name: "spread", Shards: 5, Limits: limits(t, "10/1m")},
		{Name: "must", Per: []Dimension{{Kind: PerAttr, Name: "zone"}}, Missing: MissingDeny, Limits: limits(t, "10/1m")}}})
	e := explain(t, get("192.0.2.1", "/"), rs)
	if e.Refused == "" || e.Penalty != nil || len(e.Rules) != 3 {
		t.Errorf("%+v", e)
	}
	for _, r := range e.Rules {
		if len(r.Checks)+len(r.Results)+len(r.Limited)+len(r.Used)+r.Shards != 0 {
			t.Errorf("%s: %+v", r.Name, r)
		}
	}
}

// TestExplainReadings: of a path that servers read in two ways, the rules that are for one of them are in play beside the
// winner of the others.
func TestExplainReadings(t *testing.T) {
	l := limits(t, "10/1m")
	rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{
		{Name: "free", Group: "g", Priority: 1, Limits: l, Match: Match{Path: []string{"/free/*"}}},
		{Name: "api", Group: "g", Priority: 2, Limits: l, Match: Match{Path: []string{"/api/*"}}},
		{Name: "rest", Group: "g", Priority: 3, Limits: l},
		{Name: "last", Group: "g", Priority: 4, Limits: l},
	}})
	const beside = "in play: the path can be read in several ways, and the rule is for some of them | the rule"
	want := map[string]string{"free": beside, "api": beside, "rest": "in play | the rule",
		"last": "lost to rest: its priority 3 is before 4"}
	if diff := cmp.Diff(want, fates(explain(t, get("192.0.2.1", "/free/..\\api\\x"), rs))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
