// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// TestListsTell: everybody of whom one of an entry's lists tells, until it ends; the first such entry gives the reason.
func TestListsTell(t *testing.T) {
	const now = 1_000 * Second
	known := map[string]Identity{"u": {Kind: "user", ID: "u", User: "u", Tier: "gold", Tenant: "acme"},
		"k": {Kind: "api_key", ID: "k", APIKey: "k", User: "owner"}}
	ip := func(text string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(text)} }
	list := []Listed{
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
		list   []Listed
		token  string
		peer   string
		reason string
	}{
		{list, "u", "203.0.113.1", "user"}, {list[:1], "u", "203.0.113.1", ""}, {list[2:], "u", "203.0.113.1", "later"},
		{list[4:], "u", "192.0.2.1", "tenant"}, {list, "", "192.0.2.1", "range"}, {list[6:], "", "192.0.2.1", "address"},
		{list, "", "::ffff:192.0.2.9", "range"}, {list, "", "203.0.113.1", ""}, {list, "", "2001:db8::7fff:ffff:ffff:ffff", "six"},
		{list, "", "2001:db8::8000:0:0:0", ""}, {list, "", "198.51.100.7", "mapped"}, {list, "", "", ""}, {nil, "u", "192.0.2.1", ""},
	} {
		for want, policy := range map[Outcome]Policy{OutcomeBlocked: {Block: c.list}, OutcomeExempt: {Exempt: c.list}} {
			by := tokenPolicy(known, Rule{Name: "r", Limits: limits(t, "9/1m")})
			by.Block, by.Exempt = policy.Block, policy.Exempt
			a := withToken(c.token)
			a.now, a.peer = now, netip.Addr{}
			if c.peer != "" {
				a.peer = netip.MustParseAddr(c.peer)
			}
			plan, d := newCounters().ask(t, a, mustCompile(t, by))
			told := ""
			if plan.toldBy != nil {
				told = plan.toldBy.reason
			}
			if c.reason == "" {
				want = OutcomeAllowed
			}
			if told != c.reason || d.Outcome != want {
				t.Errorf("%s from %s: %s, told %q, want %s, %q", c.token, c.peer, d.Outcome, told, want, c.reason)
			}
		}
	}
	// A key is a client of its own, whoever owns it.
	by := tokenPolicy(known, Rule{Name: "r", Limits: limits(t, "9/1m")})
	by.Block = list
	plan, d := newCounters().ask(t, &client{header: map[string]string{"X-Api-Key": "k"}}, mustCompile(t, by))
	if d.Status != 403 || plan.toldBy.at != "block[3]" || plan.toldBy.reason != "key" {
		t.Errorf("%+v, told by %+v", d, plan.toldBy)
	}
	// What one policy was told, the next was not.
	first, second := Policy{Name: "m", Exempt: list[5:6], Rules: by.Rules}, Policy{Name: "n", Rules: by.Rules}
	plan, d = newCounters().ask(t, get("192.0.2.1", "/"), mustCompile(t, first), mustCompile(t, second))
	if plan.toldBy != nil || d.Outcome != OutcomeAllowed {
		t.Errorf("%+v, told by %+v", d, plan.toldBy)
	}
}

// TestListsAgreeWithLooking: the index finds the entry that reading the whole list finds.
func TestListsAgreeWithLooking(t *testing.T) {
	rnd := newRandom(t)
	told := 0
	for range 300 {
		entries := make([]Listed, 1+rnd.IntN(12))
		for i := range entries {
			m := rnd.match()
			entries[i] = Listed{IP: m.IP, User: m.User, APIKey: m.APIKey, Tier: m.Tier, Tenant: m.Tenant, Until: Micros(rnd.IntN(3))}
			if entries[i].clients() == 0 {
				entries[i].User = []string{"y"}
			}
		}
		var v verifier
		v.lists("exempt", entries)
		l, ok := compileListed("exempt", entries)
		if len(v.problems) > 0 || !ok {
			t.Fatal(v.problems)
		}
		for range 50 {
			a := rnd.request()
			a.now = Micros(rnd.IntN(3))
			var p Plan
			p.request.read(a)
			p.asking = *rnd.identity()
			want := lookThrough(t, entries, &p, a.now)
			got := -1
			if e := p.find(l); e != nil {
				told++
				fmt.Sscanf(e.at, "exempt[%d]", &got)
			}
			if got != want {
				t.Fatalf("entry %d, want %d, of %+v for %+v from %s at %d", got, want, entries, p.asking, a.peer, a.now)
			}
		}
	}
	if told < 1000 {
		t.Errorf("only %d were told of", told)
	}
}

