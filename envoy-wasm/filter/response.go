// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"strings"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/usage"
	"github.com/penstock/penstock/internal/wire"
)

// due is what the response of a request settles, and what is known of it. It is used again.
type due struct {
	core.Settlement
	receipt string
	status  int
	headers []wire.Field // those that costs are read from, as far as they have come
	tap     *usage.Tap   // reads the body; nil if nobody need
	awaits  bool         // a header may yet come in the trailers
	unread  bool         // the body is one that holds a cost and cannot be read
	cut     bool         // the response ended before its end
	numbers []wire.Field
}

// dueMax is how many are kept for later requests.
const dueMax = 256

// expect notes what the response will settle: what the bridge has sealed, if there is anything.
func (s *Stream) expect(d *core.Decision, receipt string) {
	f := s.f
	if receipt == "" || d.Refused() {
		return
	}
	next := new(due)
	if last := len(f.dues) - 1; last >= 0 {
		next, f.dues = f.dues[last], f.dues[:last]
	}
	if !s.asking.plan.Settlement(&next.Settlement) {
		f.dues = append(f.dues, next)
		return
	}
	next.receipt = strings.Clone(receipt) // it is cut from the reply to all
	s.due = next
}

// forget lets go of what was due.
//
//go:noinline
func (f *Filter) forget(d *due) {
	if len(f.dues) < dueMax {
		*d = due{Settlement: d.Settlement, headers: d.headers[:0], numbers: d.numbers[:0]}
		f.dues = append(f.dues, d)
	}
}

// Responds notes that a response has come, and reports whether ResponseHeaders has something to say or to learn, so that it need
// not be read otherwise. Envoy shows no interim ones.
func (s *Stream) Responds() bool {
	if s.answered {
		return s.grpcType != ""
	}
	if s.state != decided || s.due == nil && s.told == (core.Telling{}) {
		s.responded = true // nothing that comes later goes on with this one
		return false
	}
	return true
}

// ResponseHeaders returns the fields to set in the response, each in place of all its lines. ends says that there is no
// body. A response that Envoy makes itself is one like any other; our own is left alone.
func (s *Stream) ResponseHeaders(headers [][2]string, ends bool) (fields [][2]string) {
	defer s.f.guard()
	switch {
	case s.answered && s.grpcType != "":
		return [][2]string{{"content-type", s.grpcType}}
	case s.answered || s.state != decided:
		return nil
	}
	status := statusOf(headers)
	if status >= 100 && status < 200 && status != 101 {
		return nil // interim: the response is yet to come
	}
	s.responded = true
	if s.due != nil {
		s.begin(status, headers, ends)
	}
	return s.merged(headers)
}

func statusOf(headers [][2]string) int {
	for i := range headers {
		if headers[i][0] == ":status" {
			status, _ := core.ParseWhole(headers[i][1]) // 0, and settled as such, for what is none
			return int(status)
		}
	}
	return 0
}

// begin takes in what the beginning of the response says. What follows from status and headers alone is settled at once:
// a stream may last for hours.
func (s *Stream) begin(status int, headers [][2]string, ends bool) {
	d := s.due
	d.status = status
	if s.aborts() {
		d.status, d.unread = 0, true
		s.settle()
		return
	}
	d.learn(headers)
	bodied := !ends && !s.head && status >= 200 && status != 204 && status != 304
	d.awaits = bodied && lines(headers, "content-length") == nil && d.Awaits(d)
	if !d.awaits {
		if cost, known := d.CostNow(d); known {
			s.told.Correct(cost)
		}
	}
	if paths := d.Paths(); bodied && len(paths) > 0 {
		tap := usage.New(paths, first(headers, "content-type"), first(headers, "content-encoding"), nil)
		if d.unread = tap.Unread(); tap.Readable() {
			d.tap = tap
		}
	}
	if d.tap == nil && !d.awaits {
		s.settle()
	}
}

// RequestEnds notes that the request has come to its end.
func (s *Stream) RequestEnds() { s.complete = true }

// aborts reports whether the response may be what Envoy says to a client that did not finish its request, or that chose for
// how long the upstream may take. That the upstream cannot be reached is no client's doing.
//
//go:noinline
func (s *Stream) aborts() bool {
	details, ok := s.f.host.Property("response", "code_details")
	switch {
	case !ok || details == "via_upstream":
		return false
	case s.complete:
		return s.hurried && strings.Contains(details, "timeout")
	default:
		return details != "no_healthy_upstream" && !strings.Contains(details, "connection_failure")
	}
}

func first(headers [][2]string, name string) string {
	if values := lines(headers, name); values != nil {
		return values[0]
	}
	return ""
}

// learn keeps the headers that costs are read from. What is known already stays. Of a response that was cut those that are
// missing are unread: they may have been in its trailers.
//
//go:noinline
func (d *due) learn(headers [][2]string) {
	for _, name := range d.Settlement.Headers() {
		if _, known := d.Header(name); known {
			continue
		}
		text := core.UnreadMark
		if values := lines(headers, core.LowerASCII(name)); values != nil {
			text = strings.Clone(strings.Join(values, ", "))
		} else if !d.cut {
			continue
		}
		d.headers = append(d.headers, wire.Field{Name: name, Text: text})
	}
}

// Listens reports whether the body is to be shown to ResponseBody.
func (s *Stream) Listens() bool { return s.due != nil && s.due.tap != nil && s.due.tap.Readable() }

// ResponseBody reads a piece of the body as it passes. Nothing is held back.
func (s *Stream) ResponseBody(piece []byte, ends bool) {
	defer s.f.guard()
	if s.Listens() {
		_, _ = s.due.tap.Write(piece) // it takes everything
	}
	if ends {
		s.settle()
	}
}

// Awaits reports whether the response's trailers are to be shown to ResponseTrailers.
func (s *Stream) Awaits() bool { return s.due != nil }

// ResponseTrailers ends the response.
func (s *Stream) ResponseTrailers(trailers [][2]string) {
	defer s.f.guard()
	if s.due != nil {
		s.due.learn(trailers)
		s.settle()
	}
}

// settle tells the bridge what the response said, once, if that changes what was charged. A response that never began
// changes nothing.
func (s *Stream) settle() {
	d := s.due
	if d == nil || !s.responded {
		return
	}
	s.due = nil
	for _, path := range d.Paths() {
		if number, ok := d.JSON(path); ok {
			d.numbers = append(d.numbers, wire.Field{Name: path, Text: number})
		}
	}
	checks, unreadable := d.Checks(d)
	if unreadable > 0 {
		s.f.host.Count(CounterUnreadable)
	}
	if len(checks) == 0 {
		s.f.forget(d)
		return
	}
	for i := range checks {
		if h := s.f.leases.hold(&checks[i], false); h != nil && checks[i].Op == core.OpGiveBack {
			h.counter.Forget(false) // what was refused may have room
		}
	}
	s.f.tell(d)
}

// Status implements [core.Answer].
func (d *due) Status() int { return d.status }

// Header implements [core.Answer].
func (d *due) Header(name string) (string, bool) {
	for i := range d.headers {
		if d.headers[i].Name == name {
			return d.headers[i].Text, true
		}
	}
	return "", false
}

// JSON implements [core.Answer].
func (d *due) JSON(path string) (string, bool) {
	var value string
	var ok bool
	unread := d.unread || d.cut
	if d.tap != nil {
		value, ok = d.tap.JSON(path)
		unread = unread || d.tap.Unread()
	}
	if unread {
		return core.UnreadMark + value, true
	}
	return value, ok
}

var _ core.Answer = (*due)(nil)
