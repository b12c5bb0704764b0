// SPDX-License-Identifier: Apache-2.0

package wire

import "github.com/penstock/penstock/core"

// Units is what is asked of one check in place of its own cost, or in advance: the numbers are those of a core.Check.
type Units struct {
	Check int // its index in the plan of the request
	// Counter is what the caller takes the check's counter for, as [CounterOf] says.
	Counter               uint64
	Cost, Max, ShareMille int64
	Age                   core.Micros
}

// Lease is what was granted to one check of a question.
type Lease struct {
	Check   int
	Granted int64       // in all, with a request's own cost
	Receipt core.Micros // of the charge
	Token   string      // what a [Return] of what is beyond a request's own cost shows; "" if that can only be used
}

// Return gives units back that were granted and not used. A token is good for one return, of as many units as it is for at
// most.
type Return struct {
	Token string
	Units int64
}

// CounterOf is the 64-bit FNV-1a hash of a check's key and limit. A caller and the bridge that do not mean the same counter, since
// they take a request for another client's, have different ones. It proves nothing.
func CounterOf(c *core.Check) uint64 {
	h := fnv(fnvBegin, c.Key)
	for _, n := range [...]int64{c.Limit.Count(), c.Limit.Capacity()} {
		for ; n > 0; n >>= 8 {
			h = (h ^ uint64(n&0xff)) * fnvPrime
		}
		h *= fnvPrime
	}
	return h
}

// The numbers of the 64-bit FNV hash.
const (
	fnvBegin = 14695981039346656037
	fnvPrime = 1099511628211
)

// fnv goes on with the 64-bit FNV-1a hash.
func fnv(h uint64, data []byte) uint64 {
	for _, b := range data {
		h = (h ^ uint64(b)) * fnvPrime
	}
	return h
}

func appendUnits(dst []byte, units []Units) []byte {
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
	for n := c.count(core.ChecksMax); n > 0 && !c.failed; n-- {
		u := Units{Check: int(c.int()), Counter: c.fixed()}
		var age int64
		for _, n := range [...]*int64{&u.Cost, &u.Max, &u.ShareMille, &age} {
			*n = c.int()
		}
		u.Age = core.Micros(age)
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
	for n := c.count(core.ChecksMax); n > 0 && !c.failed; n-- {
		leases = append(leases, Lease{Check: int(c.int()), Granted: c.int(), Receipt: core.Micros(c.int()), Token: c.text()})
	}
	return leases
}

func (r *Return) append(dst []byte) []byte { return appendInt(appendText(dst, r.Token), r.Units) }

func (r *Return) read(c *cursor) { r.Token, r.Units = c.text(), c.int() }
