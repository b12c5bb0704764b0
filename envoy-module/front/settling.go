// SPDX-License-Identifier: Apache-2.0

package front

import (
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/internal/envoy/exchange"
	"github.com/penstock/penstock/internal/usage/inflate"
)

// Settling is the response of a request whose charge depends on it. Envoy's worker calls its
// methods, and End once, as the last of them.
type Settling struct {
	response exchange.Settling
	front    *Front
	checks   []counter.Check
	holds    atomic.Int32 // the hooks and the store's queue of settlements

	head, hurried bool // of the request
	sent          bool
	passed        bool            // the request was passed on to the upstream
	writer        response.Writer // has the text of fields
	fields        response.Fields
	remaining     int64
}

var settlings = sync.Pool{New: func() any { return new(Settling) }}

// Beginning describes a response that begins.
type Beginning struct {
	Headers  [][2]string
	Ends     bool   // there is no body
	Complete bool   // the request has come to its end
	Details  string // Envoy's response.code_details
}

// expect prepares the settlement of the response, if its cost can change the charge.
func (s *Stream) expect() {
	t := settlings.Get().(*Settling)
	if !s.plan.Settlement(&t.response.Settlement) {
		settlings.Put(t)
		return
	}
	t.front, t.fields, t.remaining = s.front, s.fields, s.remaining
	t.writer, s.writer = s.writer, t.writer // the fields of the stream are now valid as long as t is
	s.writer.Shares = true
	t.holds.Store(1)
	t.head, t.hurried = s.request.Ask.Method == "HEAD", s.request.Hurried
	s.front.enter()
	s.settling = t
}

// Settling returns the settlement that the response needs, nil if it needs none. It then belongs to
// the caller.
func (s *Stream) Settling() *Settling {
	if s.late { // the goroutine may be writing it, and ends it
		return nil
	}
	t := s.settling
	s.settling = nil
	if t != nil {
		t.passed = true
	}
	return t
}

// Begin reads the beginning of the response. It returns the fields about limits to set in it, and
// whether Body must see the body.
func (t *Settling) Begin(b *Beginning) (fields [][2]string, listens bool) {
	defer t.guard()
	status := exchange.StatusOf(b.Headers)
	if status >= 100 && status < 200 && status != 101 {
		return nil, false // an interim response: the final one follows
	}
	due := t.response.Begin(&exchange.Beginning{Status: status, Headers: b.Headers, Ends: b.Ends, Head: t.head,
		Aborted: exchange.Aborts(b.Details, b.Complete, t.hurried), Inflater: inflate.Bodies{}})
	if cost, known := t.response.Cost(); known {
		t.fields.Correct(cost)
	}
	fields = response.Merge(&t.fields, t.remaining, b.Headers)
	if due {
		t.settle()
		return fields, false
	}
	return fields, t.response.Listens()
}

// Body reads a piece of the body, and reports whether it must see the next one.
func (t *Settling) Body(piece []byte, ends bool) (listens bool) {
	defer t.guard()
	if t.sent {
		return false
	}
	t.response.Body(piece)
	if ends {
		t.settle()
		return false
	}
	return t.response.Listens()
}

// Trailers ends the response with its trailers.
func (t *Settling) Trailers(trailers [][2]string) {
	defer t.guard()
	if !t.sent {
		t.response.Trailers(trailers)
		t.settle()
	}
}

// End ends the response. If its end was not read, or if it has not begun, the cost is the number
// read so far, or the policy's unread: the upstream may have done its work. The charge of a request
// that did not reach the upstream stays as it is.
func (t *Settling) End() {
	defer t.Release()
	defer t.guard()
	if !t.sent && t.passed {
		t.response.Cut()
		t.settle()
	}
}

// settle sends the corrections of the charge to the store's queue, once.
func (t *Settling) settle() {
	if t.sent {
		return
	}
	t.sent = true
	var unreadable int
	t.checks, unreadable = t.response.Checks(&t.response)
	t.front.process.metrics.Unreadable.Add(float64(unreadable))
	if len(t.checks) > 0 {
		t.holds.Add(1)
		t.front.store.settler.Send(t)
	}
}

// Due implements [settle.Job].
func (t *Settling) Due() []counter.Check { return t.checks }

// Release implements [settle.Job]. It ends one use of the settlement, and the last one recycles it.
func (t *Settling) Release() {
	if t.holds.Add(-1) > 0 {
		return
	}
	f := t.front
	t.response.Forget()
	t.front, t.checks, t.passed, t.sent = nil, nil, false, false
	settlings.Put(t)
	f.leave()
}

// guard recovers from a panic in a hook about a response, which continues unchanged. It must be
// deferred.
func (t *Settling) guard() {
	if reason := recover(); reason != nil {
		t.front.process.panicked(reason)
	}
}
