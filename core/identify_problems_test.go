// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/internal/test/limittest"
	"net/netip"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/internal/identify"
	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/policy"
)

// identityProblem is a policy with exactly one problem.
type identityProblem struct {
	policy    policy.Policy
	path, why string
}

// wantIdentityProblems compiles each policy. Every message must contain a remedy.
func wantIdentityProblems(t *testing.T, problems []identityProblem) {
	t.Helper()
	for _, c := range problems {
		paths, text := problemPaths(t, c.policy)
		if len(paths) != 1 || paths[0] != c.path || !strings.Contains(text, c.why) || !strings.Contains(text, "; ") {
			t.Errorf("%.300s\nwant %q about %s alone, with a remedy", text, c.why, c.path)
		}
	}
}

// TestIdentityProblems: each mistake in the list "identify" is reported with its place and a
// remedy.
func TestIdentityProblems(t *testing.T) {
	v := newAnswers()
	ways := func(m ...policy.Identify) policy.Policy { return policy.Policy{Identify: m} }
	from := func(places ...policy.CredentialSource) policy.Policy {
		return ways(policy.Identify{Kind: policy.IdentifyAPIKey, Verifier: v, From: places})
	}
	wantIdentityProblems(t, []identityProblem{
		{ways(policy.Identify{Kind: policy.IdentifyJWT}), "identify[0]", "no keys to verify"},
		{ways(policy.Identify{}, policy.Identify{Kind: policy.IdentifyAPIKey}), "identify[1]", "no keys to verify"},
		{ways(policy.Identify{Kind: policy.IdentifyCookie, Name: "s"}), "identify[0]", "unverified: true"},
		{ways(policy.Identify{Kind: policy.IdentifyCookie, Name: "a b", Unverified: true}), "identify[0]", "not the name of a cookie"},
		{ways(policy.Identify{Kind: policy.IdentifyCookie, Name: "s-SHA256", Unverified: true}), "identify[0]", "marks hashes"},
		{ways(policy.Identify{Kind: policy.IdentifyCookie, Name: "s", Unverified: true}, policy.Identify{Kind: policy.IdentifyCookie, Name: "s", Unverified: true}),
			"identify[1]", "identify[0] again"},
		{ways(policy.Identify{Kind: policy.IdentifyJWT, Verifier: v, Unverified: true}), "identify[0].unverified", "header and cookie only"},
		{ways(policy.Identify{Kind: policy.IdentifyJWT, Verifier: v, Name: "x"}), "identify[0].name", "does not go with jwt"},
		{ways(policy.Identify{Kind: policy.IdentifyJWT, Verifier: v, IPv6Prefix: 64}), "identify[0]", "ip only"},
		{ways(policy.Identify{DenyInvalid: true}), "identify[0].on_invalid", "jwt and api_key only"},
		{ways(policy.Identify{Kind: policy.IdentifyAttr, Name: "a", Verifier: v}), "identify[0].verifier", "jwt and api_key only"},
		{ways(policy.Identify{From: identify.TokenCarriers}), "identify[0].from", "jwt and api_key only"},
		{from(policy.CredentialSource{Name: "x"}), "identify[0].from[0]", "bearer token"},
		{from(policy.CredentialSource{}, policy.CredentialSource{}), "identify[0].from[1]", "from[0] again"},
		{from(policy.CredentialSource{Kind: policy.FromHeader, Name: "x-a"}, policy.CredentialSource{Kind: policy.FromHeader, Name: "X-A"}), "identify[0].from[1]", "from[0] again"},
		{from(policy.CredentialSource{Kind: policy.FromHeader, Name: "a b"}), "identify[0].from[0]", "not the name of a header"},
		{from(policy.CredentialSource{Kind: policy.FromHeader, Name: "Host"}), "identify[0].from[0]", "not among a request's header fields"},
		{from(policy.CredentialSource{Kind: policy.FromHeader, Name: "transfer-encoding"}), "identify[0].from[0]", "not among a request's header fields"},
		{from(policy.CredentialSource{Kind: policy.FromQuery, Name: ""}), "identify[0].from[0]", "query parameter"},
		{from(policy.CredentialSource{Kind: policy.FromQuery, Name: strings.Repeat("x", 300)}), "identify[0].from[0]", "query parameter"},
		{from(policy.CredentialSource{Kind: policy.FromCookie, Name: "a;b"}), "identify[0].from[0]", "not the name of a cookie"},
		{from(policy.CredentialSource{Kind: 9, Name: ""}), "identify[0].from[0]", "unknown place"},
		{from(make([]policy.CredentialSource, identify.CarriersMax+1)...), "identify[0].from", "more than 8"},
	})
}

