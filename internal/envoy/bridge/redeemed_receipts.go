// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"sync"

	"github.com/penstock/penstock/core/counter"
)

// Receipts are numbered, so remembering a redeemed one takes one bit. A segment is 1 KB for 8,192
// receipts. At 50,000 settlements a second, 3,700 segments are in use for [receiptTTL]. The bound
// is 16 MB.
const (
	segmentReceipts = 1 << 13
	segmentsMax     = 1 << 14
)

// process is the random name of the bridge process that issued a receipt.
type process [16]byte

// receiptID is the unique name of a receipt.
type receiptID struct {
	process process
	number  uint64
}

// redeemedReceipts remembers which receipts were redeemed, until they expire. The zero value
// remembers none. Safe for concurrent use.
type redeemedReceipts struct {
	mu       sync.Mutex
	segments map[receiptID]*segment // by the ID of the segment's first receipt
	order    []receiptID            // the IDs of segments; the next one to examine is first
}

type segment struct {
	bits    [segmentReceipts / 64]uint64
	expires counter.Micros // the expiry of the last redeemed receipt
}

// redeemedReceipts.redeem records a receipt until it expires, and reports whether it was not
// recorded before. If memory is full (16,384 segments), a receipt that needs a new segment counts
// as redeemed. The receipt's reserved units stay charged, so no unit is refunded twice.
func (r *redeemedReceipts) redeem(id receiptID, expires, now counter.Micros) bool {
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

// restore forgets that a receipt was redeemed, because its settlement found no place.
func (r *redeemedReceipts) restore(id receiptID) {
	bit := id.number % segmentReceipts
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.segments[receiptID{id.process, id.number - bit}]; s != nil {
		s.bits[bit/64] &^= 1 << (bit % 64)
	}
}

// redeemedReceipts.add returns a new segment, or nil if there is no room. Each call examines a few
// segments and frees the expired ones. In this way all segments are examined over time.
func (r *redeemedReceipts) add(first receiptID, now counter.Micros) *segment {
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
