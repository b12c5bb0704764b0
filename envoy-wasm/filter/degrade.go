// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
)

// Limits are enforced even while the bridge is down. Recent denials remain in force. Requests that
// on_error lets through are counted in Envoy's shared data, which all workers of the process share,
// and are denied when the limit is reached. While the bridge answers, this costs nothing.

// decideUnasked decides a request without an answer from the bridge.
//
//go:noinline
func (s *Stream) decideUnasked(why Counter) Action {
	f, a := s.f, s.asking
	f.host.Count(why)
	switch {
	case s.isRemembered():
		return s.denyRemembered(f.elapsedTime())
	case why == CounterBusy || why == CounterFull || why == CounterUnknown: // no outage: the bridge answers
		if a.dated {
			a.plan.DenyUnread()
		}
		return s.decide(a.plan.Overload())
	}
	d := a.degrade(f)
	if !d.Denied() && f.countLetThrough(a, s.state != throttleQueued || a.lacks) {
		f.host.Count(CounterSpent)
		return s.decideByResults()
	}
	return s.decide(d)
}

// askingData.degrade decides by on_error. The ruleset anybody decides a request whose credential
// cannot be verified, because such a request could come from any client.
func (a *askingData) degrade(f *Filter) core.Decision {
	if a.unsure && a.policy.anybody != nil {
		a.planRequest(f, a.policy.anybody)
	}
	return a.plan.Degrade()
}

// queuesFull reports whether the queues hold the maximum of requests or bytes.
func (f *Filter) queuesFull(a *askingData) bool {
	c := &f.calls
	return c.sources.queued >= waitingMax || c.held-a.held+a.attrs.Bytes > heldBytesMax
}

// denyOverflow denies a request because too many requests wait for its counter.
//
//go:noinline
func (s *Stream) denyOverflow() Action {
	r := &s.asking.plan.Results()[s.asking.narrow]
	s.f.host.Count(CounterFull)
	r.Local, r.Denied, r.Wait = true, true, counter.Second
	return s.decideByResults()
}

// The number of records is fixed, because Envoy's shared data cannot be deleted. 65,536 records
// take about 12 MB. The hash of a counter's key selects recordWays records, and the counter uses
// one of them. The hash has a random key that the workers share, so that a client cannot aim for
// another client's record. If other counters use all of these records, the counter takes the record
// with the fewest units.
const (
	recordsMax  = 1 << 16
	recordBytes = 24 // the hash, the expiry and the units
	// attempts to write, because workers write concurrently; a request that cannot be counted is
	// denied
	recordTries = 64
	recordWays  = 4
	keyRecord   = recordsMax // the record that holds the key of the hash
)

// recordKey returns the key of the hash of records, and creates one if there is none. recordKey
// reads the key each time, because if two workers create a key at the same time, the first key is
// kept.
func (f *Filter) recordKey() (k hashKey) {
	value, cas := f.host.Shared(keyRecord)
	if len(value) != 16 {
		k = newHashKey()
		value = make([]byte, 16)
		setNumber(value, k[0])
		setNumber(value[8:], k[1])
		f.host.Share(keyRecord, value, cas)
		if value, _ = f.host.Shared(keyRecord); len(value) != 16 {
			return k
		}
	}
	return hashKey{number(value), number(value[8:])}
}

// record is the count of one counter in shared data.
type record struct {
	at    uint32 // the index of the record
	value []byte // the encoded record
	cas   uint32
	ends  counter.Micros
	used  int64
}

// Filter.recordOf returns the shared record of the counter with the hash h. If no record has h, it
// returns a record to replace: one that has expired, or else the one with the fewest units.
func (f *Filter) recordOf(h uint64, now counter.Micros) (least record) {
	for way := range uint32(recordWays) {
		r := record{at: uint32(h)%recordsMax ^ way}
		r.value, r.cas = f.host.Shared(r.at)
		if len(r.value) != recordBytes {
			r.value = make([]byte, recordBytes)
		}
		r.ends, r.used = counter.Micros(number(r.value[8:])), int64(number(r.value[16:]))
		if !isAhead(r.ends, now, counter.FillMax) {
			r.ends, r.used = 0, 0
		}
		if r.ends != 0 && number(r.value) == h {
			return r
		}
		if way == 0 || r.used < least.used {
			least = r
		}
	}
	least.ends, least.used = 0, 0
	return least
}

// countLetThrough counts a request that on_error lets through. countLetThrough reports whether the
// request exceeds a limit; in that case the results are set to a denial, and the request is not
// counted. If the argument known is true, the count begins at the usage that the bridge reported
// last. It is false for a request of a throttle queue, which has waited until that usage expired.
func (f *Filter) countLetThrough(a *askingData, known bool) (exceeded bool) {
	checks, results := a.plan.Checks(), a.plan.Results()
	now := f.host.Now()
	for i := range checks {
		results[i] = counter.Result{At: now, Local: true}
	}
	for i := range checks {
		if wait := f.spendUnits(&checks[i], now, 1, known); wait > 0 {
			results[i].Denied, results[i].Wait = true, wait
			for i--; i >= 0; i-- {
				f.spendUnits(&checks[i], now, -1, known)
			}
			return true
		}
	}
	return false
}

// spendUnits counts the cost of a check, or refunds it if sign is -1. spendUnits returns the time
// until there is room, or 0 if there is room now. If the argument known is true, the count begins
// at the usage that the bridge reported last.
func (f *Filter) spendUnits(c *counter.Check, now counter.Micros, sign int64, known bool) (wait counter.Micros) {
	if !isCharge(c) {
		return 0
	}
	cost, capacity, used := c.Cost, c.Limit.Capacity(), int64(0)
	if cost > capacity {
		return counter.Never
	}
	if c.OnError == counter.OnErrorLocal {
		cost = min(cost*max(1, f.calls.nodes), capacity)
	} else if known {
		used = f.uses.lastUsed(f.elapsedTime(), c.Key)
	}
	h := f.recordKey().sum(c.Key)
	for range recordTries {
		r := f.recordOf(h, now)
		if r.ends == 0 {
			r.ends = endOfUse(c, now)
		}
		if r.used = max(r.used, used) + sign*cost; sign > 0 && r.used > capacity {
			return max(1, r.ends-now)
		}
		setNumber(r.value, h)
		setNumber(r.value[8:], uint64(r.ends))
		setNumber(r.value[16:], uint64(max(0, r.used)))
		if f.host.Share(r.at, r.value, r.cas) {
			return 0
		}
	}
	return counter.Second
}

//go:noinline
func number(b []byte) (n uint64) {
	for i := range 8 {
		n |= uint64(b[i]) << (8 * i)
	}
	return n
}

//go:noinline
func setNumber(b []byte, n uint64) {
	for i := range 8 {
		b[i] = byte(n >> (8 * i))
	}
}

// endOfUse returns the time at which units that are used now become available again: after a window
// or, for a token bucket, after its fill time. The window begins with the first use, because the
// clock of the store's window is unknown.
func endOfUse(c *counter.Check, now counter.Micros) counter.Micros {
	l := c.Limit
	span := l.Window()
	if l.Algorithm() == counter.TokenBucket {
		span = counter.Micros(float64(span) * float64(l.Capacity()) / float64(l.Count()))
	}
	return now + span
}
