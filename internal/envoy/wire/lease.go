// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/slim"
)

// Units asks for an amount other than the check's own cost, or for units in advance. The fields are
// like those of a counter.Check.
type Units struct {
	Check int // the check's index in the plan of the request
	// Counter identifies the counter that the caller expects, as [CounterOf] computes it.
	Counter               uint64
	Cost, Max, ShareMille int64
	Age                   counter.Micros
}

// Lease is what the store granted to one check of a question.
type Lease struct {
	_ slim.Incomparable

	Check   int
	Granted int64          // in total, including the request's own cost
	Receipt counter.Micros // of the charge
	// for a [Refund] of the units beyond the request's own cost; "" if they cannot be refunded
	Token string
}

// Refund refunds units that were granted and not used. A token is valid for one refund, of at most
// the units that it was issued for.
type Refund struct {
	Token string
	Units int64
}

// CounterOf returns the 64-bit FNV-1a hash of a check's key and limit. If a filter and the bridge
// identify a request's client differently, their hashes differ. The hash is not a proof of
// identity.
func CounterOf(c *counter.Check) uint64 {
	h := fnv(fnvBegin, c.Key)
	for _, n := range [...]int64{c.Limit.Count(), c.Limit.Capacity()} {
		for ; n > 0; n >>= 8 {
			h = (h ^ uint64(n&0xff)) * fnvPrime
		}
		h *= fnvPrime
	}
	return h
}

// The constants of the 64-bit FNV hash.
const (
	fnvBegin = 14695981039346656037
	fnvPrime = 1099511628211
)

// fnv continues a 64-bit FNV-1a hash with data.
func fnv(h uint64, data []byte) uint64 {
	for _, b := range data {
		h = (h ^ uint64(b)) * fnvPrime
	}
	return h
}

// AppendUnits appends the units of an item.
func AppendUnits(dst []byte, units []Units) []byte {
	dst = appendInt(dst, int64(len(units)))
	for i := range units {
		u := &units[i]
		dst = appendFixed(appendInt(dst, int64(u.Check)), u.Counter)
		for _, n := range [...]int64{u.Cost, u.Max, u.ShareMille, int64(u.Age)} {
			dst = appendInt(dst, n)
		}
	}
	return dst
}

func (c *cursor) units(units []Units) []Units {
	for n := c.count(counter.ChecksMax); n > 0 && !c.failed; n-- {
		u := Units{Check: int(c.int()), Counter: c.fixed()}
		var age int64
		for _, n := range [...]*int64{&u.Cost, &u.Max, &u.ShareMille, &age} {
			*n = c.int()
		}
		u.Age = counter.Micros(age)
		units = append(units, u)
	}
	return units
}

func appendLeases(dst []byte, leases []Lease) []byte {
	dst = appendInt(dst, int64(len(leases)))
	for i := range leases {
		l := &leases[i]
		dst = appendInt(appendInt(appendInt(dst, int64(l.Check)), l.Granted), int64(l.Receipt))
		dst = appendText(dst, l.Token)
	}
	return dst
}

func (c *cursor) leases(leases []Lease) []Lease {
	for n := c.count(counter.ChecksMax); n > 0 && !c.failed; n-- {
		leases = append(leases, Lease{Check: int(c.int()), Granted: c.int(), Receipt: counter.Micros(c.int()), Token: c.text()})
	}
	return leases
}

func (r *Refund) append(dst []byte) []byte { return appendInt(appendText(dst, r.Token), r.Units) }

func (r *Refund) read(c *cursor) { r.Token, r.Units = c.text(), c.int() }
