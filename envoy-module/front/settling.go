// SPDX-License-Identifier: Apache-2.0

package front

import (
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/internal/enforce"
	"github.com/penstock/penstock/internal/envoy/exchange"
	"github.com/penstock/penstock/internal/usage/inflate"
)

// Settling is the response to a request whose charge depends on the response. Envoy's worker calls
// its methods. The last call is End, which is called only once.
type Settling struct {
	// Headers has room into which the adapter reads the headers of the response, and later its
	// trailers. The next response reuses the room.
	Headers [][2]string

	response exchange.Settling
	front    *Front
	checks   []counter.Check
	client   enforce.Client // the client whose usage is corrected together with the charge
	holds    atomic.Int32   // number of uses: by the hooks, the work in the background, and the store's queue

	head      bool           // the response has no body to read, see exchange.HasNoBody
	settles   bool           // the policy in force may correct the charge; if not, only the candidate reads it
	tried     *trialResponse // the trial that waits for the response; nil for none
	sent      bool
	passed    bool            // the request was passed on to the upstream
	writer    response.Writer // has the text of fields
	fields    response.Fields
	merged    response.Fields // fields, combined with those of the response
	remaining int64
}

var settlings = sync.Pool{New: func() any { return new(Settling) }}

// Beginning describes a response that begins.
type Beginning struct {
	Headers  [][2]string // the texts need to be valid only during the hook
	Ends     bool        // there is no body
	Complete bool        // the request has come to its end
	Details  string      // Envoy's response.code_details
	Attempts uint64      // Envoy's upstream.request_attempt_count
}

// Stream.expect prepares the settlement, if the charge depends on the response.
func (s *Stream) expect() {
	t := settlings.Get().(*Settling)
	if t.settles = s.plan.Settlement(&t.response.Settlement); !t.settles && s.tried == nil {
		settlings.Put(t)
		return
	}
	t.tried, s.tried = s.tried, nil
	t.front, t.fields, t.remaining = s.front, s.fields, s.remaining
	t.writer, s.writer = s.writer, t.writer // the stream's fields now remain valid until t is released
	s.writer.Shares = true
	t.holds.Store(1)
	t.client = s.front.store.enforcer.ClientOf(&s.plan)
	t.head = exchange.HasNoBody(s.request.Ask.Method)
	s.front.enter()
	s.settling = t
}

// Settling returns the settlement of the response, or nil if the charge does not depend on the
// response. The result then belongs to the caller.
func (s *Stream) Settling() *Settling {
	if s.late { // the request's goroutine may still be writing the settlement, and will end it
		return nil
	}
	t := s.settling
	s.settling = nil
	if t != nil {
		t.passed = true
	}
	return t
}

// Begin reads the beginning of the response. It returns the fields about limits to set in the
// response, which are valid until End, and reports whether Body must be called for the body.
func (t *Settling) Begin(b *Beginning) (fields *response.Fields, listens bool) {
	defer t.guard()
	fields, t.merged = &t.merged, response.Fields{}
	status := exchange.StatusOf(b.Headers)
	if status >= 100 && status < 200 && status != 101 {
		return fields, false // an interim response: the final one follows
	}
	begins := &exchange.Beginning{Status: status, Headers: b.Headers, Ends: b.Ends, Head: t.head,
		Aborted: exchange.Aborts(b.Details, b.Complete) || exchange.Unreached(b.Details) && b.Attempts > 1, Inflater: inflate.Bodies{}}
	if t.tried != nil && !t.tried.begin(begins) {
		t.tried = nil
	}
	if t.settles {
		due := t.response.Begin(begins)
		if cost, known := t.response.Cost(); known {
			t.fields.Correct(cost)
		}
		if due {
			t.settle()
		}
	}
	t.merged = t.fields
	Merge(&t.merged, t.remaining, b.Headers)
	return fields, t.listens()
}

