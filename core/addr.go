// SPDX-License-Identifier: Apache-2.0

package core

import (
	"cmp"
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

// addrSet is a set of address ranges, IPv4 and IPv6 apart: sorted, no two with an address in common. Looking an address
// up costs a comparison for each doubling of their number.
type addrSet struct{ four, six []addrRange }

type addrRange struct{ first, last rangeKey }

// newAddrSet returns the set of the prefixes, which are masked and unmapped.
func newAddrSet(prefixes []netip.Prefix) (s addrSet) {
	for _, p := range prefixes {
		first := newRangeKey(p.Addr())
		last := first.filled(p.Bits())
		if p.Addr().Is4() {
			s.four = append(s.four, addrRange{first, last})
		} else {
			s.six = append(s.six, addrRange{first, last})
		}
	}
	s.four, s.six = withoutInner(s.four), withoutInner(s.six)
	return s
}

// withoutInner sorts ranges and leaves out those inside another. Of two prefixes one holds the other, or they have
// nothing in common.
func withoutInner(ranges []addrRange) []addrRange {
	slices.SortFunc(ranges, func(a, b addrRange) int {
		return cmp.Or(a.first.compare(b.first), b.last.compare(a.last)) // the wider first
	})
	kept := ranges[:0]
	for _, r := range ranges {
		if len(kept) == 0 || kept[len(kept)-1].last.compare(r.first) < 0 {
			kept = append(kept, r)
		}
	}
	return kept
}

// filled returns the last address of the range of that many leading bits.
func (k rangeKey) filled(bits int) rangeKey {
	if bits <= 64 {
		return rangeKey{high: k.high | ^uint64(0)>>bits, low: ^uint64(0)}
	}
	return rangeKey{high: k.high, low: k.low | ^uint64(0)>>(bits-64)}
}

func (k rangeKey) compare(other rangeKey) int {
	if k.high != other.high {
		return cmp.Compare(k.high, other.high)
	}
	return cmp.Compare(k.low, other.low)
}

// empty reports whether the set holds no address.
func (s *addrSet) empty() bool { return len(s.four)+len(s.six) == 0 }

// contains reports whether the address, which is plain, is in one of the ranges. The zero Addr is in none.
func (s *addrSet) contains(a netip.Addr) bool {
	ranges := s.six
	if a.Is4() {
		ranges = s.four
	} else if !a.IsValid() {
		return false
	}
	key := newRangeKey(a)
	low, high := 0, len(ranges) // the last range that starts at a or before is the one before low
	for low < high {
		middle := int(uint(low+high) / 2)
		if ranges[middle].first.compare(key) <= 0 {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low > 0 && key.compare(ranges[low-1].last) <= 0
}
