// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"strings"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/core/slim"
	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/usage"
)

// due is the settlement of a response and the data known for it. It is reused.
type due struct {
	core.Settlement
	receipt string
	status  int
	headers []wire.Field // headers read so far that can contain costs
	tap     *usage.Tap   // reads the body; nil if no cost is in it
	awaits  bool         // a header can still come in the trailers
	unread  bool         // the body contains a cost but cannot be read
	cut     bool         // the response was truncated
	numbers []wire.Field
}

// dueMax is the greatest number of dues that are kept for reuse.
const dueMax = 256

// expect prepares the settlement of the response, if the bridge sent a receipt for it.
func (s *Stream) expect(d *core.Decision, receipt string) {
	f := s.f
	if receipt == "" || d.Denied() {
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
	next.receipt = strings.Clone(receipt) // copied, because it is a part of the whole reply
	s.due = next
}

// forget frees a due for reuse.
//
//go:noinline
func (f *Filter) forget(d *due) {
	if len(f.dues) < dueMax {
		d.receipt, d.status, d.tap, d.awaits, d.unread, d.cut = "", 0, nil, false, false, false
		d.headers, d.numbers = d.headers[:0], d.numbers[:0]
		f.dues = append(f.dues, d)
	}
}

// Responds notes that a response has begun, and reports whether ResponseHeaders must see its
// headers. Envoy does not show interim responses.
func (s *Stream) Responds() bool {
	if s.answered {
		return s.grpcType != ""
	}
	if s.state != decided || s.due == nil && s.fields.Empty() {
		s.responded = true // no later stream continues this one
		return false
	}
	return true
}

// ResponseHeaders returns the fields to set in the response; each replaces all lines of that
// header. ends reports that there is no body. Responses made by Envoy itself are handled like any
// other; the filter's own responses are left unchanged.
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
		return nil // an interim response: the final one follows
	}
	s.responded = true
	if s.due != nil {
		s.begin(status, headers, ends)
	}
	return response.Merge(&s.fields, s.remaining, headers)
}

//
//go:noinline
func statusOf(headers [][2]string) int {
	for i := range headers {
		if headers[i][0] == ":status" {
			status, _ := slim.ParseWhole(headers[i][1]) // a status that is not a number counts as 0
			return int(status)
		}
	}
	return 0
}

// begin reads costs from the beginning of the response. If status and headers are enough, it
// settles at once, because a stream can last for hours.
func (s *Stream) begin(status int, headers [][2]string, ends bool) {
	d := s.due
	if s.aborts() {
		s.abandon()
		return
	}
	d.status = status
	d.learn(headers)
	bodied := !ends && !s.head && status >= 200 && status != 204 && status != 304
	d.awaits = bodied && response.Lines(headers, "content-length") == nil && d.Awaits(d)
	if !d.awaits {
		if cost, known := d.CostNow(d); known {
			s.fields.Correct(cost)
		}
	}
	if paths := d.Paths(); bodied && len(paths) > 0 {
		tap := usage.New(paths, first(headers, "content-type"), first(headers, "content-encoding"), nil)
		if d.unread = tap.Unread(); tap.Readable() {
			d.tap = tap
		}
	}
	if usage.Withheld(s.head, status, response.Lines(headers, "content-range") != nil) {
		d.unread = true // the failure does not concern a cost in a header
	}
	if d.tap == nil && !d.awaits {
		s.settle()
	}
}

// RequestEnds notes the end of the request.
func (s *Stream) RequestEnds() { s.complete = true }

// aborts reports whether Envoy might have made the response because the client did not finish its
// request or chose the upstream timeout. A client cannot make the upstream unreachable.
//
//go:noinline
func (s *Stream) aborts() bool {
	details, ok := s.f.host.Property("response", "code_details")
	switch {
	case !ok || details == "via_upstream":
		return false
	case s.complete:
		return s.hurried && (strings.Contains(details, "timeout") || strings.Contains(details, "duration"))
	default:
		return details != "no_healthy_upstream" && !strings.Contains(details, "connection_failure")
	}
}

func first(headers [][2]string, name string) string {
	if values := response.Lines(headers, name); values != nil {
		return values[0]
	}
	return ""
}

// learn stores headers that can contain costs, unless they are stored already. Headers that are
// missing from a truncated response count as unread, because they might have been in its trailers.
//
//go:noinline
func (d *due) learn(headers [][2]string) {
	for _, name := range d.Settlement.Headers() {
		if _, known := d.Header(name); known {
			continue
		}
		text := core.UnreadMark
		if values := response.Lines(headers, slim.LowerASCII(name)); values != nil {
			text = strings.Clone(strings.Join(values, ", "))
		} else if !d.cut {
			continue
		}
		d.headers = append(d.headers, wire.Field{Name: name, Text: text})
	}
}

// Listens reports whether ResponseBody must see the body.
func (s *Stream) Listens() bool { return s.due != nil && s.due.tap != nil && s.due.tap.Readable() }

// ResponseBody reads a piece of the body, which is not delayed.
func (s *Stream) ResponseBody(piece []byte, ends bool) {
	defer s.f.guard()
	if s.Listens() {
		_, _ = s.due.tap.Write(piece) // it takes everything
	}
	if ends {
		s.settle()
	}
}

// Awaits reports whether ResponseTrailers must see the trailers.
func (s *Stream) Awaits() bool { return s.due != nil }

// ResponseTrailers ends the response.
func (s *Stream) ResponseTrailers(trailers [][2]string) {
	defer s.f.guard()
	if s.due != nil {
		s.due.learn(trailers)
		s.settle()
	}
}

// settle reports the response to the bridge once, if that changes the charge.
func (s *Stream) settle() {
	d := s.due
	if d == nil {
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
		if h := s.f.leases.hold(&checks[i], false); h != nil && checks[i].Op == counter.OpRefund {
			h.counter.Forget(false) // the settlement might have made room
		}
	}
	s.f.enqueueSettlement(d)
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
