// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core/counter"
)

const (
	// recentMax is the number of counters whose denials are remembered. Their table takes 512 KB.
	// If two counters share a place in the table, the latest denial counts.
	recentMax = 1 << 16
	// recentTime is how long a denial is remembered after its wait has ended. A client that was
	// denied may use up its limit again as soon as there is room. Because the denial is still
	// remembered, the client's denied calls then charge no other counter.
	recentTime = time.Minute
)

// recentDenials remembers the counters that have denied calls. An entry has 24 bits of the hash of
// a key, and the millisecond, on the store's clock, in which the wait of the latest denial ends.
// The zero entry is empty, since that instant is never 0. A wrong entry costs at most a round trip.
type recentDenials struct {
	seed    maphash.Seed
	entries [recentMax]atomic.Uint64
}

func newRecentDenials() *recentDenials { return &recentDenials{seed: maphash.MakeSeed()} }

// record is what is remembered of a counter or a part. Of two records, the greater one is worse.
type record uint8

const (
	clean       record = iota
	hasDenied          // has denied a call, and there may be room again
	stillDenies        // has denied a call, and the wait of that denial is not over
)

// Numbers of bits and their mask in an entry.
const (
	endBits = 40
	endMask = 1<<endBits - 1
)

// recentDenials.find returns the entry of a key, the entry's mark for that key, and the end that
// the entry has for the key: 0 if it has none.
func (d *recentDenials) find(key []byte) (entry *atomic.Uint64, mark uint64, end time.Duration) {
	hash := maphash.Bytes(d.seed, key)
	entry, mark = &d.entries[hash%recentMax], hash&^endMask
	if value := entry.Load(); value&^endMask == mark {
		end = time.Duration(value&endMask) * time.Millisecond
	}
	return entry, mark, end
}

// recordOf returns the worst record of a part's counters.
func (d *recentDenials) recordOf(now time.Duration, p *part) (worst record) {
	for i := range p.checks {
		if !mayDeny(&p.checks[i]) {
			continue
		}
		switch _, _, end := d.find(p.checks[i].Key); {
		case end > now:
			return stillDenies
		case end > 0 && end+recentTime > now:
			worst = hasDenied
		}
	}
	return worst
}

// learn records the answers of a part, and reports whether the part denies its call.
func (d *recentDenials) learn(now time.Duration, p *part) (denied bool) {
	for i := range p.checks {
		r := &p.results[i]
		if !mayDeny(&p.checks[i]) {
			continue
		}
		entry, mark, end := d.find(p.checks[i].Key)
		switch {
		case r.Denied:
			denied = true
			lasts := recentTime // for a cost above the capacity, which always waits
			if r.Wait != counter.Never {
				lasts = time.Duration(r.Wait) * time.Microsecond
			}
			d.set(entry, mark, now+lasts)
		case end > now:
			d.set(entry, mark, now)
		}
	}
	return denied
}

func (d *recentDenials) set(entry *atomic.Uint64, mark uint64, end time.Duration) {
	entry.Store(mark | min(max(1, uint64(end/time.Millisecond)), endMask))
}
