// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/slim"
	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/lease"
)

// A worker leases units of busy counters, for rules with lease: auto, and caches recent denials.
// It uses package lease, like Caddy and the bridge. If all limits of a request are leased, or one
// of them recently denied a request, the filter decides the request without a call. For any other
// request it calls the bridge. A lease on only one of several limits would not save a call, and the
// bridge itself has leases for all workers. Units that are granted with a request come from the
// store, and are refunded to it.
//
// Leases use the worker's monotonic clock. If that clock goes back nevertheless, the elapsed time
// is unknown, and the filter stops using its held units.

// Bounds of leases.
const (
	// heldMax is the greatest number of leases of a worker, 1 MB in all. At the bound, a lease
	// without units that was not used recently is dropped. If there is no such lease, requests for
	// other counters make calls, as without leases.
	heldMax   = 1024
	heldLooks = 16 // the number of leases that one search for room examines
	// tokensMax is the greatest number of receipts that a counter keeps. The held units are from
	// the last few grants.
	tokensMax = 16
	// extrasMax is the greatest number of refunds that wait for a call. Units of further refunds
	// are lost until their windows end.
	extrasMax = 1024
	// gatherTime is how long refunds of one counter are collected, because a receipt is valid only
	// once. gatherTime is longer than the time for which a counter keeps unused units.
	gatherTime = 200 * counter.Millisecond
	// fetchBytesMax is the length of the longest question that is repeated to take units in
	// advance. It bounds the memory of these questions, of which one per lease can wait. Longer
	// requests make a call only when no units are left.
	fetchBytesMax = 8 << 10
)

// leasesOffFor is how long the filter makes no calls about leases after a bridge rejected such a
// call. While bridges behind one address are upgraded, one call per leasesOffFor is made twice.
const leasesOffFor = 10 * counter.Second

// Extras take at most half of a call.
const (
	extraItemsMax = batchItemsMax / 2
	extraBytesMax = batchBytesMax / 2
)

// heldLease is the lease of one counter.
type heldLease struct {
	key     string
	counter lease.Counter
	pins    int  // number of calls under way that need the lease
	used    bool // used since the last search for room
	ticking bool // whether the lease is in leases.ticking
	tokens  []sealedReceipt
	backs   []lease.Refund // refunds to send: see gather
	since   counter.Micros // when the first of backs was added
}

// sealedReceipt is an encrypted receipt for units of one charge.
type sealedReceipt struct {
	_ slim.Incomparable

	receipt counter.Micros
	units   int64
	age     counter.Micros // age of units of a token bucket, as in the store; 0 for other algorithms
	text    string
}

// wantedUnits is a request for units of one counter.
type wantedUnits struct {
	held   *heldLease
	check  int
	limit  *counter.Limit
	asking lease.Call
}

// extra is an item of a call for which no request waits: units to take in advance, or a
// refund.
type extra struct {
	version string
	item    []byte
	wants   []wantedUnits // nil for a refund, which has no version, and for denials
	denials [1]wire.Units // for a report of denials or admissions
	next    *extra        // in [denials]
}

// leases holds the leases of one worker.
type leases struct {
	byKey   map[string]*heldLease
	all     []*heldLease
	next    int          // the index in all at which the next search for room begins
	ticking []*heldLease // leases that may hold units
	extras  []*extra
	units   []wire.Units // buffer for the item that is being encoded
	backs   []lease.Refund
	reads   bool // whether the bridge accepts calls about leases
	// whether the bridge decides repeated denials itself, except for leased counters
	exact          bool
	leasesOffUntil counter.Micros // the time until which the filter makes no calls about leases
	due            counter.Micros // time of the next refundUnneeded
	told           int64          // number of held units last reported to Envoy

	clock, ahead counter.Micros
}

// elapsedTime returns the time of the worker's monotonic clock.
func (f *Filter) elapsedTime() counter.Micros {
	l, now := &f.leases, f.host.Elapsed()
	if now < l.clock {
		l.ahead += l.clock - now
		l.clock = now
		f.releaseAll(now + l.ahead)
	}
	l.clock = now
	return now + l.ahead
}

// holdLease returns the lease of a check's counter. If the counter has no lease, holdLease starts a
// lease. But it returns nil if begin is false, or if there is no room for a further lease.
//
//go:noinline
func (l *leases) holdLease(c *counter.Check, begin bool) *heldLease {
	h := l.byKey[string(c.Key)]
	if h == nil {
		if !begin {
			return nil
		}
		if h = l.findRoom(); h == nil {
			return nil
		}
		if l.byKey == nil {
			l.byKey = make(map[string]*heldLease)
		}
		h.key = string(c.Key)
		l.byKey[h.key] = h
	}
	h.used = true
	return h
}

