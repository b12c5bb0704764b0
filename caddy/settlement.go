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
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/internal/enforce"
	"github.com/penstock/penstock/internal/enforce/settle"
	"github.com/penstock/penstock/internal/enforce/shadow"
	"github.com/penstock/penstock/internal/usage"
	"github.com/penstock/penstock/internal/usage/inflate"
)

// settlement holds the pending corrections of one request's charges, and the data about the
// response that is known so far. During the request it belongs to the responder. After the
// response, the settlement belongs to the settler, or to the trial that waits for it.
type settlement struct {
	core.Settlement
	next   *settlement     // the next settlement of the same response
	store  *pooledStore    // the store of the charges; nil for a trial
	client enforce.Client  // the client whose usage is corrected with the charges
	trial  *shadow.Trial   // the trial to start when the response is known; nil for policies in force
	ctx    context.Context // the context of the request
	checks []counter.Check

	head   bool // a HEAD request, whose response has no body
	tunnel bool // a CONNECT request; after its response, another protocol follows
	begun  bool
	status int         // 0 if there was no usable response
	grpc   int         // the status of a gRPC response, as response.StatusOfGRPC returns it; otherwise 0
	header http.Header // the header when the response began
	later  http.Header // the header when the response ended; it contains the trailers
	tap    *usage.Tap  // reads costs in the body; nil if not needed
	unread bool        // the body contains a cost that cannot be read
	cut    bool        // the client did not wait for the end of the response
}

var settlements = sync.Pool{New: func() any { return new(settlement) }}

// Due implements [settle.Job].
func (s *settlement) Due() []counter.Check { return s.checks }

// Release ends the settlement and recycles it.
func (s *settlement) Release() {
	if s.tap != nil {
		s.tap.Close()
	}
	*s = settlement{Settlement: s.Settlement}
	settlements.Put(s)
}

// newSettler returns a queue that corrects charges in a store.
func newSettler(store counter.Store) *settle.Queue {
	queue := settle.New(store, func(end settle.End) { common.Settlements.WithLabelValues(string(end)).Inc() })
	queue.Panic = func(reason any) {
		storeLogger().Error("a settlement has panicked", "reason", reason, "stack", string(debug.Stack()))
	}
	return queue
}

