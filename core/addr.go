// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"slices"
	"strings"
)

// plainAddr brings an address into the one form in which addresses are compared: IPv4 out of IPv6, no zone.
func plainAddr(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// parseAddr reads an address that a stranger wrote: what [netip.ParseAddr] reads, but for zones. It does not allocate,
// where netip's errors do: whoever sends garbage is not to make the proxy collect it.
func parseAddr(text string) (addr netip.Addr, ok bool) {
	if strings.IndexByte(text, ':') < 0 {
		four, ok := parseIPv4(text)
		return netip.AddrFrom4(four), ok
	}
	six, ok := parseIPv6(text)
	return netip.AddrFrom16(six), ok
}

// parseIPv4 reads four decimals without leading zeros, which some take for octal.
func parseIPv4(s string) (a [4]byte, ok bool) {
	field, digits, n := 0, 0, 0
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case isDigit(c):
			n, digits = n*10+int(c-'0'), digits+1
			if n > 255 || digits > 1 && n < 10 {
				return a, false
			}
		case c == '.' && digits > 0 && field < 3:
			a[field] = byte(n)
			field, digits, n = field+1, 0, 0
		default:
			return a, false
		}
	}
	a[field] = byte(n)
	return a, field == 3 && digits > 0
}

// parseIPv6 reads up to eight groups, of which "::" stands for one or more that are zero and a dotted IPv4 address for
// the last two.
func parseIPv6(s string) (a [16]byte, ok bool) {
	at, gap := 0, -1 // where the next group goes, and where "::" stood
	if strings.HasPrefix(s, "::") {
		gap, s = 0, s[2:]
	}
	for s != "" {
		group, digits := hexGroup(s)
		if digits == 0 || digits > 4 || at > 14 {
			return a, false
		}
		if digits < len(s) && s[digits] == '.' {
			four, ok := parseIPv4(s)
			if !ok || at > 12 {
				return a, false
			}
			at += copy(a[at:], four[:])
			break
		}
		a[at], a[at+1] = byte(group>>8), byte(group)
		at += 2
		if s = s[digits:]; s == "" {
			break
		}
		if s[0] != ':' || len(s) == 1 {
			return a, false
		}
		if s = s[1:]; s[0] == ':' {
			if gap >= 0 {
				return a, false
			}
			gap, s = at, s[1:]
		}
	}
	if gap < 0 || at == len(a) {
		return a, gap < 0 && at == len(a)
	}
	copy(a[len(a)-(at-gap):], a[gap:at])
	clear(a[gap : len(a)-(at-gap)])
	return a, true
}

// hexGroup reads the hexadecimal digits that s begins with, five at most.
func hexGroup(s string) (n, digits int) {
	for digits < len(s) && digits <= 4 {
		if !isHex(s[digits]) {
			break
		}
		n, digits = n<<4|int(hexDigit(s[digits])), digits+1
	}
	return n, digits
}

// addrSet is a set of address ranges: sorted, none touching another of its IP version from within. Looking an address up
// costs a comparison for each doubling of their number.
type addrSet []addrRange

type addrRange struct{ first, last netip.Addr }

// newAddrSet returns the set of the prefixes, which are masked and unmapped.
func newAddrSet(prefixes []netip.Prefix) addrSet {
	sorted := make(addrSet, len(prefixes))
	for i, p := range prefixes {
		sorted[i] = addrRange{p.Addr(), lastAddr(p)}
	}
	slices.SortFunc(sorted, func(a, b addrRange) int { return a.first.Compare(b.first) })
	set := sorted[:0]
	for _, r := range sorted {
		// Of two prefixes one holds the other, or they have nothing in common.
		if len(set) == 0 || set[len(set)-1].last.Compare(r.first) < 0 {
			set = append(set, r)
		} else if top := &set[len(set)-1]; top.last.Compare(r.last) < 0 {
			top.last = r.last
		}
	}
	return set
}

// lastAddr returns the last address of the prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	if p.Addr().Is4() {
		b := p.Addr().As4()
		fillBits(b[:], p.Bits())
		return netip.AddrFrom4(b)
	}
	b := p.Addr().As16()
	fillBits(b[:], p.Bits())
	return netip.AddrFrom16(b)
}

// fillBits sets all bits from the given one on.
func fillBits(b []byte, from int) {
	for i := from; i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
}

// contains reports whether the address, which is plain, is in one of the ranges. The zero Addr is in none.
func (s addrSet) contains(a netip.Addr) bool {
	low, high := 0, len(s) // the last range that starts at a or before is the one before low
	for low < high {
		middle := (low + high) / 2
		if s[middle].first.Compare(a) <= 0 {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low > 0 && a.Compare(s[low-1].last) <= 0
}