// findRoom returns an unused lease, or nil if it finds none.
func (l *leases) findRoom() *heldLease {
	if len(l.all) < heldMax {
		h := new(heldLease)
		l.all = append(l.all, h)
		return h
	}
	for range heldLooks {
		h := l.all[l.next]
		l.next = (l.next + 1) % len(l.all)
		switch {
		case h.pins > 0 || h.ticking:
		case h.used:
			h.used = false
		default:
			delete(l.byKey, h.key)
			*h = heldLease{tokens: h.tokens[:0], backs: h.backs[:0]}
			return h
		}
	}
	return nil
}

// heldLease.keep stores the receipt for granted units.
//
//go:noinline
func (h *heldLease) keep(t sealedReceipt) {
	if t.units <= 0 || t.text == "" {
		return
	}
	if len(h.tokens) == tokensMax {
		h.drop(0)
	}
	h.tokens = append(h.tokens, t)
}

// heldLease.drop discards a receipt.
//
//go:noinline
func (h *heldLease) drop(i int) {
	copy(h.tokens[i:], h.tokens[i+1:])
	last := len(h.tokens) - 1
	h.tokens[last], h.tokens = sealedReceipt{}, h.tokens[:last]
}

// lookAfter adds a counter to those that ticks visit, if it holds units.
func (f *Filter) lookAfter(h *heldLease) {
	if h.ticking || !h.counter.Holding() {
		return
	}
	h.ticking = true
	f.leases.ticking = append(f.leases.ticking, h)
	f.quickenTicks()
}

// Filter.refundUnneeded refunds leased units that the filter no longer needs.
func (f *Filter) refundUnneeded() {
	l := &f.leases
	if len(l.ticking) == 0 {
		return
	}
	now := f.elapsedTime()
	if now < l.due {
		return
	}
	l.due = now + lease.TickEvery
	kept, units := l.ticking[:0], int64(0)
	for _, h := range l.ticking {
		l.backs = h.counter.Tick(now, l.backs[:0])
		f.gather(h, l.backs, now)
		if h.counter.Holding() {
			kept, units = append(kept, h), units+h.counter.Held(now)
			continue
		}
		h.ticking = false
		clear(h.tokens)
		h.tokens = h.tokens[:0]
	}
	clear(l.ticking[len(kept):])
	l.ticking = kept
	f.reportHeld(units)
}

// reportHeld reports the number of held units to Envoy.
func (f *Filter) reportHeld(units int64) {
	if change := units - f.leases.told; change != 0 {
		f.leases.told = units
		f.host.Held(change)
	}
}

// Filter.gather collects the refunds of a counter. It sends them as soon as the counter holds no
// units, or after gatherTime.
func (f *Filter) gather(h *heldLease, backs []lease.Refund, now counter.Micros) {
	for _, b := range backs {
		if len(h.backs) == 0 {
			h.since = now
		}
		i := 0
		for i < len(h.backs) && h.backs[i].Receipt != b.Receipt {
			i++
		}
		if i == len(h.backs) {
			h.backs = append(h.backs, lease.Refund{Receipt: b.Receipt, Age: b.Age})
		}
		h.backs[i].Units += b.Units
		h.backs[i].Age = min(h.backs[i].Age, b.Age)
	}
	if len(h.backs) > 0 && (!h.counter.Holding() || now-h.since >= gatherTime) {
		for i := range h.backs {
			f.refund(h, &h.backs[i])
		}
		h.backs = h.backs[:0]
	}
}

// Filter.refund refunds units with the next call, by the oldest receipts of their charge. Most
// units of those receipts have been used. A receipt is valid only once, so the rest of an old
// receipt is lost, but the newer receipts still cover the held units. A receipt with a greater age
// than the units have would credit too much to a bucket, so it is not used.
func (f *Filter) refund(h *heldLease, b *lease.Refund) {
	units := b.Units
	for i := 0; i < len(h.tokens) && units > 0 && len(f.leases.extras) < extrasMax; {
		t := h.tokens[i]
		if t.receipt != b.Receipt || t.age > b.Age {
			i++
			continue
		}
		n := min(units, t.units)
		units -= n
		h.drop(i)
		f.enqueueExtra(new(extra), wire.AppendRefund(nil, &wire.Refund{Token: t.text, Units: n}))
	}
}

// releaseAll refunds all units, including those from calls under way, and drops recent denials.
// releaseAll is used if the time is unknown, or if the filter ends.
func (f *Filter) releaseAll(now counter.Micros) {
	l := &f.leases
	for _, h := range l.all {
		h.counter.Forget(false)
		l.backs = h.counter.Release(l.backs[:0])
		f.gather(h, l.backs, now)
	}
}