// settlementOf returns a settlement if the request's charges may need corrections, and nil
// otherwise. The caller owns the settlement.
func (s *scratchSpace) settlementOf(d *core.Decision) *settlement {
	if d.Denied() {
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

// responder.pass passes the request on and settles its charges as soon as the cost is known.
// Charges that are still pending when the inner handlers return or panic are settled then.
func (w *responder) pass(r *http.Request, next caddyhttp.Handler) (err error) {
	if w.settlement == nil {
		return next.ServeHTTP(w, r)
	}
	for s := w.settlement; s != nil; s = s.next {
		s.ctx, s.head, s.tunnel = r.Context(), r.Method == http.MethodHead, r.Method == http.MethodConnect
	}
	w.body, w.sending = watchBody(r), watchSending(r)
	w.narrowCodings(r)
	panics := true
	defer func() {
		w.settle(func(s *settlement) bool {
			begun := s.begun
			s.endResponse(w, err, panics)
			if cost, known := s.CostNow(s); known && !begun { // the header is written later, so it can show the cost
				w.correctCost(cost)
			}
			return true
		})
	}()
	err = next.ServeHTTP(w, r)
	panics = false
	return err
}

// responder.begin records that the response begins. It immediately settles charges that depend only
// on status and header, because a stream may last for hours.
func (w *responder) begin(status int) {
	if w.settlement == nil {
		return
	}
	w.settle(func(s *settlement) bool { return !s.begun && s.recordBegin(w, status) })
}

// responder.settle settles each pending settlement s for which known(s) is true.
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

// recordBegin records the beginning of the response. recordBegin reports whether no further data is
// needed.
func (s *settlement) recordBegin(w *responder, status int) bool {
	header := w.ResponseWriter.Header()
	s.begun, s.status, s.header = true, status, header
	if w.clientAborts(s.ctx) {
		s.status, s.cut = 0, true // the status does not count, because the response may be a result of the disconnect
	}
	s.learnGRPC(header)
	awaits := s.hasBody() && (s.grpc == core.StatusUnread || len(header["Content-Length"]) == 0 && s.Awaits(s))
	if !awaits {
		if cost, known := s.CostNow(s); known {
			w.correctCost(cost)
		}
	}
	if s.tap = s.newTap(header); s.tap == nil && !awaits {
		return true
	}
	s.header = maps.Clone(header) // outer handlers may remove fields
	return false
}

// learnGRPC reads the status of a gRPC response, which is in the trailers, or in the header of a
// response without messages.
func (s *settlement) learnGRPC(header http.Header) {
	if s.status != http.StatusOK || !s.NeedsStatus() || !response.IsGRPC(header.Get("Content-Type")) {
		return
	}
	s.grpc = core.StatusUnread
	for _, name := range [...]string{"Grpc-Status", http.TrailerPrefix + "Grpc-Status"} {
		if codes := header[name]; len(codes) > 0 {
			s.grpc = response.StatusOfGRPC(codes[len(codes)-1])
		}
	}
}

// hasTap reports whether a settlement reads the body.
func (w *responder) hasTap() bool {
	for s := w.settlement; s != nil; s = s.next {
		if s.tap != nil {
			return true
		}
	}
	return false
}

// hasBody reports whether the response may have a body. If the body has no known length, trailers
// may follow. Trailers need not be announced, and over HTTP/2 they seldom are.
func (s *settlement) hasBody() bool {
	return !s.head && s.status >= http.StatusOK && s.status != http.StatusNoContent && s.status != http.StatusNotModified
}

// newTap returns a tap that reads costs in the body. newTap returns nil if the body contains no
// cost or cannot be read.
func (s *settlement) newTap(header http.Header) *usage.Tap {
	paths := s.Paths()
	if len(paths) == 0 || !s.hasBody() {
		return nil
	}
	tap := usage.New(paths, header.Get("Content-Type"), header.Get("Content-Encoding"), inflate.Bodies{})
	tap.CountFor(s.Source())
	if !tap.Readable() {
		s.unread = tap.Unread()
		return nil
	}
	return tap
}

// endResponse completes the response data when the handlers are done. If there is no response and
// the client may have disconnected, the reserved units stay charged.
func (s *settlement) endResponse(w *responder, err error, panics bool) {
	header := w.ResponseWriter.Header()
	s.later = header
	if s.begun && (w.failed || s.ctx.Err() != nil && (err != nil || panics)) {
		s.cut = s.tap == nil || s.tap.Cut() // without a tap, the settlement waits for trailers, which did not come
	}
	switch {
	case s.begun:
	case w.clientAborts(s.ctx) || err != nil && w.unfinished() || isLostResponse(err, w.sending):
		s.status, s.cut = 0, true
	case panics:
	case err == nil:
		s.status, s.header = http.StatusOK, header
	default:
		// Error routes or the server answer the request.
		s.status, s.header = http.StatusInternalServerError, header
		if failed := (caddyhttp.HandlerError{}); errors.As(err, &failed) && failed.StatusCode > 0 {
			s.status = failed.StatusCode
		}
		if s.status == statusClientGone {
			s.status = 0
		}
	}
	s.learnGRPC(header)
}

// isLostResponse reports whether an error of reverse_proxy means that a request was sent to the
// upstream, but that the proxy could not accept a response. A client can cause that. For instance,
// the upstream may repeat so much of the request that the response header is too large. A client
// cannot make the upstream unreachable. But reverse_proxy and Go's transport may send a request
// several times. If the last attempt could not connect, an earlier one may have reached the
// upstream.
func isLostResponse(err error, sending *sendWatch) bool {
	failed, dial := caddyhttp.HandlerError{}, reverseproxy.DialError{}
	return errors.As(err, &failed) && (!errors.As(err, &dial) || sending.mayHaveSent()) &&
		(failed.StatusCode == http.StatusBadGateway || failed.StatusCode == http.StatusGatewayTimeout)
}

// inflating decompresses the bodies of responses that contain a cost, for all stores.
var inflating inflate.Queue

// settlement.settle sends the corrections to the store's queue, or starts the trial that waits for
// the response. A compressed body is queued and decompressed in the background. So the response
// does not wait, and many such bodies do not occupy all processors. If the queue has no room, the
// body is not read.
func (s *settlement) settle() {
	compressed := s.tap != nil && s.tap.Compressed()
	if s.trial != nil || compressed {
		s.header, s.later = maps.Clone(s.header), maps.Clone(s.later) // the server reuses its own header map
	}
	switch {
	case s.trial != nil:
		s.trial.Start()
	case !compressed:
		s.correct()
	default:
		s.store.hold()
		if !s.store.inflating.Add(s.Source(), s.correctLater) {
			s.tap.GiveUp()
			s.correctLater()
		}
	}
}

// correctLater decompresses the body of the response and sends the corrections. It then ends the
// body's hold on the store. After a panic, the settlement is not reused.
func (s *settlement) correctLater() {
	store, tap := s.store, s.tap
	defer store.releaseBody()
	defer func() {
		if reason := recover(); reason != nil {
			tap.Close()
			common.Settlements.WithLabelValues(string(settle.Panicked)).Inc()
			store.settler.Panic(reason)
		}
	}()
	s.correct()
}

// settlement.correct adds the corrections of a request to the queue of its store.
func (s *settlement) correct() {
	s.store.enforcer.MeasureSettled(&s.Settlement, s, &s.client)
	var unreadable int
	s.checks, unreadable = s.Checks(s)
	common.Unreadable.Add(float64(unreadable))
	if len(s.checks) == 0 {
		s.Release()
		return
	}
	s.store.settler.Send(s)
}

// wasWithheld reports whether part of the body was not sent because of HEAD, a range or a
// condition, or because the connection was upgraded.
func (s *settlement) wasWithheld() bool {
	return s.tunnel && s.status < http.StatusMultipleChoices || usage.Withheld(s.head, s.status, len(s.header["Content-Range"]) > 0)
}

// Status implements [core.Answer].
func (s *settlement) Status() int {
	if s.grpc != 0 {
		return s.grpc
	}
	return s.status
}

// Header implements [core.Answer]. Header looks for the field in the header first, then in the
// trailers. If the client left before the status was written, the value is marked as unread,
// because the client did not wait for the response. If the field is missing and the client did not
// wait for the end of the response, the result is the mark alone.
func (s *settlement) Header(name string) (string, bool) {
	for _, values := range [][]string{s.header[name], s.later[name], s.later[http.TrailerPrefix+name]} {
		if len(values) == 0 {
			continue
		}
		text := strings.Join(values, ", ")
		if s.cut && s.status == 0 {
			text = core.UnreadMark + text
		}
		return text, true
	}
	if s.cut {
		return core.UnreadMark, true
	}
	return "", false
}

// JSON implements [core.Answer].
func (s *settlement) JSON(path string) (string, bool) {
	if s.tap == nil {
		if s.unread || s.status == 0 && s.cut || s.wasWithheld() {
			return core.UnreadMark, true
		}
		return "", false
	}
	value, ok := s.tap.JSON(path)
	if s.cut || s.tap.Unread() || s.wasWithheld() {
		return core.UnreadMark + value, true
	}
	return value, ok
}

var _ core.Answer = (*settlement)(nil)
