// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/lease"
	"github.com/penstock/penstock/internal/wire"
)

// A worker holds units of hot counters whose rules say lease: auto, and remembers what was refused a moment ago, by the same
// machine as Caddy and the bridge (package lease). A request of which all limits are in hand is decided here, and one of which
// any was refused so lately; no call is made. Of any other the bridge is asked as always: it has units of its own for all
// workers, so a limit of several that is in hand here saves nothing while another must be asked for. What is granted beside a
// request comes from the store itself, and is given back there.
//
// The clock of all this is the worker's monotonic one. Should it go back all the same, it is not known how long that was, and
// nothing that is in hand is used any more.

// Bounds of what is held of counters.
const (
	// heldMax is how many counters are held: 1 MB of them in each worker. At the bound the one that holds nothing and was not asked
	// for lately is forgotten; and if there is none, requests for others make their call, as without leases.
	heldMax   = 1024
	heldLooks = 16 // how many are looked at to make room
	// tokensMax is how many receipts of a counter are kept: the last. What is in hand is of the last few grants.
	tokensMax = 16
	// extrasMax is how many give-backs wait for a call. More are lost to their windows.
	extrasMax = 1024
	// gatherTime is how long units wait for others of the same counter to be given back with, since a receipt is good once: for
	// longer than a counter keeps what nobody uses.
	gatherTime = 200 * core.Millisecond
	// fetchBytesMax is how long a question is at most in whose name units are asked for in advance, since as many may wait as
	// counters are held. Requests that are longer ask when nothing is in hand.
	fetchBytesMax = 8 << 10
)

// shunnedFor is how long no bridge is asked about leases after one did not read that. While bridges are upgraded behind one
// address it is one call in so long that is made twice.
const shunnedFor = 10 * core.Second

// Of one call, what no request waits for takes half at most.
const (
	extraItemsMax = batchItemsMax / 2
	extraBytesMax = batchBytesMax / 2
)

// held is what is held of one counter.
type held struct {
	key     string
	counter lease.Counter
	pins    int  // calls under way: it must not be forgotten meanwhile
	used    bool // since it was looked at to make room
	ticking bool // it is among those that are looked after
	tokens  []sealed
	backs   []lease.GiveBack // to be sent, once nothing is in hand or the time is over
	since   core.Micros      // when the first of backs came
}

// sealed is a receipt for units of one charge.
type sealed struct {
	receipt core.Micros
	units   int64
	age     core.Micros // of units of a token bucket, as the store was told; 0 of others', which do not mind
	text    string
}

// wanted is what is asked of a counter with a request, or in the name of one.
type wanted struct {
	held   *held
	check  int
	limit  *core.Limit
	asking lease.Asking
}

// extra is an item of a call that no request waits for: units that are asked for in advance, or given back.
type extra struct {
	version string
	item    []byte
	wants   []wanted // none of what is given back
}

// leases are what this worker holds.
type leases struct {
	byKey   map[string]*held
	all     []*held
	next    int     // of all, to be looked at for room
	ticking []*held // of which something may be in hand
	extras  []*extra
	units   []wire.Units // of the item that is being written
	backs   []lease.GiveBack
	reads   bool        // the bridge reads calls about leases
	exact   bool        // it wants to be asked whatever was refused, but for what is leased
	shunned core.Micros // until when none is asked about leases
	due     core.Micros // when to look after what is held
	told    int64       // of the units in hand, how many Envoy knows of

	clock, ahead core.Micros
}

// elapsed is the worker's monotonic clock.
func (f *Filter) elapsed() core.Micros {
	l, now := &f.leases, f.host.Elapsed()
	if now < l.clock {
		l.ahead += l.clock - now
		l.clock = now
		f.releaseAll(now + l.ahead)
	}
	l.clock = now
	return now + l.ahead
}

// hold returns the counter of a check; nil if it is not held, and is not to be, or there is no room.
//
//go:noinline
func (l *leases) hold(c *core.Check, begin bool) *held {
	h := l.byKey[string(c.Key)]
	if h == nil {
		if !begin {
			return nil
		}
		if h = l.room(); h == nil {
			return nil
		}
		if l.byKey == nil {
			l.byKey = make(map[string]*held)
		}
		h.key = string(c.Key)
		l.byKey[h.key] = h
	}
	h.used = true
	return h
}

// room returns a counter that is nobody's.
func (l *leases) room() *held {
	if len(l.all) < heldMax {
		h := new(held)
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
			*h = held{tokens: h.tokens[:0], backs: h.backs[:0]}
			return h
		}
	}
	return nil
}

// keep keeps the receipt for units that were granted.
//
//go:noinline
func (h *held) keep(t sealed) {
	if t.units <= 0 || t.text == "" {
		return
	}
	if len(h.tokens) == tokensMax {
		h.drop(0)
	}
	h.tokens = append(h.tokens, t)
}

// drop forgets a receipt.
//
//go:noinline
func (h *held) drop(i int) {
	copy(h.tokens[i:], h.tokens[i+1:])
	last := len(h.tokens) - 1
	h.tokens[last], h.tokens = sealed{}, h.tokens[:last]
}

// lookAfter has ticks look after a counter that holds anything.
func (f *Filter) lookAfter(h *held) {
	if h.ticking || !h.counter.Holding() {
		return
	}
	h.ticking = true
	f.leases.ticking = append(f.leases.ticking, h)
	f.hurry()
}

// tend gives back what need not be in hand.
func (f *Filter) tend() {
	l := &f.leases
	if len(l.ticking) == 0 {
		return
	}
	now := f.elapsed()
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
	f.tellHeld(units)
}

// tellHeld tells Envoy how many units are in hand.
func (f *Filter) tellHeld(units int64) {
	if change := units - f.leases.told; change != 0 {
		f.leases.told = units
		f.host.Held(change)
	}
}

// gather adds to what goes back of a counter, and sends it if nothing is in hand any more, or the time is over.
func (f *Filter) gather(h *held, backs []lease.GiveBack, now core.Micros) {
	for _, b := range backs {
		if len(h.backs) == 0 {
			h.since = now
		}
		i := 0
		for i < len(h.backs) && h.backs[i].Receipt != b.Receipt {
			i++
		}
		if i == len(h.backs) {
			h.backs = append(h.backs, lease.GiveBack{Receipt: b.Receipt, Age: b.Age})
		}
		h.backs[i].Units += b.Units
		h.backs[i].Age = min(h.backs[i].Age, b.Age)
	}
	if len(h.backs) > 0 && (!h.counter.Holding() || now-h.since >= gatherTime) {
		for i := range h.backs {
			f.giveBack(h, &h.backs[i])
		}
		h.backs = h.backs[:0]
	}
}

// giveBack has units go back with the next call, by the oldest receipts of their charge. Of those most units were used, so that
// what is left of a charge when one is used for less than it is good for covers what is still in hand. By a receipt for a greater
// age than theirs a bucket would credit too much for them.
func (f *Filter) giveBack(h *held, b *lease.GiveBack) {
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
		f.extra(new(extra), wire.AppendReturn(nil, &wire.Return{Token: t.text, Units: n}))
	}
}

// releaseAll gives everything back that is held, and what calls under way bring: it may not be used any more. What was refused may
// be long ago.
func (f *Filter) releaseAll(now core.Micros) {
	l := &f.leases
	for _, h := range l.all {
		h.counter.Forget(false)
		l.backs = h.counter.Release(l.backs[:0])
		f.gather(h, l.backs, now)
	}
}
