// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
)

// spoofCase is one case of testdata/spoof: words with their values, in order.
type spoofCase struct {
	name  string
	words [][2]string
}

// readSpoofs reads a corpus: a case begins with the word first, and each line is a word and a value.
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

// addressCase is a case of ip.txt made ready.
type addressCase struct {
	policy  Policy
	request client
	counted string
}

func newAddressCase(t testing.TB, c spoofCase) addressCase {
	t.Helper()
	out := addressCase{policy: Policy{Name: "n", Identify: []Identify{{}}, Rules: []Rule{{Name: "r", Limits: []Limit{mustLimit(t, "1/1m")}}}}}
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
		out.request.header = map[string]string{forwardedHeader: strings.Join(lines, ", ")}
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

// TestAddressSpoofs: nothing a client writes makes it count as another, nor as one of many.
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
				t.Errorf("counted as %s, want %s (%s)", got, c.counted, plan.request.origin)
			}
			if n := testing.AllocsPerRun(20, func() { plan.Reset(); plan.Add(rs, &c.request) }); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}

// TestAddressIsTheSameEverywhere: rules per address, matches, exemptions and blocks use the address that counts.
func TestAddressIsTheSameEverywhere(t *testing.T) {
	theirs := []netip.Prefix{netip.MustParsePrefix("203.0.113.9/32")}
	rs := mustCompile(t, Policy{Name: "n", TrustedHops: 1, Rules: []Rule{
		{Name: "per", Limits: limits(t, "9/1m"), Per: []Dimension{{Kind: PerIP}}},
		{Name: "match", Limits: limits(t, "9/1m"), Match: Match{IP: theirs}}}})
	request := &client{peer: netip.MustParseAddr("1.1.1.1"), remote: netip.MustParseAddr("10.0.0.1"),
		header: map[string]string{forwardedHeader: "203.0.113.9"}}
	plan, _ := newCounters().ask(t, request, rs)
	wantKeys(t, plan, "rl1:n:per:{ip:203.0.113.9}:60s:sw", "rl1:n:match:{ip:203.0.113.9}:60s:sw")

	all := []Rule{{Name: "r", Limits: limits(t, "9/1m")}}
	for want, policy := range map[Outcome]Policy{
		OutcomeExempt:  {Name: "n", TrustedHops: 1, Rules: all, Exempt: []Listed{{IP: theirs}}},
		OutcomeBlocked: {Name: "n", TrustedHops: 1, Rules: all, Block: []Listed{{IP: theirs}}},
	} {
		if _, d := newCounters().ask(t, request, mustCompile(t, policy)); d.Outcome != want {
			t.Errorf("%s, want %s", d.Outcome, want)
		}
	}
}

// TestAddressOrigins: explanations say why it is this address.
func TestAddressOrigins(t *testing.T) {
	proxy, direct := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("203.0.113.9")
	trusted := forwarding{trusted: newAddrSet([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")})}
	for _, c := range []struct {
		f      forwarding
		remote netip.Addr
		line   string
		want   addressOrigin
	}{
		{forwarding{}, proxy, "1.2.3.4", addressOfFront}, {trusted, direct, "1.2.3.4", addressOfConnection},
		{trusted, proxy, "1.2.3.4", addressForwarded}, {trusted, proxy, "10.0.0.2", addressAllTrusted},
		{trusted, proxy, "x", addressGarbage}, {forwarding{hops: 1}, proxy, "1.2.3.4", addressForwarded},
		{forwarding{hops: 2}, proxy, "1.2.3.4", addressShort}, {forwarding{hops: 1}, proxy, "x", addressGarbage},
	} {
		a := &client{remote: c.remote, header: map[string]string{forwardedHeader: c.line}}
		if addr, got := c.f.client(a); got != c.want || got.String() == "" {
			t.Errorf("%v from %s, %q: %s %q, want %q", c.f, c.remote, c.line, addr, got, c.want)
		}
	}
}

// FuzzForwarded: whatever stands left of what our proxies wrote, the result is the same, and always a plain address that
// is the peer's or in the header.
func FuzzForwarded(f *testing.F) {
	for _, c := range readSpoofs(f, "ip.txt", "attack") {
		f.Add(newAddressCase(f, c).request.header[forwardedHeader])
	}
	trusted := forwarding{trusted: newAddrSet([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")})}
	remote, want := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("203.0.113.9")
	f.Fuzz(func(t *testing.T, left string) {
		for _, right := range []string{"203.0.113.9", "203.0.113.9:80, 10.0.0.7", "::ffff:203.0.113.9,[2001:db8::1]:443, ,10.0.0.2"} {
			if got, _ := trusted.rightmost(left+","+right, remote); got != want {
				t.Fatalf("%q before %q: %s", left, right, got)
			}
			hops := 3
			if !strings.Contains(right, "2001") {
				hops = strings.Count(right, ",") + 1
			}
			if got, _ := chainAddr(left+","+right, remote, hops); got != want {
				t.Fatalf("%q before %q, %d places: %s", left, right, hops, got)
			}
		}
		for _, f := range []forwarding{trusted, {hops: 1}, {hops: 3}} {
			a := &client{remote: remote, header: map[string]string{forwardedHeader: left}}
			got, _ := f.client(a)
			if !got.IsValid() || got != plainAddr(got) {
				t.Fatalf("%q: %s", left, got)
			}
		}
	})
}
