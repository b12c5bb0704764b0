// SPDX-License-Identifier: Apache-2.0

package match

import (
	"net/netip"
	"slices"
)

// RangeTables map address ranges to numbers, separately for IPv4 and IPv6.
type RangeTables struct{ four, six rangeTable }

// rangeTable maps the ranges of one IP version, which are masked and unmapped. A range without a
// number maps to 0.
type rangeTable struct {
	Bits    []uint8 // the prefix lengths of its ranges, without duplicates
	Numbers map[rangeKey]int32
}

// rangeKey is an address with its trailing bits cleared.
type rangeKey struct {
	addrKey
	bits uint8
}

// Of returns the table for the address's version. The address must not be the zero Addr.
func (t *RangeTables) Of(a netip.Addr) *rangeTable {
	if a.Is4() {
		return &t.four
	}
	return &t.six
}

// Number returns the range's number.
func (t *RangeTables) Number(p netip.Prefix) int32 {
	return t.Of(p.Addr()).Numbers[NewAddrKey(p.Addr()).Masked(uint8(p.Bits()))]
}

// Set maps the range to a number.
func (t *RangeTables) Set(p netip.Prefix, number int32) {
	table, bits := t.Of(p.Addr()), uint8(p.Bits())
	if table.Numbers == nil {
		table.Numbers = make(map[rangeKey]int32)
	}
	table.Numbers[NewAddrKey(p.Addr()).Masked(bits)] = number
	if !slices.Contains(table.Bits, bits) {
		table.Bits = append(table.Bits, bits)
	}
}

// Masked returns the key of the range with the given number of leading bits.
func (k addrKey) Masked(bits uint8) rangeKey {
	if bits <= 64 {
		return rangeKey{addrKey{High: k.High &^ (^uint64(0) >> bits)}, bits}
	}
	return rangeKey{addrKey{High: k.High, low: k.low &^ (^uint64(0) >> (bits - 64))}, bits}
}
