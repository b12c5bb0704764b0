// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"strings"
	"testing"
)

// tokenPolicy identifies by token, then by address.
func tokenPolicy(known map[string]Identity, rules ...Rule) Policy {
	return Policy{Name: "n", Rules: rules, Identify: []Identify{{Kind: IdentifyJWT, Verifier: &answers{known: known, other: CredentialUnknown}},
		{Kind: IdentifyAPIKey, Verifier: &answers{known: known, other: CredentialUnknown}, From: []CredentialSource{{Kind: FromHeader, Name: "X-API-Key"}}}, {}}}
}

func withToken(token string) *client {
	a := get("192.0.2.1", "/")
	if token != "" {
		a.header = map[string]string{"Authorization": "Bearer " + token}
	}
	return a
}

// TestPerClientFields: what stands in keys, and what stands in for what a client lacks.
func TestPerClientFields(t *testing.T) {
	long := strings.Repeat("x", 256)
	const hash = "85e62acd750c4eb56b7b6a1d66dca5bfaac5f062608a1a893410d0288936c09a"
	known := map[string]Identity{
		"u":    {Kind: "user", ID: "u_42", User: "u_42", Tier: "gold", Tenant: "acme"},
		"k":    {Kind: "api_key", ID: "k-1", APIKey: "k-1", User: "u_42"},
		"long": {Kind: "user-sha256", ID: hash, User: long, Tier: long, Tenant: long, APIKey: long},
	}
	per := func(kinds ...DimensionKind) (dims []Dimension) {
		for _, kind := range kinds {
			dims = append(dims, Dimension{Kind: kind})
		}
		return dims
	}
	for _, c := range []struct {
		per   []Dimension
		token string
		want  string
	}{
		{per(PerUser), "u", "{user:u_42}"}, {per(PerClient), "u", "{user:u_42}"}, // the same counter's tag
		{per(PerAPIKey), "k", "{api_key:k-1}"}, {per(PerClient), "k", "{api_key:k-1}"},
		{per(PerUser), "k", "{user:u_42}"},
		{per(PerUser), "long", "{user-sha256:" + hash + "}"}, {per(PerClient), "long", "{user-sha256:" + hash + "}"},
		{per(PerTier), "u", "{tier:gold}"}, {per(PerTenant), "u", "{tenant:acme}"},
		{per(PerTier), "long", "{tier-sha256:" + hash + "}"}, {per(PerTenant), "long", "{tenant-sha256:" + hash + "}"},
		{per(PerAPIKey), "long", "{api_key-sha256:" + hash + "}"},
		{per(PerTier, PerTenant, PerIP, PerUser), "u", "{user:u_42}:ip:192.0.2.1:tenant:acme:tier:gold"},
		{per(PerUser, PerClient), "u", "{user:u_42}:user:u_42"},
		{per(PerUser), "", "{ip:192.0.2.1}"}, {per(PerTier), "", "{ip:192.0.2.1}"}, {per(PerAPIKey), "u", "{user:u_42}"},
		{per(PerTenant), "k", "{api_key:k-1}"},
	} {
		rs := mustCompile(t, tokenPolicy(known, Rule{Name: "r", Limits: limits(t, "9/1m"), Per: c.per}))
		plan, _ := newCounters().ask(t, withToken(c.token), rs)
		wantKeys(t, plan, "rl1:n:r:"+c.want+":60s:sw")
	}
}

// TestMissingClientFields: a client without a user is missing one as any other dimension is missing.
func TestMissingClientFields(t *testing.T) {
	for _, kind := range []DimensionKind{PerUser, PerAPIKey, PerTenant, PerTier} {
		for missing, want := range map[Missing]string{MissingClient: "{ip:192.0.2.1}", MissingShare: "{" + dimensionLabels[kind] + ":}",
			MissingSkip: "", MissingDeny: "403"} {
			rs := mustCompile(t, tokenPolicy(nil, Rule{Name: "r", Limits: limits(t, "9/1m"), Per: []Dimension{{Kind: kind}}, Missing: missing}))
			plan, d := newCounters().ask(t, withToken("junk"), rs)
			switch want {
			case "":
				if len(plan.Checks()) != 0 || d.Outcome != OutcomeNone {
					t.Errorf("%s, skip: %+v", dimensionLabels[kind], d)
				}
			case "403":
				if d.Outcome != OutcomeMissing {
					t.Errorf("%s, deny: %+v", dimensionLabels[kind], d)
				}
			default:
				wantKeys(t, plan, "rl1:n:r:"+want+":60s:sw")
			}
		}
	}
}

