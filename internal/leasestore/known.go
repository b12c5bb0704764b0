// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"math/bits"
	"sync"

	"github.com/penstock/penstock/core"
)

// knownMax is how many counters' use is remembered: 4 MB of them.
const knownMax = 1 << 16

// use is how much of a counter was used when the store last spoke of it.
type use struct {
	id    identity
	units int64
	at    core.Micros // on this process's clock, when the store was asked
	until core.Micros // on this process's clock, when the counter is as good as new
}

// usage remembers how much of counters is used. It is of fixed size: where there is no room, the use that
// ends first is forgotten, and counts as none.
type usage struct {
	mask  uint64
	sets  [][setWays]use
	locks [locks]struct {
		sync.Mutex
		_ [56]byte // a cache line each
	}
}

func newUsage(most int) *usage {
	n := 1
	for n*2*setWays <= most {
		n *= 2
	}
	return &usage{mask: uint64(n - 1), sets: make([][setWays]use, n)}
}

// lock returns the ways of an identity, locked.
func (t *usage) lock(id identity) (*[setWays]use, *sync.Mutex) {
	index := id[0] & t.mask
	mu := &t.locks[index%locks].Mutex
	mu.Lock()
	return &t.sets[index], mu
}

// learn keeps what the store said of a counter.
func (t *usage) learn(u use) {
	ways, mu := t.lock(u.id)
	defer mu.Unlock()
	victim := &ways[0]
	for i := range ways {
		w := &ways[i]
		if w.id == u.id {
			if u.at >= w.at {
				*w = u
			}
			return
		}
		if w.until < victim.until {
			victim = w
		}
	}
	*victim = u
}

// recall returns what is known of a counter; the zero use if nothing is.
func (t *usage) recall(id identity, now core.Micros) use {
	ways, mu := t.lock(id)
	defer mu.Unlock()
	for i := range ways {
		if w := &ways[i]; w.id == id && now < w.until {
			return *w
		}
	}
	return use{}
}

// learnUses remembers what the store said of the counters that a call takes from.
func (s *Store) learnUses(sent core.Micros, checks []core.Check, results []core.Result) {
	for i := range checks {
		c, r := &checks[i], &results[i]
		if c.Limit == nil || c.Op != core.OpTake && c.Op != core.OpUpTo || c.Shadow || r.Overflow || r.Reset <= 0 {
			continue
		}
		s.usage.learn(use{s.identify(c.Key), c.Limit.Capacity() - r.Remaining, sent, sent + r.Reset})
	}
}

// Used returns how many units of a check's counter are used, as far as this process knows from the store's
// last answer about it; 0 if it knows nothing. Units that a token bucket has regained since are not counted.
// It is what stands in for the store that asks, when the store is away. Safe for concurrent use.
func (s *Store) Used(c *core.Check) int64 {
	now := s.now()
	u := s.usage.recall(s.identify(c.Key), now)
	if u.units <= 0 || c.Limit.Algorithm() != core.TokenBucket {
		return max(0, u.units)
	}
	// The bucket fills evenly: of the units that were missing, the part of the time that is left.
	high, low := bits.Mul64(uint64(u.units), uint64(u.until-now))
	units, rest := bits.Div64(high, low, uint64(u.until-u.at))
	if rest > 0 {
		units++
	}
	return int64(units)
}
