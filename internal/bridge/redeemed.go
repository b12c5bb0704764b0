// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"sync"

	"github.com/penstock/penstock/core"
)

// Receipts are numbered, so that remembering which ones were redeemed takes a bit each. A segment is 1 KB for 8,192
// receipts. At 50,000 settlements a second for [receiptTTL] 3,700 are in use; the bound is 16 MB of them.
const (
	segmentReceipts = 1 << 13
	segmentsMax     = 1 << 14
)

// process names who gave a receipt out: a bridge from its start to its end.
type process [16]byte

// receiptID is a receipt's name, which no two have.
type receiptID struct {
	process process
	number  uint64
}

// redeemed remembers which receipts were redeemed, until they expire. The zero value remembers none. Safe for concurrent
// use.
type redeemed struct {
	mu       sync.Mutex
	segments map[receiptID]*segment // by their first receipt
	order    []receiptID            // of segments, those to look at next first
}

type segment struct {
	bits    [segmentReceipts / 64]uint64
	expires core.Micros // the last of its redeemed receipts
}

// redeem remembers a receipt that expires then, and reports whether it was the first time. At the bound, which only more
// than 16,384 segments reach, a receipt that would need another one is taken for redeemed: the charge stands as it was
// reserved, so that nobody gets back what somebody else was given back already.
func (r *redeemed) redeem(id receiptID, expires, now core.Micros) bool {
	bit := id.number % segmentReceipts
	first := receiptID{id.process, id.number - bit}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.segments[first]
	if s == nil {
		if s = r.add(first, now); s == nil {
			return false
		}
	}
	if s.bits[bit/64]&(1<<(bit%64)) != 0 {
		return false
	}
	s.bits[bit/64] |= 1 << (bit % 64)
	s.expires = max(s.expires, expires)
	return true
}

// add makes room for a segment, and returns it, or nil if there is none. Each time it looks at a few segments whether they
// are of use any more; over time at all of them.
func (r *redeemed) add(first receiptID, now core.Micros) *segment {
	const looks, looksFull = 4, 64
	if r.segments == nil {
		r.segments = make(map[receiptID]*segment)
	}
	for i := 0; i < len(r.order) && (i < looks || i < looksFull && len(r.segments) >= segmentsMax); i++ {
		oldest := r.order[0]
		r.order = r.order[1:]
		if r.segments[oldest].expires <= now {
			delete(r.segments, oldest)
		} else {
			r.order = append(r.order, oldest)
		}
	}
	if len(r.segments) >= segmentsMax {
		return nil
	}
	s := new(segment)
	r.segments[first], r.order = s, append(r.order, first)
	return s
}
