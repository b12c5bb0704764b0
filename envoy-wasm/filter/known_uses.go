// SPDX-License-Identifier: Apache-2.0

package filter

import "github.com/penstock/penstock/core/counter"

// usesMax is the number of counters whose usage a worker remembers. If two counters have the same
// slot, the later one gets it.
const usesMax = 4096

// knownUses remembers the usage of counters from the last answer of the bridge. Counting without
// the bridge begins at that usage, so that a client does not get a second allowance in the same
// window.
type knownUses struct {
	key     hashKey
	entries []knownUse // it has usesMax elements, or none while nothing is remembered
}

// knownUse is the usage of one counter.
type knownUse struct {
	hash  uint64 // hash of the counter's key, which distinguishes counters with the same slot
	units int64
	sent  counter.Micros // when the call was sent, on the clock of leases
	until counter.Micros // when the counter is unused again, on the same clock
}

// knownUses.learn stores the usage of the counters that an answer charged.
func (u *knownUses) learn(sent counter.Micros, checks []counter.Check, results []counter.Result) {
	for i := range checks {
		c, r := &checks[i], &results[i]
		if !isCharge(c) || r.Local || r.Overflow || r.Reset <= 0 {
			continue
		}
		if u.entries == nil {
			u.key, u.entries = newHashKey(), make([]knownUse, usesMax)
		}
		h := u.key.sum(c.Key)
		// otherwise an overdue call would overwrite a later answer
		if e := &u.entries[h%usesMax]; e.hash != h || e.sent <= sent {
			*e = knownUse{hash: h, units: c.Limit.Capacity() - r.Remaining, sent: sent, until: sent + r.Reset}
		}
	}
}

// lastUsed returns the last known usage of a counter, or 0.
func (u *knownUses) lastUsed(now counter.Micros, key []byte) int64 {
	if u.entries == nil {
		return 0
	}
	h := u.key.sum(key)
	if e := &u.entries[h%usesMax]; e.hash == h && now < e.until {
		return e.units
	}
	return 0
}

// isCharge reports whether a check charges a counter.
//
//go:noinline
func isCharge(c *counter.Check) bool { return c.Limit != nil && !c.Shadow && c.Op == counter.OpTake }
