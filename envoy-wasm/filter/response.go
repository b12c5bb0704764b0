// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"strings"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/internal/envoy/exchange"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// dueSettlement holds the settlement of a response and the data known for it. A dueSettlement is
// reused.
type dueSettlement struct {
	place    // in the queue of settlements
	response exchange.Settling
	receipt  string
	numbers  []wire.Field
}

// dueMax is the greatest number of dueSettlement values that are kept for reuse.
const dueMax = 256

// Stream.expect prepares the settlement of the response, if the bridge sent a receipt for it.
func (s *Stream) expect(d *core.Decision, receipt string) {
	f := s.f
	if receipt == "" || d.Denied() {
		return
	}
	next := new(dueSettlement)
	if last := len(f.dues) - 1; last >= 0 {
		next, f.dues = f.dues[last], f.dues[:last]
	}
	if !s.asking.plan.Settlement(&next.response.Settlement) {
		f.dues = append(f.dues, next)
		return
	}
	next.receipt = strings.Clone(receipt) // copied, because it is a part of the whole reply
	next.source = s.source
	s.due = next
}

// Filter.forget frees a dueSettlement for reuse.
//
//go:noinline
func (f *Filter) forget(d *dueSettlement) {
	if len(f.dues) < dueMax {
		d.response.Forget()
		d.receipt, d.numbers = "", d.numbers[:0]
		f.dues = append(f.dues, d)
	}
}

// Responds records that a response has begun, and reports whether ResponseHeaders must see its
// headers. Envoy does not show interim responses.
func (s *Stream) Responds() bool {
	if s.answered {
		return s.grpcType != ""
	}
	if s.state != decided || s.due == nil && s.fields.Empty() {
		s.responded = true // so that no later stream is taken for a continuation of this one
		return false
	}
	return true
}

// ResponseHeaders returns the fields to set in the response. A field replaces all lines of its
// header. The argument named ends reports whether there is no body. Responses made by Envoy itself
// are handled like any other; the filter's own responses are left unchanged.
func (s *Stream) ResponseHeaders(headers [][2]string, ends bool) (fields [][2]string) {
	defer s.f.guard()
	switch {
	case s.answered && s.grpcType != "":
		return [][2]string{{"content-type", s.grpcType}}
	case s.answered || s.state != decided:
		return nil
	}
	status := exchange.StatusOf(headers)
	if status >= 100 && status < 200 && status != 101 {
		return nil // this is an interim response: the final response follows
	}
	s.responded = true
	if s.due != nil {
		s.beginCosts(status, headers, ends)
	}
	return response.Merge(&s.fields, s.remaining, headers)
}

// beginCosts reads costs from the beginning of the response. If status and headers suffice, it
// settles the charge at once, because a stream can last for hours.
func (s *Stream) beginCosts(status int, headers [][2]string, ends bool) {
	settled := s.due.response.Begin(&exchange.Beginning{Status: status, Headers: headers, Ends: ends, Head: s.head, Aborted: s.aborts()})
	if cost, known := s.due.response.Cost(); known {
		s.fields.Correct(cost)
	}
	if settled {
		s.settleOnce()
	}
}

// Stream.aborts reports whether Envoy made the response for a reason that a client can cause,
// or because the upstream could not be reached after more than one attempt.
func (s *Stream) aborts() bool {
	details, _ := s.f.host.Property("response", "code_details")
	if !exchange.Unreached(details) {
		return exchange.Aborts(details, s.complete)
	}
	return attributeText(s.f.host, "upstream.request_attempt_count").Text > "1" // "" if it is not known
}

// RequestEnds records the end of the request.
func (s *Stream) RequestEnds() { s.complete = true }

// Waits reports whether the request waits for a decision.
func (s *Stream) Waits() bool { return s.state > fresh && s.state < decided }

// Listens reports whether ResponseBody must see the body.
func (s *Stream) Listens() bool { return s.due != nil && s.due.response.Listens() }

// ResponseBody reads a piece of the body. It does not delay the body.
func (s *Stream) ResponseBody(piece []byte, ends bool) {
	defer s.f.guard()
	if s.due != nil {
		s.due.response.Body(piece)
	}
	if ends {
		s.settleOnce()
	}
}

// Awaits reports whether ResponseTrailers must see the trailers.
func (s *Stream) Awaits() bool { return s.due != nil }

// ResponseTrailers ends the response.
func (s *Stream) ResponseTrailers(trailers [][2]string) {
	defer s.f.guard()
	if s.due != nil {
		s.due.response.Trailers(trailers)
		s.settleOnce()
	}
}

// settleOnce reports the response to the bridge once, if that changes the charge.
func (s *Stream) settleOnce() {
	d := s.due
	if d == nil {
		return
	}
	s.due = nil
	for _, path := range d.response.Paths() {
		if number, ok := d.response.JSON(path); ok {
			d.numbers = append(d.numbers, wire.Field{Name: path, Text: number})
		}
	}
	checks, unreadable := d.response.Checks(&d.response)
	if unreadable > 0 {
		s.f.host.Count(CounterUnreadable)
	}
	if len(checks) == 0 {
		s.f.forget(d)
		return
	}
	for i := range checks {
		if h := s.f.leases.holdLease(&checks[i], false); h != nil && checks[i].Op == counter.OpRefund {
			h.counter.Forget(false) // drop the remembered denial, because the settlement might have made room
		}
	}
	s.f.enqueueSettlement(d)
}
