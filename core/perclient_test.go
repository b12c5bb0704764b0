// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/internal/test/limittest"
	"net/netip"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/internal/identify"
	"github.com/penstock/penstock/core/policy"
)

// tokenPolicy returns a policy that identifies clients by token, then by API key, then by address.
func tokenPolicy(known map[string]policy.Identity, rules ...policy.Rule) policy.Policy {
	return policy.Policy{Name: "n", Rules: rules, Identify: []policy.Identify{{Kind: policy.IdentifyJWT, Verifier: &answersVerifier{known: known, other: policy.CredentialUnknown}},
		{Kind: policy.IdentifyAPIKey, Verifier: &answersVerifier{known: known, other: policy.CredentialUnknown}, From: []policy.CredentialSource{{Kind: policy.FromHeader, Name: "X-API-Key"}}}, {}}}
}

func withToken(token string) *client {
	a := get("192.0.2.1", "/")
	if token != "" {
		a.header = map[string]string{"Authorization": "Bearer " + token}
	}
	return a
}

// TestPerClientFields tests the client fields in keys, and the substitutes for missing ones.
func TestPerClientFields(t *testing.T) {
	long := strings.Repeat("x", 256)
	const hash = "85e62acd750c4eb56b7b6a1d66dca5bfaac5f062608a1a893410d0288936c09a"
	known := map[string]policy.Identity{
		"u":    {Kind: "user", ID: "u_42", User: "u_42", Tier: "gold", Tenant: "acme"},
		"k":    {Kind: "api_key", ID: "k-1", APIKey: "k-1", User: "u_42"},
		"long": {Kind: "user-sha256", ID: hash, User: long, Tier: long, Tenant: long, APIKey: long},
	}
	per := func(kinds ...policy.DimensionKind) (dims []policy.Dimension) {
		for _, kind := range kinds {
			dims = append(dims, policy.Dimension{Kind: kind})
		}
		return dims
	}
	for _, c := range []struct {
		per   []policy.Dimension
		token string
		want  string
	}{
		// This tag is the same as with per: client.
		{per(policy.PerUser), "u", "{user:u_42}"}, {per(policy.PerClient), "u", "{user:u_42}"},
		{per(policy.PerAPIKey), "k", "{api_key:k-1}"}, {per(policy.PerClient), "k", "{api_key:k-1}"},
		{per(policy.PerUser), "k", "{user:u_42}"},
		{per(policy.PerUser), "long", "{user-sha256:" + hash + "}"}, {per(policy.PerClient), "long", "{user-sha256:" + hash + "}"},
		{per(policy.PerTier), "u", "{tier:gold}"}, {per(policy.PerTenant), "u", "{tenant:acme}"},
		{per(policy.PerTier), "long", "{tier-sha256:" + hash + "}"}, {per(policy.PerTenant), "long", "{tenant-sha256:" + hash + "}"},
		{per(policy.PerAPIKey), "long", "{api_key-sha256:" + hash + "}"},
		{per(policy.PerTier, policy.PerTenant, policy.PerIP, policy.PerUser), "u", "{user:u_42}:ip:192.0.2.1:tenant:acme:tier:gold"},
		{per(policy.PerUser, policy.PerClient), "u", "{user:u_42}:user:u_42"},
		{per(policy.PerUser), "", "{ip:192.0.2.1}"}, {per(policy.PerTier), "", "{ip:192.0.2.1}"}, {per(policy.PerAPIKey), "u", "{user:u_42}"},
		{per(policy.PerTenant), "k", "{api_key:k-1}"},
	} {
		rs := mustCompile(t, tokenPolicy(known, policy.Rule{Name: "r", Limits: limittest.All(t, "9/1m"), Per: c.per}))
		plan, _ := newCounters().ask(t, withToken(c.token), rs)
		wantKeys(t, plan, "rl1:n:r:"+c.want+":60s:sw")
	}
}

// TestMissingClientFields: a missing user, API key, tenant or tier is handled like any other
// missing dimension.
func TestMissingClientFields(t *testing.T) {
	for _, kind := range []policy.DimensionKind{policy.PerUser, policy.PerAPIKey, policy.PerTenant, policy.PerTier} {
		for missing, want := range map[policy.Missing]string{policy.MissingClient: "{ip:192.0.2.1}", policy.MissingShare: "{" + policy.DimensionLabels[kind] + ":}",
			policy.MissingSkip: "", policy.MissingDeny: "403"} {
			rs := mustCompile(t, tokenPolicy(nil, policy.Rule{Name: "r", Limits: limittest.All(t, "9/1m"), Per: []policy.Dimension{{Kind: kind}}, Missing: missing}))
			plan, d := newCounters().ask(t, withToken("junk"), rs)
			switch want {
			case "":
				if len(plan.Checks()) != 0 || d.Outcome != OutcomeNone {
					t.Errorf("%s, skip: %+v", policy.DimensionLabels[kind], d)
				}
			case "403":
				if d.Outcome != OutcomeMissing {
					t.Errorf("%s, deny: %+v", policy.DimensionLabels[kind], d)
				}
			default:
				wantKeys(t, plan, "rl1:n:r:"+want+":60s:sw")
			}
		}
	}
}

// TestTooManyChecksOfOneTier: Compile finds requests with too many checks even if the rules are for
// one tier.
func TestTooManyChecksOfOneTier(t *testing.T) {
	var rules []policy.Rule
	for range counter.ChecksMax + 1 {
		rules = append(rules, policy.Rule{Name: "r" + strings.Repeat("x", len(rules)%60) + string(rune('a'+len(rules)/60)), Limits: limittest.All(t, "1/1m"), Match: policy.Match{Tier: []string{"gold"}}})
	}
	if _, err := Compile(tokenPolicy(nil, rules...)); err == nil || !strings.Contains(err.Error(), "needs too many checks") {
		t.Errorf("too many checks of one tier: %v", err)
	}
}

// TestPoliciesSeeTheirOwnClient: each policy identifies the client by its own rules.
func TestPoliciesSeeTheirOwnClient(t *testing.T) {
	known := map[string]policy.Identity{"u": {Kind: "user", ID: "u", User: "u", Tier: "gold"}}
	gold := policy.Rule{Name: "gold", Limits: limittest.All(t, "9/1m"), Match: policy.Match{Tier: []string{"gold"}}}
	first := mustCompile(t, tokenPolicy(known, gold))
	by := tokenPolicy(nil, gold)
	by.Name, by.Tier, by.TrustedHops = "m", []policy.Source{{Kind: policy.SourceAttr, Name: "plan"}}, 1
	second := mustCompile(t, by)
	a := withToken("u")
	a.header[identify.ForwardedHeader], a.remote, a.attr = "203.0.113.9", netip.MustParseAddr("10.0.0.1"), map[string]string{"plan": "gold"}
	plan, _ := newCounters().ask(t, a, first, second)
	wantKeys(t, plan, "rl1:n:gold:{user:u}:60s:sw", "rl1:m:gold:{ip:203.0.113.9}:60s:sw")
}
