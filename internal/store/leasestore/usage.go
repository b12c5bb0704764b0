// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"math/bits"
	"time"

	"github.com/penstock/penstock/core/counter"
)

// Reports remembers what the inner store last reported about the use of each counter. Create it
// with [NewReports]. Reports is safe for concurrent use.
type Reports struct {
	now func() counter.Micros
	seeds
	usage *usage
}

// NewReports returns Reports that remembers nothing yet. The function now returns the time of this
// process's clock, in microseconds since an arbitrary instant. This time must never decrease, and
// the function must be safe for concurrent use. If now is nil, the monotonic clock is used.
func NewReports(now func() counter.Micros) *Reports {
	if now == nil {
		start := time.Now()
		now = func() counter.Micros { return 1 + counter.Micros(time.Since(start)/time.Microsecond) }
	}
	return &Reports{now: now, seeds: newSeeds(), usage: newUsage(cacheMax)}
}

// use holds how much of a counter was used according to the store's last answer.
type use struct {
	units   int64
	at      counter.Micros // the time at which the answer arrived, on this process's clock
	decided counter.Micros // on the store's clock
}

// usage remembers how much of each counter is used, until the counter is unused again. A counter
// that is not found counts as unused.
type usage struct{ cache[use] }

func newUsage(most int) *usage { return &usage{*newCache[use](most)} }

// usage.learn records the store's answer to a call, unless the recorded answer is later. The
// parameter named sent is the time when the call was sent. Answers can arrive in a different order
// than the store gave them. The answer to a call that was sent after the recorded answer had
// arrived counts as later, even if the store's clock has gone back.
func (t *usage) learn(id identity, sent, until counter.Micros, u use) {
	set, mu := t.lock(id)
	defer mu.Unlock()
	w, known := place(set, id)
	v := &w.value
	if !known || u.decided > v.decided || u.decided == v.decided && u.units >= v.units || sent > v.at {
		*w = slot[use]{id, until, u}
	}
}

// usage.forget drops the record of a counter.
func (t *usage) forget(id identity) {
	set, mu := t.lock(id)
	defer mu.Unlock()
	if w, known := place(set, id); known {
		*w = slot[use]{}
	}
}

// usage.recall returns the use of a counter and when it ends, or the zero use if none is known.
func (t *usage) recall(id identity, now counter.Micros) (u use, until counter.Micros) {
	set, mu := t.lock(id)
	defer mu.Unlock()
	if w := find(set, id, now); w != nil {
		return w.value, w.until
	}
	return use{}, 0
}

// learnUses records the store's answers for the counters from which a call takes. learnUses must be
// called before any request is admitted by the call's answer, because package fallback relies on
// Used to include that answer.
func (s *Store) learnUses(sent counter.Micros, checks []counter.Check, results []counter.Result) {
	now := s.now()
	for i := range checks {
		c, r := &checks[i], &results[i]
		if c.Limit == nil || c.Shadow || r.Overflow || r.Reset <= 0 {
			continue
		}
		switch c.Op {
		case counter.OpTake, counter.OpUpTo, counter.OpForce:
			// The span begins with the decision, which is no later than now, so now+span is not too
			// early.
			units, span := usedUnits(c.Limit, r)
			s.usage.learn(s.identify(c.Key), sent, now+span, use{units, now, r.At})
		}
	}
}

// usedUnits returns the number of units that are used according to an answer, and how long they
// count. After an OpForce the units can exceed the limit; only the answer for a token bucket tells
// their number then.
func usedUnits(l *counter.Limit, r *counter.Result) (units int64, span counter.Micros) {
	units = l.Capacity() - r.Remaining
	switch l.Algorithm() {
	case counter.TokenBucket:
		if r.Remaining == 0 {
			high, low := bits.Mul64(uint64(l.Count()), uint64(r.Reset))
			if high < uint64(l.Window()) {
				missing, _ := bits.Div64(high, low, uint64(l.Window()))
				units = max(units, int64(min(missing, uint64(counter.CountMax))))
			}
		}
	case counter.SlidingLog:
		return units, l.Window() // Reset is when the oldest unit expires
	}
	return units, r.Reset
}

// Used returns the number of units of a check's counter that are used according to the store's last
// answer, or 0 if there is none. Used does not include units that a token bucket has regained
// since then. Package fallback calls Used when the store does not answer. Used is safe for
// concurrent use.
func (s *Store) Used(c *counter.Check) int64 {
	now := s.now()
	u, until := s.usage.recall(s.identify(c.Key), now)
	if u.units <= 0 || c.Limit.Algorithm() != counter.TokenBucket {
		return max(0, u.units)
	}
	// A bucket refills evenly, so the number of missing units falls linearly with time.
	high, low := bits.Mul64(uint64(u.units), uint64(until-now))
	units, rest := bits.Div64(high, low, uint64(until-u.at))
	if rest > 0 {
		units++
	}
	return int64(units)
}