// TestMatchClient: of what a match says of the client everything must hold, of each list one value, exactly.
func TestMatchClient(t *testing.T) {
	who := &Identity{Tier: "gold", User: "u", APIKey: "k", Tenant: "acme"}
	for _, c := range []struct {
		m    Match
		want bool
	}{
		{Match{Tier: []string{"gold"}}, true}, {Match{Tier: []string{"silver", "gold"}}, true}, {Match{Tier: []string{"Gold"}}, false},
		{Match{Tier: []string{"gol"}}, false}, {Match{User: []string{"u"}}, true}, {Match{User: []string{"k"}}, false},
		{Match{APIKey: []string{"k"}}, true}, {Match{Tenant: []string{"acme"}}, true},
		{Match{Tier: []string{"gold"}, Tenant: []string{"acme", "x"}}, true}, {Match{Tier: []string{"gold"}, Tenant: []string{"x"}}, false},
		{Match{Tier: []string{"gold"}, Path: []string{"/a"}}, true}, {Match{Tier: []string{"gold"}, Path: []string{"/b"}}, false},
	} {
		conditions := compileAll(t, []Match{c.m})
		m := newMatcher(conditions)
		for _, asking := range []*Identity{who, {}, nil} {
			var r request
			r.read(&fakeAttributes{path: "/a"})
			r.client = asking
			want := c.want && asking == who
			if got := conditions[0].holds(&r); got != want {
				t.Errorf("%+v of %+v: %v", c.m, asking, got)
			}
			if got := len(m.appendMatches(nil, &r)) == 1; got != want {
				t.Errorf("%+v of %+v: found is %v", c.m, asking, got)
			}
		}
		if conditions[0].tierSpecific() != (c.m.Tier != nil) {
			t.Errorf("%+v: tier-specific is %v", c.m, conditions[0].tierSpecific())
		}
	}
	if (&condition{}).tierSpecific() {
		t.Error("a match of everybody names no tier")
	}
}

// TestMatcherFindsClientsByIndex: many rules that tell clients apart are not compared one by one.
func TestMatcherFindsClientsByIndex(t *testing.T) {
	var matches []Match
	for i := range 100 {
		name := strings.Repeat("x", i+1)
		matches = append(matches, Match{Path: []string{"/api/*"}, Tier: []string{name}}, Match{Tenant: []string{name}, Method: []string{"GET"}})
	}
	m := newMatcher(compileAll(t, matches))
	if len(m.always) > 0 || len(m.clients[clientTier]) != 100 || len(m.clients[clientTenant]) != 100 {
		t.Errorf("always %d, tiers %d, tenants %d", len(m.always), len(m.clients[clientTier]), len(m.clients[clientTenant]))
	}
	// A request that meets more limits than a call takes is found through rules for a tier as well.
	var rules []Rule
	for range ChecksMax + 1 {
		rules = append(rules, Rule{Name: "r" + strings.Repeat("x", len(rules)%60) + string(rune('a'+len(rules)/60)), Limits: limits(t, "1/1m"), Match: Match{Tier: []string{"gold"}}})
	}
	if _, err := Compile(tokenPolicy(nil, rules...)); err == nil || !strings.Contains(err.Error(), "stands beside so many others") {
		t.Errorf("a crowd of one tier: %v", err)
	}
}

// TestPoliciesSeeTheirOwnClient: each policy counts the client as it finds it.
func TestPoliciesSeeTheirOwnClient(t *testing.T) {
	known := map[string]Identity{"u": {Kind: "user", ID: "u", User: "u", Tier: "gold"}}
	gold := Rule{Name: "gold", Limits: limits(t, "9/1m"), Match: Match{Tier: []string{"gold"}}}
	first := mustCompile(t, tokenPolicy(known, gold))
	by := tokenPolicy(nil, gold)
	by.Name, by.Tier, by.TrustedHops = "m", []Source{{Kind: SourceAttr, Name: "plan"}}, 1
	second := mustCompile(t, by)
	a := withToken("u")
	a.header[forwardedHeader], a.remote, a.attr = "203.0.113.9", netip.MustParseAddr("10.0.0.1"), map[string]string{"plan": "gold"}
	plan, _ := newCounters().ask(t, a, first, second)
	wantKeys(t, plan, "rl1:n:gold:{user:u}:60s:sw", "rl1:m:gold:{ip:203.0.113.9}:60s:sw")
}
