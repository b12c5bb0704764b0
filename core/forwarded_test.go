// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/internal/test/limittest"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/internal/identify"
	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/policy"
)

// spoofCase is one case of testdata/spoof: pairs of a word and a value, in order.
type spoofCase struct {
	name  string
	words [][2]string
}

// readSpoofs parses a corpus. Each case begins with the word given by the last argument. Each
// line is a word and a value.
func readSpoofs(t testing.TB, file, first string) (cases []spoofCase) {
	t.Helper()
	text, err := os.ReadFile("testdata/spoof/" + file)
	if err != nil {
		t.Fatal(err)
	}
	for number, line := range strings.Split(string(text), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		word, value, _ := strings.Cut(line, " ")
		if strings.HasPrefix(value, `"`) {
			if value, err = strconv.Unquote(value); err != nil {
				t.Fatalf("%s:%d: %v", file, number+1, err)
			}
		}
		if word == first {
			cases = append(cases, spoofCase{name: value})
			continue
		}
		if len(cases) == 0 {
			t.Fatalf("%s:%d: no case yet", file, number+1)
		}
		last := &cases[len(cases)-1]
		last.words = append(last.words, [2]string{word, value})
	}
	return cases
}

// addressCase is a parsed case of ip.txt.
type addressCase struct {
	policy  policy.Policy
	request client
	counted string
}

func newAddressCase(t testing.TB, c spoofCase) addressCase {
	t.Helper()
	out := addressCase{policy: policy.Policy{Name: "n", Identify: []policy.Identify{{}}, Rules: []policy.Rule{{Name: "r", Limits: []counter.Limit{limittest.Parse(t, "1/1m")}}}}}
	var lines []string
	for _, w := range c.words {
		switch word, value := w[0], w[1]; word {
		case "trusted":
			for _, prefix := range strings.Fields(value) {
				out.policy.TrustedProxies = append(out.policy.TrustedProxies, netip.MustParsePrefix(prefix))
			}
		case "hops":
			out.policy.TrustedHops = atoi(t, value)
		case "ipv4_prefix":
			out.policy.Identify[0].IPv4Prefix = atoi(t, value)
		case "ipv6_prefix":
			out.policy.Identify[0].IPv6Prefix = atoi(t, value)
		case "remote":
			out.request.remote = netip.MustParseAddr(value)
		case "front":
			out.request.peer = netip.MustParseAddr(value)
		case "line":
			lines = append(lines, value)
		case "many":
			n, text, _ := strings.Cut(value, " ")
			text = strings.Trim(text, `"`)
			lines = append(lines, strings.Repeat(text+", ", atoi(t, n)-1)+text)
		case "counted":
			out.counted = value
		default:
			t.Fatalf("%s: unknown word %q", c.name, word)
		}
	}
	if len(lines) > 0 {
		out.request.header = map[string]string{identify.ForwardedHeader: strings.Join(lines, ", ")}
	}
	return out
}