// Settling.listens reports whether Body must be called for the body.
func (t *Settling) listens() bool {
	return t.settles && !t.sent && t.response.Listens() || t.tried != nil && t.tried.Listens()
}

// Body reads a piece of the body, and reports whether Body must be called for the next piece.
func (t *Settling) Body(piece []byte, ends bool) (listens bool) {
	defer t.guard()
	if t.tried != nil {
		t.tried.Body(piece)
	}
	if t.settles && !t.sent {
		t.response.Body(piece)
	}
	if ends {
		t.finish()
	}
	return t.listens()
}

// Settling.finish is called when the response has been read to its end.
func (t *Settling) finish() {
	if t.tried != nil {
		t.tried.trial.Start()
		t.tried = nil
	}
	t.settle()
}

// Trailers reads the trailers, with which the response ends.
func (t *Settling) Trailers(trailers [][2]string) {
	defer t.guard()
	if t.tried != nil {
		t.tried.Trailers(trailers)
	}
	if t.settles && !t.sent {
		t.response.Trailers(trailers)
	}
	t.finish()
}

// End ends the response. If the response was not read to its end, or did not begin, the upstream
// may still have done its work. The cost is then the number that was read so far, or the rule's
// setting named unread. A JSON document that was read to its end has its own cost even then. The
// charge of a request that was not passed on stays as it is.
func (t *Settling) End() {
	defer t.front.leave()
	defer t.Release()
	defer t.guard()
	if t.tried != nil {
		t.tried.end(t.passed)
		t.tried = nil
	}
	if t.settles && !t.sent && t.passed {
		if t.response.Incomplete() {
			t.response.Cut()
		}
		t.settle()
	}
}

// Settling.settle corrects the charge. Further calls do nothing. A compressed body is decompressed
// in the background, because Envoy's worker must not wait for that. If the queue for this work has
// no room, the body is not read.
func (t *Settling) settle() {
	if !t.settles || t.sent {
		return
	}
	t.sent = true
	if !t.response.Compressed() {
		t.correct()
		return
	}
	t.holds.Add(1)
	t.front.enter()
	if !t.front.process.inflating.Add(t.response.Source(), t.correctLater) {
		t.response.GiveUp()
		t.correctLater()
	}
}

// correctLater decompresses the body of the response and corrects the charge.
func (t *Settling) correctLater() {
	defer t.front.leave()
	defer t.Release()
	defer t.guard()
	t.correct()
}

// Settling.correct computes the corrections of the request's charge and adds them to the store's
// queue.
func (t *Settling) correct() {
	t.front.store.enforcer.MeasureSettled(&t.response.Settlement, &t.response, &t.client)
	var unreadable int
	t.checks, unreadable = t.response.Checks(&t.response)
	t.front.process.metrics.Unreadable.Add(float64(unreadable))
	if len(t.checks) > 0 {
		t.holds.Add(1)
		t.front.store.settler.Send(t)
	}
}

// Source implements [settle.Job].
func (t *Settling) Source() uint32 { return t.response.Settlement.Source() }

// Due implements [settle.Job].
func (t *Settling) Due() []counter.Check { return t.checks }

// Release implements [settle.Job]. Release ends one use of the settlement, and the end of the last
// use recycles it. After a panic, the queue does not release the settlement. A settlement in the
// queue does not keep the front open, but the store is not closed before its queue is empty.
func (t *Settling) Release() {
	if t.holds.Add(-1) > 0 {
		return
	}
	t.response.Close()
	t.response.Forget()
	clear(t.Headers)
	t.Headers = t.Headers[:0]
	if cap(t.Headers) > headersKept {
		t.Headers = nil
	}
	t.front, t.checks, t.client, t.passed, t.sent = nil, nil, enforce.Client{}, false, false
	settlings.Put(t)
}

// Settling.guard recovers from a panic in a hook of a response. The response continues unchanged.
// Settling.guard must be deferred.
func (t *Settling) guard() {
	if reason := recover(); reason != nil {
		t.front.process.countPanic(reason)
	}
}
