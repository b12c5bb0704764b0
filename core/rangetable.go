// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"slices"
)

// rangeTables map address ranges to numbers, IPv4 and IPv6 apart.
type rangeTables struct{ four, six rangeTable }

// rangeTable maps the ranges of one version of IP, which are masked and unmapped. A range without a number has 0.
type rangeTable struct {
	bits    []uint8 // how many leading bits its ranges have, each once
	numbers map[rangeKey]int32
}

// rangeKey is an address with its trailing bits cleared.
type rangeKey struct {
	addrKey
	bits uint8
}

// of returns the table of the address's version. The zero Addr is in none: ask before.
func (t *rangeTables) of(a netip.Addr) *rangeTable {
	if a.Is4() {
		return &t.four
	}
	return &t.six
}

// number returns the range's number.
func (t *rangeTables) number(p netip.Prefix) int32 {
	return t.of(p.Addr()).numbers[newAddrKey(p.Addr()).masked(uint8(p.Bits()))]
}

// set gives the range a number.
func (t *rangeTables) set(p netip.Prefix, number int32) {
	table, bits := t.of(p.Addr()), uint8(p.Bits())
	if table.numbers == nil {
		table.numbers = make(map[rangeKey]int32)
	}
	table.numbers[newAddrKey(p.Addr()).masked(bits)] = number
	if !slices.Contains(table.bits, bits) {
		table.bits = append(table.bits, bits)
	}
}

// masked returns the key of the range of that many leading bits.
func (k addrKey) masked(bits uint8) rangeKey {
	if bits <= 64 {
		return rangeKey{addrKey{high: k.high &^ (^uint64(0) >> bits)}, bits}
	}
	return rangeKey{addrKey{high: k.high, low: k.low &^ (^uint64(0) >> (bits - 64))}, bits}
}
