// SPDX-License-Identifier: Apache-2.0

package match_test

import (
	"net/netip"
	"testing"

	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/internal/test/request"
)

// oddAddresses are addresses, and texts that are almost addresses.
func oddAddresses() []string {
	return []string{"", ".", ":", "::", ":::", "1.2.3.4", "1.2.3", "1.2.3.4.", ".1.2.3.4", "1..3.4", "1.2.3.4.5", "01.2.3.4", "1.2.3.256", "0.0.0.0",
		"1.2.3.00", "1.2.3.-4", "1.2.3.4 ", "::1", "1::", "::1::", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "1:2:3:4:5:6:7::",
		"::2:3:4:5:6:7:8", "1:2:3:4:5:6:7::8", "1:2:3::5:6:7:8", "::1:2:3:4:5:6:7:8", "12345::", "g::", "::ffff:1.2.3.4", "::1.2.3.4", "1:2:3:4:5:6:1.2.3.4",
		"1:2:3:4:5:6:7:1.2.3.4", "1:2:3:4:5:1.2.3.4", "::1.2.3", "::1.2.3.4:5", "1.2.3.4::", "2001:DB8::A", "2001:db8::1:", ":1::", "::00001", "1:::2", "a:b"}
}

// FuzzParseAddr: texts without a zone are parsed as netip parses them, and invalid input allocates
// no memory.
func FuzzParseAddr(f *testing.F) {
	for _, text := range oddAddresses() {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		want, err := netip.ParseAddr(text)
		if want.Zone() != "" {
			return
		}
		if got, ok := match.ParseAddr(text); ok != (err == nil) || ok && got != want {
			t.Fatalf("%q is %s (%v), netip says %s (%v)", text, got, ok, want, err)
		}
	})
}

// TestParseAddrSpellings: every form that netip prints is parsed back.
func TestParseAddrSpellings(t *testing.T) {
	rnd := request.NewRandom(t)
	for range 20_000 {
		var b [16]byte
		for i := range b {
			if rnd.IntN(3) > 0 {
				b[i] = byte(rnd.Uint32())
			}
		}
		four, six := netip.AddrFrom4([4]byte(b[:])), netip.AddrFrom16(b)
		mapped := netip.AddrFrom16(four.As16())
		for _, c := range []struct {
			text string
			want netip.Addr
		}{{four.String(), four}, {six.String(), six}, {six.StringExpanded(), six}, {mapped.String(), mapped}} {
			if got, ok := match.ParseAddr(c.text); !ok || got != c.want {
				t.Fatalf("%q is %s", c.text, got)
			}
		}
	}
	if n := testing.AllocsPerRun(10, func() {
		for _, text := range oddAddresses() {
			match.ParseAddr(text)
		}
	}) - testing.AllocsPerRun(10, func() { oddAddresses() }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestAddrSetAgreesWithPrefixes: a set of overlapping and adjacent ranges contains exactly the
// addresses of its ranges.
func TestAddrSetAgreesWithPrefixes(t *testing.T) {
	rnd := request.NewRandom(t)
	addr := func() netip.Addr {
		if rnd.IntN(2) == 0 {
			return netip.AddrFrom4([4]byte{10, byte(rnd.IntN(3)), byte(rnd.IntN(3)), byte(rnd.Uint32())})
		}
		return netip.AddrFrom16([16]byte{0x20, 1, 15: byte(rnd.Uint32()), 7: byte(rnd.IntN(3))})
	}
	inside := 0
	for range 500 {
		prefixes := make([]netip.Prefix, rnd.IntN(12))
		for i := range prefixes {
			a := addr()
			prefixes[i] = netip.PrefixFrom(a, rnd.IntN(a.BitLen()+1)).Masked()
			if rnd.IntN(2) == 0 {
				prefixes[i] = netip.PrefixFrom(a, a.BitLen()-rnd.IntN(10)).Masked()
			}
		}
		set := match.NewAddrSet(prefixes)
		for range 100 {
			a, want := addr(), false
			for _, p := range prefixes {
				want = want || p.Contains(a)
			}
			if want {
				inside++
			}
			if got := set.Contains(a); got != want {
				t.Fatalf("%v contain %s: %v", prefixes, a, got)
			}
		}
		if set.Contains(netip.Addr{}) {
			t.Fatalf("%v contain no address", prefixes)
		}
	}
	if inside < 1000 {
		t.Errorf("only %d addresses were inside", inside)
	}
}