// lookThrough returns the first entry that tells of the client, -1 for none.
func lookThrough(t *testing.T, entries []Listed, p *Plan, now Micros) int {
	for i, e := range entries {
		if e.Until != 0 && e.Until <= now {
			continue
		}
		if len(e.IP) > 0 && compileAll(t, []Match{{IP: e.IP}})[0].holds(&p.request) {
			return i
		}
		for f, values := range e.byField() {
			for _, value := range values {
				if value == clientField(f).of(&p.asking) {
					return i
				}
			}
		}
	}
	return -1
}

// TestListProblems: each names its place and helps.
func TestListProblems(t *testing.T) {
	many := make([]Listed, listedMax+1)
	for _, c := range []struct {
		list []Listed
		path string
		why  string
	}{
		{[]Listed{{Reason: "spam"}}, "block[0]", "nobody"},
		{[]Listed{{User: []string{"u", ""}}}, "block[0].user[1]", "empty"},
		{[]Listed{{User: []string{"u"}}, {Tenant: []string{"a "}}}, "block[1].tenant[0]", "space"},
		{[]Listed{{Tier: []string{"*"}}}, "block[0].tier[0]", "wildcard"},
		{[]Listed{{APIKey: []string{strings.Repeat("k", 8193)}}}, "block[0].api_key[0]", "8193 bytes"},
		{[]Listed{{IP: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), {}}}}, "block[0].ip[1]", "address range"},
		{[]Listed{{IP: []netip.Prefix{netip.MustParsePrefix("::ffff:0:0/90")}}}, "block[0].ip[0]", "mapped"},
		{[]Listed{{User: []string{"u"}, Reason: strings.Repeat("r", 257)}}, "block[0].reason", "257 bytes"},
		{[]Listed{{User: []string{"u"}, Reason: "a\nb"}}, "block[0].reason", "control"},
		{[]Listed{{User: []string{"u"}, Until: -1}}, "block[0].until", "1970"},
		{many, "block", "more than 100000"},
		{[]Listed{{User: make([]string, listedMax+1)}}, "block", "more than 100000"},
	} {
		p := tokenPolicy(nil)
		p.Block = c.list
		paths, text := problemPaths(t, p)
		if len(paths) != 1 || paths[0] != c.path || !strings.Contains(text, c.why) {
			t.Errorf("%.200s\nwant %q about %s alone", text, c.why, c.path)
		}
	}
}

// longListing blocks n addresses and n users, one entry each.
func longListing(tb testing.TB, n int) *Ruleset {
	who := &Identity{Kind: "user", ID: "u", User: "u"}
	p := tokenPolicy(nil, Rule{Name: "r", Limits: []Limit{mustLimit(tb, "9/1m")}})
	p.Identify[0].Verifier = verifierFunc(func() (*Identity, CredentialState) { return who, CredentialValid })
	for i := range n {
		a := netip.AddrFrom4([4]byte{100, byte(i >> 16), byte(i >> 8), byte(i)})
		p.Block = append(p.Block, Listed{IP: []netip.Prefix{netip.PrefixFrom(a, 32-i%3)}, User: []string{fmt.Sprintf("user-%d", i)}, Until: Micros(i % 2)})
	}
	return mustCompile(tb, p)
}

// TestListsAllocateNothing: whoever is looked up, in however long a list.
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
				if plan.find(rs.block) != nil {
					b.Fatal("blocked")
				}
			}
		})
	}
}
