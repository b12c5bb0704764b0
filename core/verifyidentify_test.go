// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"strings"
	"testing"
)

// identityProblem is a policy that must be refused for one thing only.
type identityProblem struct {
	policy    Policy
	path, why string
}

// wantIdentityProblems compiles each; every problem must name a remedy.
func wantIdentityProblems(t *testing.T, problems []identityProblem) {
	t.Helper()
	for _, c := range problems {
		paths, text := problemPaths(t, c.policy)
		if len(paths) != 1 || paths[0] != c.path || !strings.Contains(text, c.why) || !strings.Contains(text, "; ") {
			t.Errorf("%.300s\nwant %q about %s alone, with a remedy", text, c.why, c.path)
		}
	}
}

// TestIdentityProblems: what is wrong with who is asking is told with its place and what to write instead.
func TestIdentityProblems(t *testing.T) {
	v := newAnswers()
	ways := func(m ...Identify) Policy { return Policy{Identify: m} }
	from := func(places ...CredentialSource) Policy {
		return ways(Identify{Kind: IdentifyAPIKey, Verifier: v, From: places})
	}
	wantIdentityProblems(t, []identityProblem{
		{ways(Identify{Kind: IdentifyJWT}), "identify[0]", "nothing to verify"},
		{ways(Identify{}, Identify{Kind: IdentifyAPIKey}), "identify[1]", "nothing to verify"},
		{ways(Identify{Kind: IdentifyCookie, Name: "s"}), "identify[0]", "unverified: true"},
		{ways(Identify{Kind: IdentifyCookie, Name: "a b", Unverified: true}), "identify[0]", "not the name of a cookie"},
		{ways(Identify{Kind: IdentifyCookie, Name: "s-SHA256", Unverified: true}), "identify[0]", "marks the hashes"},
		{ways(Identify{Kind: IdentifyCookie, Name: "s", Unverified: true}, Identify{Kind: IdentifyCookie, Name: "s", Unverified: true}),
			"identify[1]", "identify[0] again"},
		{ways(Identify{Kind: IdentifyJWT, Verifier: v, Unverified: true}), "identify[0].unverified", "header and cookie only"},
		{ways(Identify{Kind: IdentifyJWT, Verifier: v, Name: "x"}), "identify[0].name", "does not go with jwt"},
		{ways(Identify{Kind: IdentifyJWT, Verifier: v, IPv6Prefix: 64}), "identify[0]", "ip only"},
		{ways(Identify{DenyInvalid: true}), "identify[0].on_invalid", "jwt and api_key only"},
		{ways(Identify{Kind: IdentifyAttr, Name: "a", Verifier: v}), "identify[0].verifier", "jwt and api_key only"},
		{ways(Identify{From: tokenCarriers}), "identify[0].from", "jwt and api_key only"},
		{from(CredentialSource{Name: "x"}), "identify[0].from[0]", "bearer token"},
		{from(CredentialSource{}, CredentialSource{}), "identify[0].from[1]", "from[0] again"},
		{from(CredentialSource{FromHeader, "x-a"}, CredentialSource{FromHeader, "X-A"}), "identify[0].from[1]", "from[0] again"},
		{from(CredentialSource{FromHeader, "a b"}), "identify[0].from[0]", "not the name of a header"},
		{from(CredentialSource{FromHeader, "Host"}), "identify[0].from[0]", "not among a request's header fields"},
		{from(CredentialSource{FromQuery, ""}), "identify[0].from[0]", "query parameter"},
		{from(CredentialSource{FromQuery, strings.Repeat("x", 300)}), "identify[0].from[0]", "query parameter"},
		{from(CredentialSource{FromCookie, "a;b"}), "identify[0].from[0]", "not the name of a cookie"},
		{from(CredentialSource{9, ""}), "identify[0].from[0]", "unknown place"},
		{from(make([]CredentialSource, carriersMax+1)...), "identify[0].from", "more than 8"},
	})
}

