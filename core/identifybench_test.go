// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/inturns"
)

// asking is a policy and a request by which a client is found in one way.
type asking struct {
	name    string
	policy  Policy
	request *client
	kind    string // Identity.Kind
}

// waysOfAsking are all ways of identifying, the plain one first: every other is measured beside it.
func waysOfAsking() []asking {
	who := &Identity{Kind: "user", ID: "u_42", User: "u_42", Tier: "premium", Tenant: "acme"}
	verifier := verifierFunc(func() (*Identity, CredentialState) { return who, CredentialValid })
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for i := range 30 { // a content delivery network publishes that many
		proxies = append(proxies, netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(64 + i), 0, 0}), 16))
	}
	request := &client{path: "/api", peer: netip.MustParseAddr("203.0.113.9"), remote: netip.MustParseAddr("10.0.0.1"),
		attr: map[string]string{"user": "u_42"}, query: "page=2&sort=name&key=k-1%2F2",
		header: map[string]string{"X-User": "u_42", "X-Api-Key": "k-1", "Authorization": "Bearer " + strings.Repeat("x", 700),
			"Cookie":        "theme=dark; session=0123456789abcdef0123456789abcdef; _ga=GA1.2.3",
			forwardedHeader: "198.51.100.7, 203.0.113.9, 172.70.0.9"}}
	six := *request
	six.header = map[string]string{forwardedHeader: "2001:db8:1:2:3:4:5:6, 10.0.0.2"}
	by := func(m Identify) Policy { return Policy{Identify: []Identify{m}} }
	key := func(from ...CredentialSource) Policy {
		return by(Identify{Kind: IdentifyAPIKey, Verifier: verifier, From: from})
	}
	return []asking{
		{"ip of the front", by(Identify{}), request, "ip"},
		{"ip by trusted proxies", Policy{TrustedProxies: proxies}, request, "ip"},
		{"ip by trusted proxies, IPv6", Policy{TrustedProxies: proxies}, &six, "ip"},
		{"ip by trusted hops", Policy{TrustedHops: 2}, request, "ip"},
		{"header", by(Identify{Kind: IdentifyHeader, Name: "X-User", Unverified: true}), request, "header.x-user"},
		{"cookie", by(Identify{Kind: IdentifyCookie, Name: "session", Unverified: true}), request, "cookie.session"},
		{"attr", by(Identify{Kind: IdentifyAttr, Name: "user"}), request, "attr.user"},
		{"jwt of 700 bytes", by(Identify{Kind: IdentifyJWT, Verifier: verifier}), request, "user"},
		{"api_key in a header", key(), request, "user"},
		{"api_key in an escaped query", key(CredentialSource{FromQuery, "key"}), request, "user"},
		{"api_key in a cookie", key(CredentialSource{FromCookie, "session"}), request, "user"},
		{"tenant and tier beside", Policy{Tenant: []Source{{Kind: SourceHost, Label: 1}}, Tier: []Source{{Name: "user"}}}, request, "ip"},
	}
}

// TestIdentifyAllocates: finding out who is asking costs no allocation, in whichever way.
func TestIdentifyAllocates(t *testing.T) {
	for _, w := range waysOfAsking() {
		w.policy.Rules = []Rule{{Name: "r", Limits: limits(t, "9/1m")}}
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

// BenchmarkIdentify measures finding out who is asking, in turns. The first is the baseline: an address that the front has
// found out.
func BenchmarkIdentify(b *testing.B) {
	var ways []inturns.Way
	for _, w := range waysOfAsking() {
		ways = append(ways, wayToIdentify(b, w.name, w.policy, w.request))
	}
	inturns.Measure(b, ways)
}

func wayToIdentify(b *testing.B, name string, p Policy, request *client) inturns.Way {
	p.Rules = []Rule{{Name: "r", Limits: []Limit{mustLimit(b, "9/1m")}}}
	rs := mustCompile(b, p)
	plan := new(Plan)
	plan.Add(rs, request)
	mark := len(plan.text)
	return inturns.Way{Name: name, Call: func() {
		plan.text, plan.credentials = plan.text[:mark], plan.credentials[:0]
		if plan.identify(rs) {
			b.Fatal("refused")
		}
	}}
}

// BenchmarkIdentifyHostile is what the longest headers cost that a client can send.
func BenchmarkIdentifyHostile(b *testing.B) {
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	for name, line := range map[string]string{
		"10,000 trusted addresses": strings.Repeat("10.0.0.2, ", 10_000) + "10.0.0.2",
		"one element of 1 MiB":     strings.Repeat("1", 1<<20),
		"1 MiB of commas":          strings.Repeat(",", 1<<20),
	} {
		b.Run(name, func(b *testing.B) {
			f := forwarding{trusted: newAddrSet(trusted)}
			a := &client{remote: trusted[0].Addr(), header: map[string]string{forwardedHeader: line}}
			b.ReportAllocs()
			for b.Loop() {
				if addr, _ := f.client(a); !addr.IsValid() {
					b.Fatal("no address")
				}
			}
		})
	}
	for name, cookies := range map[string]string{"64 KiB of cookies": strings.Repeat("a=1; ", 13_000),
		"1 MiB of cookies": strings.Repeat("a=1; ", 200_000)} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if value, _ := cookieValue(cookies, "session"); value != "" {
					b.Fatal(fmt.Sprint("found ", value))
				}
			}
		})
	}
}
