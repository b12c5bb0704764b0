// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/request"
	"net/netip"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/internal/identify"
	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/internal/validate"
	"github.com/penstock/penstock/core/policy"
)

// TestListsTell tests that an entry applies to every client in one of its lists, until the entry
// ends. The first entry that applies gives the reason.
func TestListsTell(t *testing.T) {
	const now = 1_000 * counter.Second
	known := map[string]policy.Identity{"u": {Kind: "user", ID: "u", User: "u", Tier: "gold", Tenant: "acme"},
		"k": {Kind: "api_key", ID: "k", APIKey: "k", User: "owner"}}
	ip := func(text string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(text)} }
	list := []policy.Listed{
		{User: []string{"u"}, Reason: "ended", Until: now},
		{User: []string{"nobody", "u"}, Reason: "user", Until: now + 1},
		{User: []string{"u"}, Tier: []string{"gold"}, Reason: "later"},
		{APIKey: []string{"k", "k"}, Reason: "key"},
		{Tenant: []string{"acme"}, Reason: "tenant"},
		{IP: ip("192.0.2.0/24"), Reason: "range"},
		{IP: ip("192.0.2.1/32"), Reason: "address", Until: now + 1},
		{IP: ip("2001:db8::/65"), Reason: "six"},
		{IP: ip("::ffff:198.51.100.0/120"), Reason: "mapped"},
	}
	for _, c := range []struct {
		list   []policy.Listed
		token  string
		peer   string
		reason string
	}{
		{list: list, token: "u", peer: "203.0.113.1", reason: "user"},
		{list: list[:1], token: "u", peer: "203.0.113.1"},
		{list: list[2:], token: "u", peer: "203.0.113.1", reason: "later"},
		{list: list[4:], token: "u", peer: "192.0.2.1", reason: "tenant"},
		{list: list, peer: "192.0.2.1", reason: "range"}, {list: list[6:], peer: "192.0.2.1", reason: "address"},
		{list: list, peer: "::ffff:192.0.2.9", reason: "range"}, {list: list, peer: "203.0.113.1"},
		{list: list, peer: "2001:db8::7fff:ffff:ffff:ffff", reason: "six"},
		{list: list, peer: "2001:db8::8000:0:0:0"}, {list: list, peer: "198.51.100.7", reason: "mapped"}, {list: list},
		{token: "u", peer: "192.0.2.1"},
	} {
		for want, pol := range map[Outcome]policy.Policy{OutcomeBlocked: {Block: c.list}, OutcomeExempt: {Exempt: c.list}} {
			by := tokenPolicy(known, policy.Rule{Name: "r", Limits: limittest.All(t, "9/1m")})
			by.Block, by.Exempt = pol.Block, pol.Exempt
			a := withToken(c.token)
			a.now, a.peer = now, netip.Addr{}
			if c.peer != "" {
				a.peer = netip.MustParseAddr(c.peer)
			}
			plan, d := newCounters().ask(t, a, mustCompile(t, by))
			told := ""
			if plan.who.Entry != nil {
				told = plan.who.Entry.Reason
			}
			if c.reason == "" {
				want = OutcomeAllowed
			}
			if told != c.reason || d.Outcome != want {
				t.Errorf("%s from %s: %s, told %q, want %s, %q", c.token, c.peer, d.Outcome, told, want, c.reason)
			}
		}
	}
	// An API key is a separate client, whoever owns it.
	by := tokenPolicy(known, policy.Rule{Name: "r", Limits: limittest.All(t, "9/1m")})
	by.Block = list
	plan, d := newCounters().ask(t, &client{header: map[string]string{"X-Api-Key": "k"}}, mustCompile(t, by))
	if d.Status != 403 || plan.who.Entry.At != "block[3]" || plan.who.Entry.Reason != "key" {
		t.Errorf("%+v, told by %+v", d, plan.who.Entry)
	}
	// The entry that one policy finds does not affect the next policy.
	first, second := policy.Policy{Name: "m", Exempt: list[5:6], Rules: by.Rules}, policy.Policy{Name: "n", Rules: by.Rules}
	plan, d = newCounters().ask(t, get("192.0.2.1", "/"), mustCompile(t, first), mustCompile(t, second))
	if plan.who.Entry != nil || d.Outcome != OutcomeAllowed {
		t.Errorf("%+v, told by %+v", d, plan.who.Entry)
	}
}

// TestListsAgreeWithLooking: the index finds the same entry as a linear search.
func TestListsAgreeWithLooking(t *testing.T) {
	rnd := request.NewRandom(t)
	told := 0
	for range 300 {
		entries := make([]policy.Listed, 1+rnd.IntN(12))
		for i := range entries {
			m := rnd.Match()
			entries[i] = policy.Listed{IP: m.IP, User: m.User, APIKey: m.APIKey, Tier: m.Tier, Tenant: m.Tenant, Until: counter.Micros(rnd.IntN(3))}
			if entries[i].Clients() == 0 {
				entries[i].User = []string{"y"}
			}
		}
		var v validate.Verifier
		v.Lists("exempt", entries)
		l, ok := identify.CompileList("exempt", entries)
		if len(v.Problems) > 0 || !ok {
			t.Fatal(v.Problems)
		}
		for range 50 {
			a := rnd.Request()
			a.Time = counter.Micros(rnd.IntN(3))
			var p Plan
			p.who.Request.Read(a)
			p.who.Identity = *rnd.Identity()
			want := firstListed(t, entries, &p, a.Time)
			got := -1
			if e := p.who.Find(l); e != nil {
				told++
				fmt.Sscanf(e.At, "exempt[%d]", &got)
			}
			if got != want {
				t.Fatalf("entry %d, want %d, of %+v for %+v from %s at %d", got, want, entries, p.who.Identity, a.PeerAddr, a.Time)
			}
		}
	}
	if told < 1000 {
		t.Errorf("only %d were told of", told)
	}
}