// TestProblemsOfProxiesAndSources: the same for who is believed, and for where tenants and tiers are from.
func TestProblemsOfProxiesAndSources(t *testing.T) {
	trusted := func(texts ...string) (p Policy) {
		for _, text := range texts {
			p.TrustedProxies = append(p.TrustedProxies, netip.MustParsePrefix(text))
		}
		return p
	}
	both := trusted("10.0.0.0/8")
	both.TrustedHops = 1
	wantIdentityProblems(t, []identityProblem{
		{both, "trusted_hops", "does not go with trusted_proxies"},
		{Policy{TrustedHops: -1}, "trusted_hops", "1 to 64"},
		{Policy{TrustedHops: 65}, "trusted_hops", "1 to 64"},
		{trusted("0.0.0.0/0"), "trusted_proxies[0]", "trusts everybody"},
		{trusted("10.0.0.0/8", "::/0"), "trusted_proxies[1]", "trusts everybody"},
		{trusted("10.0.0.0/8", "::ffff:10.1.0.0/104"), "trusted_proxies[1]", "trusted_proxies[0] again"},
		{trusted("10.0.0.0/8", "::ffff:0:0/95"), "trusted_proxies[1]", "mapped"},
		{Policy{TrustedProxies: make([]netip.Prefix, 1)}, "trusted_proxies[0]", "not an address range"},
		{Policy{TrustedProxies: make([]netip.Prefix, matchListMax+1)}, "trusted_proxies", "1001 entries"},

		{Policy{Tenant: []Source{{Kind: SourceHeader, Name: "X-T"}}}, "tenant[0]", "unverified: true"},
		{Policy{Tier: []Source{{Name: "a"}, {Kind: SourceHeader, Name: "X-T"}}}, "tier[1]", "unverified: true"},
		{Policy{Tier: []Source{{Name: ""}}}, "tier[0]", "not the name of an attribute"},
		{Policy{Tier: []Source{{Name: "a", Unverified: true}}}, "tier[0].unverified", "header only"},
		{Policy{User: []Source{{Kind: SourceHeader, Name: "X-U"}}}, "user[0]", "unverified: true"},
		{Policy{Tenant: []Source{{Kind: SourceHost}}}, "tenant[0].host_label", "1 for the left-most"},
		{Policy{Tenant: []Source{{Kind: SourceHost, Label: 128}}}, "tenant[0].host_label", "to 127"},
		{Policy{Tenant: []Source{{Kind: SourceHost, Label: 1, Name: "x"}}}, "tenant[0]", "does not take"},
		{Policy{Tenant: []Source{{Name: "x", Label: 1}}}, "tenant[0].host_label", "beside a name"},
		{Policy{Tenant: []Source{{Kind: 9}}}, "tenant[0]", "unknown source"},
		{Policy{Tier: []Source{{Name: "a"}, {Name: "a"}}}, "tier[1]", "tier[0] again"},
		{Policy{Tier: make([]Source, sourcesMax+1)}, "tier", "more than 16"},
	})
}

// TestUnknowableIsRefused: what no way of identifying can tell of a client has no effect in a match, list or key.
func TestUnknowableIsRefused(t *testing.T) {
	l := limits(t, "9/1m")
	key := Identify{Kind: IdentifyAPIKey, Verifier: newAnswers()}
	token := Identify{Kind: IdentifyJWT, Verifier: newAnswers()}
	sources := []Source{{Name: "a"}}
	everything := Policy{
		Exempt: []Listed{{User: []string{"u"}}, {Tier: []string{"t"}}}, Block: []Listed{{APIKey: []string{"k"}, Tenant: []string{"x"}}},
		Rules: []Rule{
			{Name: "a", Limits: l, Match: Match{User: []string{"u"}}, Cost: []Cost{{N: 1, Match: Match{Tier: []string{"t"}}}, {N: 2}}},
			{Name: "b", Limits: l, Per: []Dimension{{Kind: PerUser}, {Kind: PerAPIKey}, {Kind: PerTenant}, {Kind: PerTier}}},
		}}
	const user, apiKey = "exempt[0].user rules[0].match.user rules[1].per[0]", "block[0].api_key rules[1].per[1]"
	const tenant, tier = "block[0].tenant rules[1].per[2]", "exempt[1].tier rules[0].cost[0].match.tier rules[1].per[3]"
	for _, c := range []struct {
		identify           []Identify
		user, tenant, tier []Source
		want               string
	}{
		{nil, nil, nil, nil, user + " " + apiKey + " " + tenant + " " + tier},
		{[]Identify{{Kind: IdentifyAttr, Name: "x"}}, nil, nil, sources, user + " " + apiKey + " " + tenant},
		{nil, nil, sources, nil, user + " " + apiKey + " " + tier},
		{nil, sources, nil, nil, apiKey + " " + tenant + " " + tier},
		{[]Identify{token}, nil, nil, nil, apiKey},
		{[]Identify{key}, nil, nil, nil, ""},
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
