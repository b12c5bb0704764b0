// SPDX-License-Identifier: Apache-2.0

package core

import (
	"cmp"
	"encoding/binary"
	"net/netip"
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
	return six.addr(), ok
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

// parseIPv6 reads eight groups, of which "::" stands for one or more that are zero and a dotted IPv4 address for the last
// two.
func parseIPv6(s string) (k addrKey, ok bool) {
	var left addrKey     // what stands left of "::"
	groups, gap := 0, -1 // how many there are so far, and how many left of "::"
	i := 0
	if strings.HasPrefix(s, "::") {
		gap, i = 0, 2
	}
	for i < len(s) {
		start, group := i, uint64(0)
		for ; i < len(s) && hexValues[s[i]] < 16; i++ {
			group = group<<4 | uint64(hexValues[s[i]])
		}
		if i == start || i > start+4 || groups == 8 {
			return k, false
		}
		if i < len(s) && s[i] == '.' {
			four, ok := parseIPv4(s[start:])
			if !ok || groups > 6 {
				return k, false
			}
			k, groups = k.with(32, uint64(binary.BigEndian.Uint32(four[:]))), groups+2
			break
		}
		k, groups = k.with(16, group), groups+1
		if i == len(s) {
			break
		}
		if i++; s[i-1] != ':' || i == len(s) {
			return k, false
		}
		if s[i] == ':' {
			if gap >= 0 {
				return k, false
			}
			left, k = k, addrKey{}
			gap, i = groups, i+1
		}
	}
	if gap < 0 || groups == 8 {
		return k, gap < 0 && groups == 8
	}
	left = left.with(uint(16*(8-gap)), 0)
	return addrKey{left.high | k.high, left.low | k.low}, true
}

// with returns the number with so many further bits at its right, 1 to 128. A shift by more than there is leaves nothing,
// and one by less than zero wraps to that.
func (k addrKey) with(count uint, bits uint64) addrKey {
	return addrKey{high: k.high<<count | k.low>>(64-count) | k.low<<(count-64), low: k.low<<count | bits}
}

// hexValues are what hexadecimal digits stand for; what is none has 16.
var hexValues = func() (values [256]byte) {
	for c := range values {
		if values[c] = 16; isHex(byte(c)) {
			values[c] = hexDigit(byte(c))
		}
	}
	return values
}()

// addrSet is a set of address ranges, IPv4 and IPv6 apart: sorted, no two with an address in common. Looking an address
// up costs a comparison for each doubling of their number.
type addrSet struct{ four, six []addrRange }

type addrRange struct{ first, last addrKey }

// addrKey is an address as a number; IPv4 stands in the high bits.
type addrKey struct{ high, low uint64 }

// newAddrSet returns the set of the prefixes, which are masked and unmapped.
func newAddrSet(prefixes []netip.Prefix) (s addrSet) {
	for _, p := range prefixes {
		first := newAddrKey(p.Addr())
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
	ranges = sorted(ranges, func(a, b *addrRange) int {
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

func newAddrKey(a netip.Addr) addrKey {
	if a.Is4() {
		b := a.As4()
		return addrKey{high: uint64(binary.BigEndian.Uint32(b[:])) << 32}
	}
	b := a.As16()
	return addrKey{high: binary.BigEndian.Uint64(b[:8]), low: binary.BigEndian.Uint64(b[8:])}
}

// addr returns the IPv6 address.
func (k addrKey) addr() netip.Addr {
	var a [16]byte
	binary.BigEndian.PutUint64(a[:8], k.high)
	binary.BigEndian.PutUint64(a[8:], k.low)
	return netip.AddrFrom16(a)
}

// filled returns the last address of the range of that many leading bits.
func (k addrKey) filled(bits int) addrKey {
	if bits <= 64 {
		return addrKey{high: k.high | ^uint64(0)>>bits, low: ^uint64(0)}
	}
	return addrKey{high: k.high, low: k.low | ^uint64(0)>>(bits-64)}
}

func (k addrKey) compare(other addrKey) int {
	return cmp.Or(cmp.Compare(k.high, other.high), cmp.Compare(k.low, other.low))
}

// after reports whether the address comes after the other.
func (k addrKey) after(other addrKey) bool {
	return k.high > other.high || k.high == other.high && k.low > other.low
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
	key := newAddrKey(a)
	low, high := 0, len(ranges) // the last range that starts at a or before is the one before low
	for low < high {
		middle := int(uint(low+high) / 2)
		if ranges[middle].first.after(key) {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low > 0 && !key.after(ranges[low-1].last)
}
