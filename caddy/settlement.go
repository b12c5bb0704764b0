// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/settle"
	"github.com/penstock/penstock/internal/usage"
	"github.com/penstock/penstock/internal/usage/inflate"
)

// settlement is what remains to be done about one request's charges, and what is known of its response. While the
// request lasts it is the responder's, then the settler's, or that of the trial that waits for it.
type settlement struct {
	core.Settlement
	next    *settlement // of the same response
	settler *settle.Queue
	trial   *trial          // of a candidate, which is asked once the response is known; nil for the policies in force
	ctx     context.Context // the request's
	checks  []core.Check

	head   bool // there is no body, whatever the header says
	begun  bool
	status int         // 0: there was no answer that anybody could learn from
	header http.Header // of the response when it began
	later  http.Header // of the response in the end: the trailers
	tap    *usage.Tap  // reads the body; nil if nobody need
	unread bool        // the body is one that holds a cost and cannot be read
	cut    bool        // the client did not wait for the end
}

var settlements = sync.Pool{New: func() any { return new(settlement) }}

// Due implements [settle.Job].
func (s *settlement) Due() []core.Check { return s.checks }

// Release ends the settlement. Its buffers are used again.
func (s *settlement) Release() {
	*s = settlement{Settlement: s.Settlement}
	settlements.Put(s)
}

// newSettler returns what settles charges in a store.
func newSettler(store core.Store) *settle.Queue {
	queue := settle.New(store, func(end settle.End) { common.Settlements.WithLabelValues(string(end)).Inc() })
	queue.Panic = func(reason any) {
		storeLogger().Error("a settlement has panicked", "reason", reason, "stack", string(debug.Stack()))
	}
	return queue
}

// settlementOf returns what remains to be done about the request when its response is known, or nil. It belongs to the
// caller.
func (s *scratch) settlementOf(d *core.Decision) *settlement {
	if d.Refused() || d.Degraded {
		return nil
	}
	if s.settlement == nil {
		s.settlement = settlements.Get().(*settlement)
	}
	if !s.plan.Settlement(&s.settlement.Settlement) {
		return nil
	}
	due := s.settlement
	s.settlement = nil
	return due
}

// pass passes the request on and settles what it cost when that is known: at the end at the latest, also when the
// handlers within panic.
func (w *responder) pass(r *http.Request, next caddyhttp.Handler) (err error) {
	if w.settlement == nil {
		return next.ServeHTTP(w, r)
	}
	for s := w.settlement; s != nil; s = s.next {
		s.ctx, s.head = r.Context(), r.Method == http.MethodHead
	}
	w.body = watchBody(r)
	w.narrow(r)
	panics := true
	defer func() {
		w.settle(func(s *settlement) bool {
			begun := s.begun
			s.end(w, err, panics)
			if cost, known := s.CostNow(s); known && !begun { // the header is written later, by error routes or the server
				w.correct(cost)
			}
			return true
		})
	}()
	err = next.ServeHTTP(w, r)
	panics = false
	return err
}

// begin notes that the response begins. What follows from status and header alone is settled at once: a stream may last
// for hours.
func (w *responder) begin(status int) {
	if w.settlement == nil {
		return
	}
	w.settle(func(s *settlement) bool { return !s.begun && s.begin(w, status) })
}

// settle settles what the function says is known by now.
func (w *responder) settle(known func(*settlement) bool) {
	for at := &w.settlement; *at != nil; {
		s := *at
		if !known(s) {
			at = &s.next
			continue
		}
		*at, s.next = s.next, nil
		s.settle()
	}
}

// begin takes in what the beginning of the response says, and reports whether that is all there is to know.
func (s *settlement) begin(w *responder, status int) bool {
	header := w.ResponseWriter.Header()
	s.begun, s.status, s.header = true, status, header
	if w.clientAborts(s.ctx) {
		s.status, s.cut = 0, true // whatever is answered now may be so because the client left
	}
	awaits := s.hasBody() && len(header["Content-Length"]) == 0 && s.Awaits(s)
	if !awaits {
		if cost, known := s.CostNow(s); known {
			w.correct(cost)
		}
	}
	if s.tap = s.listen(header); s.tap == nil && !awaits {
		return true
	}
	s.header = maps.Clone(header) // handlers around us may take fields out
	return false
}

// listens reports whether somebody reads the body.
func (w *responder) listens() bool {
	for s := w.settlement; s != nil; s = s.next {
		if s.tap != nil {
			return true
		}
	}
	return false
}

// hasBody reports whether the response may have a body. If its length is not known, trailers may follow; they are not
// always announced, over HTTP/2 seldom.
func (s *settlement) hasBody() bool {
	return !s.head && s.status >= http.StatusOK && s.status != http.StatusNoContent && s.status != http.StatusNotModified
}

// listen returns what reads the costs in the body; nil if there is none in it, or nothing that can be read.
func (s *settlement) listen(header http.Header) *usage.Tap {
	paths := s.Paths()
	if len(paths) == 0 || !s.hasBody() {
		return nil
	}
	tap := usage.New(paths, header.Get("Content-Type"), header.Get("Content-Encoding"), inflate.Bodies{})
	if !tap.Readable() {
		s.unread = tap.Unread()
		return nil
	}
	return tap
}

// end completes what is known of the response when the handlers are done. That there is no answer because the client has
// broken off its request, or may have, is no answer: what was reserved stands.
func (s *settlement) end(w *responder, err error, panics bool) {
	header := w.ResponseWriter.Header()
	s.later = header
	if s.begun && (w.failed || s.ctx.Err() != nil && (err != nil || panics)) {
		s.cut = s.tap == nil || s.tap.Cut() // without a tap it waits for trailers
	}
	switch {
	case s.begun || panics:
	case w.clientAborts(s.ctx) || err != nil && w.unfinished():
		s.status, s.cut = 0, true
	case err == nil:
		s.status, s.header = http.StatusOK, header
	default:
		// The answer is made by error routes, or by the server.
		s.status, s.header = http.StatusInternalServerError, header
		if failed := (caddyhttp.HandlerError{}); errors.As(err, &failed) && failed.StatusCode > 0 {
			s.status = failed.StatusCode
		}
		if s.status == statusClientGone {
			s.status = 0
		}
	}
}

// settle hands over what is to be done now that the response is known.
func (s *settlement) settle() {
	if s.trial != nil {
		s.header, s.later = maps.Clone(s.header), maps.Clone(s.later) // the server goes on with its own
		s.trial.enqueue()
		return
	}
	var unreadable int
	s.checks, unreadable = s.Checks(s)
	common.Unreadable.Add(float64(unreadable))
	if len(s.checks) == 0 {
		s.Release()
		return
	}
	s.settler.Send(s)
}

// Status implements [core.Answer].
func (s *settlement) Status() int { return s.status }

// Header implements [core.Answer]: a field of the header, or else of the trailers.
func (s *settlement) Header(name string) (string, bool) {
	for _, values := range [][]string{s.header[name], s.later[name], s.later[http.TrailerPrefix+name]} {
		if len(values) > 0 {
			return strings.Join(values, ", "), true
		}
	}
	if s.cut {
		return core.UnreadMark, true
	}
	return "", false
}

// JSON implements [core.Answer].
func (s *settlement) JSON(path string) (string, bool) {
	if s.tap == nil {
		if s.unread || s.status == 0 && s.cut {
			return core.UnreadMark, true
		}
		return "", false
	}
	value, ok := s.tap.JSON(path)
	if s.cut || s.tap.Unread() {
		return core.UnreadMark + value, true
	}
	return value, ok
}

var _ core.Answer = (*settlement)(nil)
