// SPDX-License-Identifier: Apache-2.0

package match

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"strings"

	"github.com/penstock/penstock/core/slim"
)

// PlainAddr returns the form in which addresses are compared: IPv4 unmapped from IPv6, without
// zone.
func PlainAddr(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// ParseAddr parses an untrusted address, as [netip.ParseAddr] does but without zones. ParseAddr
// never allocates, unlike netip with its errors, so a client cannot cause garbage by sending
// invalid input.
func ParseAddr(text string) (addr netip.Addr, ok bool) {
	if strings.IndexByte(text, ':') < 0 {
		four, ok := ParseIPv4(text)
		return netip.AddrFrom4(four), ok
	}
	six, ok := ParseIPv6(text)
	return six.Addr(), ok
}

// ParseIPv4 parses four decimal numbers. ParseIPv4 rejects leading zeros, which some parsers read
// as octal.
func ParseIPv4(s string) (a [4]byte, ok bool) {
	field, digits, n := 0, 0, 0
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case slim.IsDigit(c):
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

// ParseIPv6 parses eight groups. "::" stands for one or more zero groups, and a dotted IPv4 address
// for the last two.
func ParseIPv6(s string) (k addrKey, ok bool) {
	var left addrKey     // the groups to the left of "::"
	groups, gap := 0, -1 // the number of groups so far, and of those to the left of "::"
	i := 0
	if strings.HasPrefix(s, "::") {
		gap, i = 0, 2
	}
	for i < len(s) {
		start, group := i, uint64(0)
		for ; i < len(s) && slim.HexValue(s[i]) < 16; i++ {
			group = group<<4 | uint64(slim.HexValue(s[i]))
		}
		if i == start || i > start+4 || groups == 8 {
			return k, false
		}
		if i < len(s) && s[i] == '.' {
			four, ok := ParseIPv4(s[start:])
			if !ok || groups > 6 {
				return k, false
			}
			k, groups = k.withBits(32, uint64(binary.BigEndian.Uint32(four[:]))), groups+2
			break
		}
		k, groups = k.withBits(16, group), groups+1
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
	left = left.withBits(uint(16*(8-gap)), 0)
	return addrKey{left.High | k.High, left.low | k.low}, true
}

// withBits returns the number with count more bits appended at its right, for a count of 1 to 128.
// A shift by 64 or more gives 0, and a negative shift count wraps to more than 64.
func (k addrKey) withBits(count uint, bits uint64) addrKey {
	return addrKey{High: k.High<<count | k.low>>(64-count) | k.low<<(count-64), low: k.low<<count | bits}
}

// AddrSet is a set of address ranges. IPv4 and IPv6 ranges are kept separately, sorted and
// disjoint. A lookup is a binary search.
type AddrSet struct{ four, six []addrRange }

type addrRange struct{ first, last addrKey }

// addrKey is an address as a number. An IPv4 address occupies the high bits.
type addrKey struct{ High, low uint64 }

// NewAddrSet returns the set of the prefixes, which must be masked and unmapped.
func NewAddrSet(prefixes []netip.Prefix) (s AddrSet) {
	for _, p := range prefixes {
		first := NewAddrKey(p.Addr())
		last := first.lastAddr(p.Bits())
		if p.Addr().Is4() {
			s.four = append(s.four, addrRange{first, last})
		} else {
			s.six = append(s.six, addrRange{first, last})
		}
	}
	s.four, s.six = withoutInner(s.four), withoutInner(s.six)
	return s
}

// withoutInner sorts ranges and removes those inside another. Two prefixes are either nested or
// disjoint.
func withoutInner(ranges []addrRange) []addrRange {
	ranges = slim.Sorted(ranges, func(a, b *addrRange) int {
		return cmp.Or(a.first.compare(b.first), b.last.compare(a.last)) // the wider range first
	})
	kept := ranges[:0]
	for _, r := range ranges {
		if len(kept) == 0 || kept[len(kept)-1].last.compare(r.first) < 0 {
			kept = append(kept, r)
		}
	}
	return kept
}

// NewAddrKey returns the address as a number.
func NewAddrKey(a netip.Addr) addrKey {
	if a.Is4() {
		b := a.As4()
		return addrKey{High: uint64(binary.BigEndian.Uint32(b[:])) << 32}
	}
	b := a.As16()
	return addrKey{High: binary.BigEndian.Uint64(b[:8]), low: binary.BigEndian.Uint64(b[8:])}
}

// Addr returns the IPv6 address.
func (k addrKey) Addr() netip.Addr {
	var a [16]byte
	binary.BigEndian.PutUint64(a[:8], k.High)
	binary.BigEndian.PutUint64(a[8:], k.low)
	return netip.AddrFrom16(a)
}

// lastAddr returns the last address of the range with the given number of leading bits.
func (k addrKey) lastAddr(bits int) addrKey {
	if bits <= 64 {
		return addrKey{High: k.High | ^uint64(0)>>bits, low: ^uint64(0)}
	}
	return addrKey{High: k.High, low: k.low | ^uint64(0)>>(bits-64)}
}

func (k addrKey) compare(other addrKey) int {
	return cmp.Or(cmp.Compare(k.High, other.High), cmp.Compare(k.low, other.low))
}

// isAfter reports whether the address comes after the other.
func (k addrKey) isAfter(other addrKey) bool {
	return k.High > other.High || k.High == other.High && k.low > other.low
}

// Empty reports whether the set holds no address.
func (s *AddrSet) Empty() bool { return len(s.four)+len(s.six) == 0 }

// Contains reports whether one of the ranges contains the plain address. No range contains the zero
// Addr.
func (s *AddrSet) Contains(a netip.Addr) bool {
	ranges := s.six
	if a.Is4() {
		ranges = s.four
	} else if !a.IsValid() {
		return false
	}
	key := NewAddrKey(a)
	low, high := 0, len(ranges) // in the end, ranges[low-1] is the last range that starts at or before a
	for low < high {
		middle := int(uint(low+high) / 2)
		if ranges[middle].first.isAfter(key) {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low > 0 && !key.isAfter(ranges[low-1].last)
}
