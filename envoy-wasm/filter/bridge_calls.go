// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// checkPath is the path of the bridge that decides requests.
const checkPath = "/v1/check"

// After failuresMax consecutive failed calls, the filter makes no call for the time openFor. After
// that, the filter makes calls without questions, to detect that the bridge is back. So requests do
// not wait for a bridge that hangs.
const (
	failuresMax = 3
	openFor     = 500 * counter.Millisecond
)

// Bounds of the queues.
const (
	batchItemsMax = wire.ItemsMax
	// bytes of a call with several questions; a longer question gets its own call
	batchBytesMax = 256 << 10
	// requests in the queues of one worker; further requests are denied with 503
	waitingMax = 16384
	// bytes of headers of requests that wait or are queued; further requests are denied too
	heldBytesMax = 128 << 20
	// settlements; one that is not sent leaves its reservation charged
	settlingMax = 16384
)

// calls holds the calls of one worker to the bridge. Apart from overdue calls, at most one
// is under way, and requests that arrive in the meantime share the next one.
type calls struct {
	waiting       []*Stream        // requests without a call, in the order of their turns
	sources       sources          // the sources of the requests in the queues
	settling      []*dueSettlement // responses to report, in the order of their turns
	settlers      turns            // the turns of the settlements
	flight        *flight          // the call under way, or nil
	overdue       []*flight        // calls past their deadline, whose requests still wait
	lastAnswered  counter.Micros   // time of the last answer, on the clock of leases
	filling       *flight          // the call that is being made
	spare         *flight          // a finished call, kept for reuse
	throttleQueue []*Stream        // requests that wait with calls of their own
	seconds       int              // the calls of throttleQueue that have not ended
	answeredSent  counter.Micros   // when the call was sent whose answers are being delivered
	held          int              // bytes of headers of requests that wait or are queued
	nodes         int64            // number of nodes that share the store, by the last answer
	woken         bool
	failures      int
	openTill      counter.Micros
	probing       bool
	body          []byte
	answer        wire.Answer
}

// flight is a call with the questions of several requests.
//
// After the deadline of a flight, the next call is made although the flight is still under way, and
// the requests of the flight continue to wait. They are decided without an answer as soon as the
// bridge counts as down or the call as lost. A later answer still proves that the bridge is up, and
// the filter uses the units in it.
type flight struct {
	items   []batchItem
	sent    counter.Micros // a time on the clock of leases
	leasing bool           // whether the call is about leases
	looked  counter.Micros // when a tick last checked it, on the same clock
	waited  counter.Micros // how long the filter has been able to read an answer
	over    bool           // whether the filter has given up waiting for the answer
	late    bool           // whether its deadline has passed
}

// batchItem is one item of a call: a question, a lease, a refund or a settlement.
type batchItem struct {
	gate   *gate          // the gate at which the item counts
	stream *Stream        // the request of the question, or nil
	wants  []wantedUnits  // units to take with the question or in advance
	extra  bool           // whether the item is an extra
	checks int            // number of checks of the stream
	due    *dueSettlement // a settlement, kept in case the call must be made again
	report *extra         // a report of denials or admissions, kept in case the bridge is busy
}

// keepBytes counts the bytes that a waiting request holds.
func (c *calls) keepBytes(a *askingData) {
	c.held += a.attrs.Bytes - a.held
	a.held = a.attrs.Bytes
}

// enqueueForBatch puts the request into the queue for the next calls, at the place of its turn.
// enqueueForBatch returns false if the host cannot schedule a call; in that case the request must
// be decided at once.
//
//go:noinline
func (s *Stream) enqueueForBatch() bool {
	c := &s.f.calls
	s.addToCount(1)
	c.waiting = takeTurn(&c.sources.turns, c.waiting, s)
	if !s.f.scheduleFlush() {
		return false // fillBatch skips the request
	}
	s.f.quickenTicks() // in case the host does not report the end of the turn
	return true
}

// enqueueSettlement reports a response to the bridge with the next call.
func (f *Filter) enqueueSettlement(d *dueSettlement) {
	f.keepSettlement(d)
	f.scheduleFlush() // if this fails, the settlement is sent with the next call
}

// keepSettlement adds a settlement to the next call, or to a call in the next tick. If the queue
// is full, it drops the last settlement in it, which belongs to a source with the most settlements.
//
//go:noinline
func (f *Filter) keepSettlement(d *dueSettlement) {
	c := &f.calls
	c.settling = takeTurn(&c.settlers, c.settling, d)
	if last := len(c.settling) - 1; last >= settlingMax {
		d = c.settling[last]
		c.settlers.each[d.source] = d.turn - 1
		c.settling = c.settling[:last]
		f.host.Count(CounterUnsettled)
		f.forget(d)
	}
}

// scheduleFlush makes the host call Flush soon. While a call is under way it does nothing, because
// Flush is called at the end of that call. The host can call Flush even before scheduleFlush
// returns, so the caller must put its item into the queue first.
func (f *Filter) scheduleFlush() bool { return f.calls.flight != nil || f.requestFlush() }

// Flush ends a turn: it decides the requests that arrived in the turn, and makes the next call
// unless one is under way.
func (f *Filter) Flush() {
	defer f.guard()
	f.beginResuming()
	// woken is still true, because questions that are added here need no further Flush
	f.decideArrivals()
	f.calls.woken = false
	f.moveQueues()
	if f.send(); len(f.out.waiting) > 0 {
		f.requestFlush()
	}
}

// Filter.send makes the next call, with requests of one version of the policy, and with
// settlements. If the call cannot be made, its requests are decided at once, and the remaining ones
// get the next call.
func (f *Filter) send() {
	c := &f.calls
	for c.flight == nil && len(c.waiting)+len(c.settling)+len(f.leases.extras) > 0 {
		next := c.spare
		if c.spare = nil; next == nil {
			next = new(flight)
		}
		now := f.elapsedTime()
		next.items, next.sent, next.looked = next.items[:0], now, now
		next.waited, next.leasing, next.over, next.late = 0, false, false, false
		c.filling = next
		f.fillBatch()
		if len(next.items) == 0 {
			c.spare = next
			continue // all of the requests had ended
		}
		c.flight = next
		f.quickenTicks()
		if f.dispatch(f.checkCall(c.body, f.callMillis()), func(r Reply) { f.callEnded(next, r) }) != nil {
			c.flight = nil
			f.noteReply(Reply{})
			f.deliverAll(next, Reply{})
		}
	}
}

// checkCall returns a call that asks for decisions.
//
//go:noinline
func (f *Filter) checkCall(body []byte, timeoutMillis uint32) Call {
	call := f.call("POST", checkPath, body, timeoutMillis)
	call.Header = append(call.Header, [2]string{"content-type", wire.ContentType}, [2]string{wire.LoansHeader, wire.ReadsLate})
	return call
}

// millis rounds up to whole milliseconds.
//
//go:noinline
func millis(m counter.Micros) uint32 {
	return uint32((m + counter.Millisecond - 1) / counter.Millisecond)
}