// firstListed returns the first entry that applies to the client, or -1.
func firstListed(t *testing.T, entries []policy.Listed, p *Plan, now counter.Micros) int {
	for i, e := range entries {
		if e.Until != 0 && e.Until <= now {
			continue
		}
		if len(e.IP) > 0 && compileAll(t, []policy.Match{{IP: e.IP}})[0].Holds(&p.who.Request) {
			return i
		}
		for f, values := range identify.ByField(&e) {
			for _, value := range values {
				if value == match.ClientField(f).Of(&p.who.Identity) {
					return i
				}
			}
		}
	}
	return -1
}

// TestListProblems: each problem names its place and a remedy.
func TestListProblems(t *testing.T) {
	many := make([]policy.Listed, identify.ListedMax+1)
	for _, c := range []struct {
		list []policy.Listed
		path string
		why  string
	}{
		{[]policy.Listed{{Reason: "spam"}}, "block[0]", "names no client"},
		{[]policy.Listed{{User: []string{"u", ""}}}, "block[0].user[1]", "empty"},
		{[]policy.Listed{{User: []string{"u"}}, {Tenant: []string{"a "}}}, "block[1].tenant[0]", "space"},
		{[]policy.Listed{{Tier: []string{"*"}}}, "block[0].tier[0]", "wildcard"},
		{[]policy.Listed{{APIKey: []string{strings.Repeat("k", 8193)}}}, "block[0].api_key[0]", "8193 bytes"},
		{[]policy.Listed{{IP: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), {}}}}, "block[0].ip[1]", "address range"},
		{[]policy.Listed{{IP: []netip.Prefix{netip.MustParsePrefix("::ffff:0:0/90")}}}, "block[0].ip[0]", "mapped"},
		{[]policy.Listed{{User: []string{"u"}, Reason: strings.Repeat("r", 257)}}, "block[0].reason", "257 bytes"},
		{[]policy.Listed{{User: []string{"u"}, Reason: "a\nb"}}, "block[0].reason", "control"},
		{[]policy.Listed{{User: []string{"u"}, Until: -1}}, "block[0].until", "1970"},
		{many, "block", "more than 100000"},
		{[]policy.Listed{{User: make([]string, identify.ListedMax+1)}}, "block", "more than 100000"},
	} {
		p := tokenPolicy(nil)
		p.Block = c.list
		paths, text := problemPaths(t, p)
		if len(paths) != 1 || paths[0] != c.path || !strings.Contains(text, c.why) {
			t.Errorf("%.200s\nwant %q about %s alone", text, c.why, c.path)
		}
	}
}

// longListing returns a policy whose list "block" has n entries, each with an address range and a
// user.
func longListing(tb testing.TB, n int) *Ruleset {
	who := &policy.Identity{Kind: "user", ID: "u", User: "u"}
	p := tokenPolicy(nil, policy.Rule{Name: "r", Limits: []counter.Limit{limittest.Parse(tb, "9/1m")}})
	p.Identify[0].Verifier = verifierFunc(func() (*policy.Identity, policy.CredentialState) { return who, policy.CredentialValid })
	for i := range n {
		a := netip.AddrFrom4([4]byte{100, byte(i >> 16), byte(i >> 8), byte(i)})
		p.Block = append(p.Block, policy.Listed{IP: []netip.Prefix{netip.PrefixFrom(a, 32-i%3)}, User: []string{fmt.Sprintf("user-%d", i)}, Until: counter.Micros(i % 2)})
	}
	return mustCompile(tb, p)
}

// TestListsAllocateNothing: looking up a client allocates nothing, however long the list.
func TestListsAllocateNothing(t *testing.T) {
	rs := longListing(t, 10_000)
	var plan Plan
	for _, a := range []*client{withToken("u"), get("100.0.1.1", "/"), get("2001:db8::1", "/")} {
		if n := testing.AllocsPerRun(100, func() { plan.Reset(); plan.Add(rs, a); plan.Decide() }); n != 0 {
			t.Errorf("%s: %v allocations", a.peer, n)
		}
	}
}

func BenchmarkListed(b *testing.B) {
	for _, n := range []int{0, 10, 10_000} {
		b.Run(fmt.Sprintf("entries=%d", n), func(b *testing.B) {
			rs := longListing(b, n)
			var plan Plan
			plan.Add(rs, withToken("u"))
			b.ReportAllocs()
			for b.Loop() {
				if plan.who.Find(rs.block) != nil {
					b.Fatal("blocked")
				}
			}
		})
	}
}