// TestProblemsOfProxiesAndSources tests the mistakes in trusted proxies and in the sources of
// tenants and tiers.
func TestProblemsOfProxiesAndSources(t *testing.T) {
	trusted := func(texts ...string) (p policy.Policy) {
		for _, text := range texts {
			p.TrustedProxies = append(p.TrustedProxies, netip.MustParsePrefix(text))
		}
		return p
	}
	both := trusted("10.0.0.0/8")
	both.TrustedHops = 1
	wantIdentityProblems(t, []identityProblem{
		{both, "trusted_hops", "does not go with trusted_proxies"},
		{policy.Policy{TrustedHops: -1}, "trusted_hops", "1 to 64"},
		{policy.Policy{TrustedHops: 65}, "trusted_hops", "1 to 64"},
		{trusted("0.0.0.0/0"), "trusted_proxies[0]", "trusts every client"},
		{trusted("10.0.0.0/8", "::/0"), "trusted_proxies[1]", "trusts every client"},
		{trusted("10.0.0.0/8", "::ffff:10.1.0.0/104"), "trusted_proxies[1]", "trusted_proxies[0] again"},
		{trusted("10.0.0.0/8", "::ffff:0:0/95"), "trusted_proxies[1]", "mapped"},
		{policy.Policy{TrustedProxies: make([]netip.Prefix, 1)}, "trusted_proxies[0]", "not an address range"},
		{policy.Policy{TrustedProxies: make([]netip.Prefix, match.MatchListMax+1)}, "trusted_proxies", "1001 entries"},

		{policy.Policy{Tenant: []policy.Source{{Kind: policy.SourceHeader, Name: "X-T"}}}, "tenant[0]", "unverified: true"},
		{policy.Policy{Tier: []policy.Source{{Name: "a"}, {Kind: policy.SourceHeader, Name: "X-T"}}}, "tier[1]", "unverified: true"},
		{policy.Policy{Tier: []policy.Source{{Name: ""}}}, "tier[0]", "not the name of an attribute"},
		{policy.Policy{Tier: []policy.Source{{Name: "a", Unverified: true}}}, "tier[0].unverified", "header only"},
		{policy.Policy{User: []policy.Source{{Kind: policy.SourceHeader, Name: "X-U"}}}, "user[0]", "unverified: true"},
		{policy.Policy{Tenant: []policy.Source{{Kind: policy.SourceHost}}}, "tenant[0].host_label", "1 for the left-most"},
		{policy.Policy{Tenant: []policy.Source{{Kind: policy.SourceHost, Label: 128}}}, "tenant[0].host_label", "to 127"},
		{policy.Policy{Tenant: []policy.Source{{Kind: policy.SourceHost, Label: 1, Name: "x"}}}, "tenant[0]", "does not take"},
		{policy.Policy{Tenant: []policy.Source{{Name: "x", Label: 1}}}, "tenant[0].host_label", "conflicts with a name"},
		{policy.Policy{Tenant: []policy.Source{{Kind: 9}}}, "tenant[0]", "unknown source"},
		{policy.Policy{Tier: []policy.Source{{Name: "a"}, {Name: "a"}}}, "tier[1]", "tier[0] again"},
		{policy.Policy{Tier: make([]policy.Source, identify.SourcesMax+1)}, "tier", "more than 16"},
	})
}

// TestPropertiesOfNoMethodAreRejected: a match, list or key cannot use a property of clients that
// no way of identifying them provides.
func TestPropertiesOfNoMethodAreRejected(t *testing.T) {
	l := limittest.All(t, "9/1m")
	key := policy.Identify{Kind: policy.IdentifyAPIKey, Verifier: newAnswers()}
	token := policy.Identify{Kind: policy.IdentifyJWT, Verifier: newAnswers()}
	sources := []policy.Source{{Name: "a"}}
	everything := policy.Policy{
		Exempt: []policy.Listed{{User: []string{"u"}}, {Tier: []string{"t"}}}, Block: []policy.Listed{{APIKey: []string{"k"}, Tenant: []string{"x"}}},
		Rules: []policy.Rule{
			{Name: "a", Limits: l, Match: policy.Match{User: []string{"u"}}, Cost: []policy.Cost{{N: 1, Match: policy.Match{Tier: []string{"t"}}}, {N: 2}}},
			{Name: "b", Limits: l, Per: []policy.Dimension{{Kind: policy.PerUser}, {Kind: policy.PerAPIKey}, {Kind: policy.PerTenant}, {Kind: policy.PerTier}}},
		}}
	const user, apiKey = "exempt[0].user rules[0].match.user rules[1].per[0]", "block[0].api_key rules[1].per[1]"
	const tenant, tier = "block[0].tenant rules[1].per[2]", "exempt[1].tier rules[0].cost[0].match.tier rules[1].per[3]"
	for _, c := range []struct {
		identify           []policy.Identify
		user, tenant, tier []policy.Source
		want               string
	}{
		{want: user + " " + apiKey + " " + tenant + " " + tier},
		{identify: []policy.Identify{{Kind: policy.IdentifyAttr, Name: "x"}}, tier: sources, want: user + " " + apiKey + " " + tenant},
		{tenant: sources, want: user + " " + apiKey + " " + tier},
		{user: sources, want: apiKey + " " + tenant + " " + tier},
		{identify: []policy.Identify{token}, want: apiKey},
		{identify: []policy.Identify{key}},
	} {
		p := everything
		p.Identify, p.User, p.Tenant, p.Tier = c.identify, c.user, c.tenant, c.tier
		if c.want == "" {
			mustCompile(t, p)
			continue
		}
		paths, text := problemPaths(t, p)
		got := map[string]bool{}
		for _, path := range paths {
			got[path] = true
		}
		wanted := strings.Fields(c.want)
		for _, path := range wanted {
			if !got[path] {
				t.Errorf("nothing about %s in\n%s", path, text)
			}
		}
		if len(paths) != len(wanted) {
			t.Errorf("%d problems, want %d:\n%s", len(paths), len(wanted), text)
		}
	}
}
