// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"github.com/penstock/penstock/internal/test/limittest"
	"net/netip"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/internal/identify"
	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/benchpair"
)

// askingClient is a policy and a request whose client is identified in one way.
type askingClient struct {
	name    string
	policy  policy.Policy
	request *client
	kind    string // Identity.Kind
}

// waysOfAsking returns all ways of identifying a client. The first way is the baseline.
func waysOfAsking() []askingClient {
	who := &policy.Identity{Kind: "user", ID: "u_42", User: "u_42", Tier: "premium", Tenant: "acme"}
	verifier := verifierFunc(func() (*policy.Identity, policy.CredentialState) { return who, policy.CredentialValid })
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for i := range 30 { // as many ranges as a content delivery network publishes
		proxies = append(proxies, netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(64 + i), 0, 0}), 16))
	}
	request := &client{path: "/api", peer: netip.MustParseAddr("203.0.113.9"), remote: netip.MustParseAddr("10.0.0.1"),
		attr: map[string]string{"user": "u_42"}, query: "page=2&sort=name&key=k-1%2F2",
		header: map[string]string{"X-User": "u_42", "X-Api-Key": "k-1", "Authorization": "Bearer " + strings.Repeat("x", 700),
			"Cookie":                 "theme=dark; session=0123456789abcdef0123456789abcdef; _ga=GA1.2.3",
			identify.ForwardedHeader: "198.51.100.7, 203.0.113.9, 172.70.0.9"}}
	six := *request
	six.header = map[string]string{identify.ForwardedHeader: "2001:db8:1:2:3:4:5:6, 10.0.0.2"}
	by := func(m policy.Identify) policy.Policy { return policy.Policy{Identify: []policy.Identify{m}} }
	key := func(from ...policy.CredentialSource) policy.Policy {
		return by(policy.Identify{Kind: policy.IdentifyAPIKey, Verifier: verifier, From: from})
	}
	return []askingClient{
		{"ip of the front", by(policy.Identify{}), request, "ip"},
		{"ip by trusted proxies", policy.Policy{TrustedProxies: proxies}, request, "ip"},
		{"ip by trusted proxies, IPv6", policy.Policy{TrustedProxies: proxies}, &six, "ip"},
		{"ip by trusted hops", policy.Policy{TrustedHops: 2}, request, "ip"},
		{"header", by(policy.Identify{Kind: policy.IdentifyHeader, Name: "X-User", Unverified: true}), request, "header.x-user"},
		{"cookie", by(policy.Identify{Kind: policy.IdentifyCookie, Name: "session", Unverified: true}), request, "cookie.session"},
		{"attr", by(policy.Identify{Kind: policy.IdentifyAttr, Name: "user"}), request, "attr.user"},
		{"jwt of 700 bytes", by(policy.Identify{Kind: policy.IdentifyJWT, Verifier: verifier}), request, "user"},
		{"api_key in a header", key(), request, "user"},
		{"api_key in an escaped query", key(policy.CredentialSource{Kind: policy.FromQuery, Name: "key"}), request, "user"},
		{"api_key in a cookie", key(policy.CredentialSource{Kind: policy.FromCookie, Name: "session"}), request, "user"},
		{"tenant and tier beside", policy.Policy{Tenant: []policy.Source{{Kind: policy.SourceHost, Label: 1}}, Tier: []policy.Source{{Name: "user"}}}, request, "ip"},
	}
}

// TestIdentifyAllocates: no way of identifying a client allocates.
func TestIdentifyAllocates(t *testing.T) {
	for _, w := range waysOfAsking() {
		w.policy.Rules = []policy.Rule{{Name: "r", Limits: limittest.All(t, "9/1m")}}
		rs := mustCompile(t, w.policy)
		var plan Plan
		if n := testing.AllocsPerRun(100, func() { plan.Reset(); plan.Add(rs, w.request) }); n != 0 {
			t.Errorf("%s: %v allocations", w.name, n)
		}
		if got := plan.Identity().Kind; got != w.kind {
			t.Errorf("%s: found %q, want %q", w.name, got, w.kind)
		}
	}
}

// BenchmarkIdentify measures ways to identify a client. The first way is the baseline: an
// address that the front provides.
func BenchmarkIdentify(b *testing.B) {
	var ways []benchpair.Way
	for _, w := range waysOfAsking() {
		ways = append(ways, wayToIdentify(b, w.name, w.policy, w.request))
	}
	benchpair.Measure(b, ways)
}

func wayToIdentify(b *testing.B, name string, p policy.Policy, request *client) benchpair.Way {
	p.Rules = []policy.Rule{{Name: "r", Limits: []counter.Limit{limittest.Parse(b, "9/1m")}}}
	rs := mustCompile(b, p)
	plan := new(Plan)
	plan.Add(rs, request)
	mark := len(plan.text)
	return benchpair.Way{Name: name, Call: func() {
		plan.text, plan.credentials = plan.text[:mark], plan.credentials[:0]
		if plan.identify(rs) {
			b.Fatal("refused")
		}
	}}
}

// BenchmarkIdentifyHostile measures the longest headers that a client can send.
func BenchmarkIdentifyHostile(b *testing.B) {
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	for name, line := range map[string]string{
		"10,000 trusted addresses": strings.Repeat("10.0.0.2, ", 10_000) + "10.0.0.2",
		"one element of 1 MiB":     strings.Repeat("1", 1<<20),
		"1 MiB of commas":          strings.Repeat(",", 1<<20),
	} {
		b.Run(name, func(b *testing.B) {
			f := identify.Forwarding{Trusted: match.NewAddrSet(trusted)}
			a := &client{remote: trusted[0].Addr(), header: map[string]string{identify.ForwardedHeader: line}}
			b.ReportAllocs()
			for b.Loop() {
				if addr, _ := f.Client(a); !addr.IsValid() {
					b.Fatal("no address")
				}
			}
		})
	}
	for name, cookies := range map[string]string{"64 KiB of cookies": strings.Repeat("a=1; ", 13_000),
		"1 MiB of cookies": strings.Repeat("a=1; ", 200_000)} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if value, _ := identify.CookieValue(cookies, "session"); value != "" {
					b.Fatal(fmt.Sprint("found ", value))
				}
			}
		})
	}
}
