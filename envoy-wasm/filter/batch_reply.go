// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"slices"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// callEnded handles the end of a call. callEnded sends the next call first, so that the next call
// is under way while the worker delivers the answers.
func (f *Filter) callEnded(fl *flight, r Reply) {
	defer f.guard()
	f.beginResuming()
	f.calls.drop(fl)
	if !fl.over && r.Status == 504 && f.elapsedTime()-fl.sent >= f.silentFor()+lateMax {
		// this is a timeout in Envoy itself, before the filter has counted a second of silence
		f.abandon(fl, CounterFull)
	}
	defer f.deliverAll(fl, r)
	if fl.late && r.Status == 200 {
		f.countLate(fl)
	}
	switch {
	case r.Status == 400 && fl.leasing: // this bridge does not know leases: another one has announced them
		f.resendWithoutLeases(fl)
	case !fl.over, r.Status == 200: // any other status was counted when the call was given up
		f.noteReply(r)
	}
	f.send()
}

// calls.drop forgets a call that has ended.
func (c *calls) drop(fl *flight) {
	if c.flight == fl {
		c.flight = nil
	}
	if i := slices.Index(c.overdue, fl); i >= 0 {
		c.overdue = slices.Delete(c.overdue, i, i+1)
	}
}

// countLate counts the requests of a call that was answered after its deadline.
func (f *Filter) countLate(fl *flight) {
	for i := range fl.items {
		if fl.items[i].stream != nil {
			f.host.Count(CounterLate)
		}
	}
}

// resendWithoutLeases enqueues again the requests and settlements of a call that the bridge
// rejected because the call was about leases. The bridge has charged and settled nothing. Calls are
// rejected during an upgrade, when bridges of both releases can share one address. The requests of
// a call that was given up have already been decided.
func (f *Filter) resendWithoutLeases(fl *flight) {
	f.leases.reads, f.leases.leasesOffUntil = false, f.elapsedTime()+leasesOffFor
	var waits []*Stream
	for i := range fl.items {
		r := &fl.items[i]
		switch {
		case r.due != nil:
			f.enqueueSettlement(r.due)
			r.due, r.extra = nil, true
		case r.stream != nil && !fl.over:
			waits = append(waits, r.stream)
			r.stream.addToCount(1)
			r.stream, r.extra = nil, true
		}
	}
	f.calls.waiting = append(waits, f.calls.waiting...)
}

// deliverAll delivers the answers of a call. If a delivery panics, the remaining items get no
// answer.
func (f *Filter) deliverAll(fl *flight, r Reply) {
	c := &f.calls
	items, delivered := fl.items, 0
	c.answeredSent = fl.sent
	defer func() {
		for ; delivered < len(items); delivered++ {
			f.deliver(&items[delivered], nil, whyOf(r), fl.sent)
		}
		clear(items)
		c.spare = fl
		f.moveQueues()
	}()
	reply, err := replyOf(r)
	for delivered < len(items) {
		var got *wire.Answer
		if err == nil {
			var ok bool
			if ok, err = reply.Next(&c.answer); ok && err == nil {
				got = &c.answer
			}
		}
		delivered++
		f.deliver(&items[delivered-1], got, whyOf(r), fl.sent)
	}
}

// Filter.deliver delivers an answer to an item. The argument named got is nil if there is no
// answer; the argument named why is then the cause.
func (f *Filter) deliver(r *batchItem, got *wire.Answer, why Counter, sent counter.Micros) {
	s, ok := r.stream, got != nil && got.Status == wire.StatusOK
	if got != nil && !ok {
		why = reasonOf(got.Status)
	}
	defer f.guard()
	defer f.leaveGate(r.gate)
	if r.due != nil {
		if r.extra = why == CounterBusy; r.extra {
			f.keepSettlement(r.due) // the bridge has not read the call (see below), or had no place for it
		} else {
			f.forget(r.due)
		}
	}
	if r.report != nil && got == nil && why == CounterBusy {
		// The bridge has not read the call. So the report becomes part of the next call, or of a
		// call in the next tick.
		f.leases.extras = append(f.leases.extras, r.report)
	}
	f.lease(r, got, ok, sent)
	if got != nil && got.Status == wire.StatusLoan && r.gate != nil {
		r.gate.room = counter.CountMax // the requests behind this one will wait in the bridge too
	}
	switch {
	case s == nil && !r.extra && !ok:
		f.host.Count(CounterUnsettled)
	case s == nil || s.state != waiting:
	case got != nil:
		s.take(got)
	default:
		s.decideUnanswered(why)
	}
}

// decideUnanswered decides by on_error a request that got no answer.
func (s *Stream) decideUnanswered(why Counter) {
	defer s.rescueDecision()
	s.degrade(why)
}

// reasonOf returns the counter for an answer with a status other than success.
func reasonOf(status wire.Status) Counter {
	switch status {
	case wire.StatusUnavailable:
		return CounterUnavailable
	case wire.StatusBusy, wire.StatusLate:
		return CounterBusy
	case wire.StatusUnknown:
		return CounterUnknown
	default:
		return CounterUnanswered
	}
}

// whyOf returns the counter for a reply without answers.
//
//go:noinline
func whyOf(r Reply) Counter {
	switch {
	case r.busy():
		return CounterBusy
	case r.Status == 0 || r.Status == 503 || r.Status == 504:
		return CounterUnreachable
	}
	return CounterUnanswered
}

// bridgeAnswered reports whether a bridge answered. If Envoy cannot reach a bridge, Envoy itself
// answers 503 or 504.
func (r *Reply) bridgeAnswered() bool {
	return r.Status != 0 && r.Status != 504 && (r.Status != 503 || r.busy())
}

// Reply.busy reports whether a bridge answered that it is overloaded. A 503 made by Envoy
// itself lacks the header that announces leases.
func (r *Reply) busy() bool { return r.Status == 503 && r.Leases != "" }

// replyOf returns a reader of the answers in a reply.
//
//go:noinline
func replyOf(r Reply) (*wire.ReplyReader, error) {
	if r.Status != 200 {
		return nil, wire.ErrMalformed
	}
	return wire.ReadReply(r.Body)
}

// noteReply counts a failed call, and records from an answer whether the bridge accepts calls about
// leases.
func (f *Filter) noteReply(r Reply) {
	c := &f.calls
	l := &f.leases
	if r.bridgeAnswered() {
		c.lastAnswered = f.elapsedTime()
	}
	switch {
	case r.Status == 200:
		l.reads, l.exact = r.Leases != "" && f.elapsedTime() >= l.leasesOffUntil, r.Leases == wire.LeasingExact
		c.failures, c.nodes, f.denials.wanted, f.denials.usage = 0, r.Nodes, r.Denials, r.Usage
	case r.busy():
		c.failures = 0
	default:
		f.callFailed()
	}
}

// callFailed counts a failed call.
//
//go:noinline
func (f *Filter) callFailed() {
	c := &f.calls
	if c.failures++; c.failures >= failuresMax {
		c.openTill = f.host.Now() + openFor
	}
}