func atoi(t testing.TB, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestAddressSpoofs: no header lets a client be counted as another client or as several clients.
func TestAddressSpoofs(t *testing.T) {
	cases := readSpoofs(t, "ip.txt", "attack")
	if len(cases) < 40 {
		t.Fatalf("only %d cases", len(cases))
	}
	for _, spoof := range cases {
		t.Run(spoof.name, func(t *testing.T) {
			c := newAddressCase(t, spoof)
			rs := mustCompile(t, c.policy)
			var plan Plan
			plan.Add(rs, &c.request)
			got := plan.Identity().ID
			if got == "" {
				got = "nobody"
			}
			if got != c.counted {
				t.Errorf("counted as %s, want %s (%s)", got, c.counted, plan.who.Request.Origin)
			}
			if n := testing.AllocsPerRun(20, func() { plan.Reset(); plan.Add(rs, &c.request) }); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}

// TestAddressIsTheSameEverywhere: per-address rules, matches, exemptions and blocks all use the
// same address.
func TestAddressIsTheSameEverywhere(t *testing.T) {
	theirs := []netip.Prefix{netip.MustParsePrefix("203.0.113.9/32")}
	rs := mustCompile(t, policy.Policy{Name: "n", TrustedHops: 1, Rules: []policy.Rule{
		{Name: "per", Limits: limittest.All(t, "9/1m"), Per: []policy.Dimension{{Kind: policy.PerIP}}},
		{Name: "match", Limits: limittest.All(t, "9/1m"), Match: policy.Match{IP: theirs}}}})
	request := &client{peer: netip.MustParseAddr("1.1.1.1"), remote: netip.MustParseAddr("10.0.0.1"),
		header: map[string]string{identify.ForwardedHeader: "203.0.113.9"}}
	plan, _ := newCounters().ask(t, request, rs)
	wantKeys(t, plan, "rl1:n:per:{ip:203.0.113.9}:60s:sw", "rl1:n:match:{ip:203.0.113.9}:60s:sw")

	all := []policy.Rule{{Name: "r", Limits: limittest.All(t, "9/1m")}}
	for want, policy := range map[Outcome]policy.Policy{
		OutcomeExempt:  {Name: "n", TrustedHops: 1, Rules: all, Exempt: []policy.Listed{{IP: theirs}}},
		OutcomeBlocked: {Name: "n", TrustedHops: 1, Rules: all, Block: []policy.Listed{{IP: theirs}}},
	} {
		if _, d := newCounters().ask(t, request, mustCompile(t, policy)); d.Outcome != want {
			t.Errorf("%s, want %s", d.Outcome, want)
		}
	}
}

// TestAddressOrigins: explanations state where the address came from.
func TestAddressOrigins(t *testing.T) {
	proxy, direct := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("203.0.113.9")
	trusted := identify.Forwarding{Trusted: match.NewAddrSet([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")})}
	for _, c := range []struct {
		f      identify.Forwarding
		remote netip.Addr
		line   string
		want   match.AddressOrigin
	}{
		{identify.Forwarding{}, proxy, "1.2.3.4", match.AddressOfFront}, {trusted, direct, "1.2.3.4", match.AddressOfConnection},
		{trusted, proxy, "1.2.3.4", match.AddressForwarded}, {trusted, proxy, "10.0.0.2", match.AddressAllTrusted},
		{trusted, proxy, "x", match.AddressGarbage}, {identify.Forwarding{Hops: 1}, proxy, "1.2.3.4", match.AddressForwarded},
		{identify.Forwarding{Hops: 2}, proxy, "1.2.3.4", match.AddressShort}, {identify.Forwarding{Hops: 1}, proxy, "x", match.AddressGarbage},
	} {
		a := &client{remote: c.remote, header: map[string]string{identify.ForwardedHeader: c.line}}
		if addr, got := c.f.Client(a); got != c.want || got.String() == "" {
			t.Errorf("%v from %s, %q: %s %q, want %q", c.f, c.remote, c.line, addr, got, c.want)
		}
	}
}

// FuzzForwarded: text to the left of the elements that trusted proxies wrote does not change the
// result. The result is always a plain address, either the peer's or one from the header.
func FuzzForwarded(f *testing.F) {
	for _, c := range readSpoofs(f, "ip.txt", "attack") {
		f.Add(newAddressCase(f, c).request.header[identify.ForwardedHeader])
	}
	trusted := identify.Forwarding{Trusted: match.NewAddrSet([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")})}
	remote, want := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("203.0.113.9")
	f.Fuzz(func(t *testing.T, left string) {
		for _, right := range []string{"203.0.113.9", "203.0.113.9:80, 10.0.0.7", "::ffff:203.0.113.9,[2001:db8::1]:443, ,10.0.0.2"} {
			if got, _ := trusted.Rightmost(left+","+right, remote); got != want {
				t.Fatalf("%q before %q: %s", left, right, got)
			}
			hops := 3
			if !strings.Contains(right, "2001") {
				hops = strings.Count(right, ",") + 1
			}
			if got, _ := identify.ChainAddr(left+","+right, remote, hops); got != want {
				t.Fatalf("%q before %q, %d places: %s", left, right, hops, got)
			}
		}
		for _, f := range []identify.Forwarding{trusted, {Hops: 1}, {Hops: 3}} {
			a := &client{remote: remote, header: map[string]string{identify.ForwardedHeader: left}}
			got, _ := f.Client(a)
			if !got.IsValid() || got != match.PlainAddr(got) {
				t.Fatalf("%q: %s", left, got)
			}
		}
	})
}
