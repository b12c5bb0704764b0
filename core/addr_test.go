// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"testing"
)

// oddAddresses are texts that are addresses to some readers only.
func oddAddresses() []string {
	return []string{"", ".", ":", "::", ":::", "1.2.3.4", "1.2.3", "1.2.3.4.", ".1.2.3.4", "1..3.4", "1.2.3.4.5", "01.2.3.4", "1.2.3.256", "0.0.0.0",
		"1.2.3.00", "1.2.3.-4", "1.2.3.4 ", "::1", "1::", "::1::", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "1:2:3:4:5:6:7::",
		"::2:3:4:5:6:7:8", "1:2:3:4:5:6:7::8", "1:2:3::5:6:7:8", "::1:2:3:4:5:6:7:8", "12345::", "g::", "::ffff:1.2.3.4", "::1.2.3.4", "1:2:3:4:5:6:1.2.3.4",
		"1:2:3:4:5:6:7:1.2.3.4", "1:2:3:4:5:1.2.3.4", "::1.2.3", "::1.2.3.4:5", "1.2.3.4::", "2001:DB8::A", "2001:db8::1:", ":1::", "::00001", "1:::2", "a:b"}
}

// FuzzParseAddr: an address is what netip says it is, for texts without a zone, and garbage costs no memory.
func FuzzParseAddr(f *testing.F) {
	for _, text := range oddAddresses() {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		want, err := netip.ParseAddr(text)
		if want.Zone() != "" {
			return
		}
		if got, ok := parseAddr(text); ok != (err == nil) || ok && got != want {
			t.Fatalf("%q is %s (%v), netip says %s (%v)", text, got, ok, want, err)
		}
	})
}

// TestParseAddrSpellings: what netip prints is read back, in all its forms.
func TestParseAddrSpellings(t *testing.T) {
	rnd := newRandom(t)
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
			if got, ok := parseAddr(c.text); !ok || got != c.want {
				t.Fatalf("%q is %s", c.text, got)
			}
		}
	}
	if n := testing.AllocsPerRun(10, func() {
		for _, text := range oddAddresses() {
			parseAddr(text)
		}
	}) - testing.AllocsPerRun(10, func() { oddAddresses() }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestAddrSetAgreesWithPrefixes: overlapping and neighbouring ranges hold exactly what one of them holds.
func TestAddrSetAgreesWithPrefixes(t *testing.T) {
	rnd := newRandom(t)
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
		set := newAddrSet(prefixes)
		for range 100 {
			a, want := addr(), false
			for _, p := range prefixes {
				want = want || p.Contains(a)
			}
			if want {
				inside++
			}
			if got := set.contains(a); got != want {
				t.Fatalf("%v contain %s: %v", prefixes, a, got)
			}
		}
		if set.contains(netip.Addr{}) {
			t.Fatalf("%v contain no address", prefixes)
		}
	}
	if inside < 1000 {
		t.Errorf("only %d addresses were inside", inside)
	}
}

// TestAppendAddrAgreesWithPrefixes: a prefix stands in keys as netip writes it, whatever groups of it are zero.
func TestAppendAddrAgreesWithPrefixes(t *testing.T) {
	rnd := newRandom(t)
	for range 20_000 {
		var a [16]byte
		for i := 0; i < len(a); i += 2 {
			group := []uint16{0, 0, 1, 0x20, 0x300, 0xffff, uint16(rnd.Uint32())}[rnd.IntN(7)]
			a[i], a[i+1] = byte(group>>8), byte(group)
		}
		addr := netip.AddrFrom16(a).Unmap()
		bits := 1 + rnd.IntN(addr.BitLen())
		want := netip.PrefixFrom(addr, bits).Masked().String()
		if bits == addr.BitLen() {
			want = addr.String()
		}
		if got := string(appendAddr([]byte("x"), addr, prefixBits{bits, bits})); got != "x"+want {
			t.Fatalf("%s of %d bits: %q, want %q", addr, bits, got[1:], want)
		}
	}
}
