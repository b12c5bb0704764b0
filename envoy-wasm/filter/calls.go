// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/wire"
)

// checkPath is where the bridge decides.
const checkPath = "/v1/check"

// When the last calls failed none is made for a while, but for one without questions that finds out whether the bridge is
// back: requests then cost a hung bridge nothing.
const (
	failuresMax = 3
	openFor     = 500 * core.Millisecond
)

// Bounds of what waits.
const (
	batchItemsMax = wire.ItemsMax
	batchBytesMax = 256 << 10 // of a call with several questions; a longer question has a call for itself
	waitingMax    = 16384     // requests of one worker; one more is decided by on_error
	heldBytesMax  = 128 << 20 // headers of requests that wait or stand in line; likewise
	settlingMax   = 16384     // one more is not told of, so what was reserved stands as the charge
)

// calls are those of one worker: one is under way, and what arrives meanwhile rides in the next.
type calls struct {
	waiting  []*Stream   // have not been asked about yet
	settling []*due      // responses to be told of
	riding   []rider     // of the call under way, in its order
	spare    []rider     // for the next one
	standing []*Stream   // have calls of their own
	sent     core.Micros // when the call under way was, on the clock of leases
	held     int         // bytes of headers of those that wait or stand in line
	under    bool
	leasing  bool // the call under way is about leases
	woken    bool
	failures int
	openTill core.Micros
	probing  bool
	body     []byte
	answer   wire.Answer
}

// rider is an item of a call.
type rider struct {
	stream *Stream  // that was asked about; nil for none
	wants  []wanted // what is asked for besides, or in advance
	extra  bool     // it is one
	checks int      // of the stream
}

// keep counts the bytes that a waiting request holds.
func (c *calls) keep(a *asking) {
	c.held += a.attrs.bytes - a.held
	a.held = a.attrs.bytes
}

// enqueue makes a request wait for the bridge. It reports false if it should not.
func (f *Filter) enqueue(s *Stream) bool {
	c := &f.calls
	switch {
	case c.failures >= failuresMax:
		f.host.Count(CounterOpen)
		return false
	case len(c.waiting) >= waitingMax || c.held-s.asking.held+s.asking.attrs.bytes > heldBytesMax:
		f.host.Count(CounterFull)
		return false
	}
	c.keep(s.asking) // before it is queued, which may decide it
	if !s.queue() {
		f.host.Count(CounterUnreachable)
		return false
	}
	return true
}

// queue has a request ride in the next call. It reports false if nobody would make that.
//
//go:noinline
func (s *Stream) queue() bool {
	c := &s.f.calls
	c.waiting = append(c.waiting, s)
	if !s.f.summon() {
		c.waiting = c.waiting[:len(c.waiting)-1]
		return false
	}
	s.f.hurry() // should the end of the turn not be told of
	return true
}

// tell tells the bridge of a response, with the next call.
func (f *Filter) tell(d *due) {
	c := &f.calls
	if len(c.settling) >= settlingMax {
		f.host.Count(CounterUnsettled)
		f.forget(d)
		return
	}
	c.settling = append(c.settling, d)
	f.summon() // without it, with the next call
}

// summon makes the host call Flush soon, unless a call is under way, whose end does it as well. Something waits already, so
// the host may do it at once.
func (f *Filter) summon() bool { return f.calls.under || f.summonAgain() }

// Flush ends a turn: it decides those who arrived in it, and sends what waits, unless a call is under way.
func (f *Filter) Flush() {
	defer f.guard()
	f.tellOfMore()
	f.judgeArrivals() // before woken is false: what it has ask needs no other call of this
	f.calls.woken = false
	if f.send(); len(f.out.waiting) > 0 {
		f.summonAgain()
	}
}

// send makes the next call of what waits: of the requests of one version of the policy, and of responses. Where a call
// cannot be made, its riders are decided at once, and those who came after them have the next.
func (f *Filter) send() {
	c := &f.calls
	for !c.under && len(c.waiting)+len(c.settling)+len(f.leases.extras) > 0 {
		sent := f.elapsed()
		c.riding, c.spare, c.leasing = c.spare[:0], nil, false
		f.board()
		if len(c.riding) == 0 {
			c.spare = c.riding
			continue // all of them were gone
		}
		c.under, c.sent = true, sent
		f.hurry()
		if f.dispatch(f.checkCall(c.body, millis(f.config.Deadline)), f.answered) != nil {
			c.under = false
			f.note(Reply{}, false)
			f.deal(f.riders(), Reply{}, c.sent)
		}
	}
}

// board puts into a call what waits, and takes it from the lists.
func (f *Filter) board() {
	c := &f.calls
	taken := 0
	for taken < len(c.waiting) && c.waiting[taken].state != waiting {
		taken++ // gone, or its time is over
	}
	version := ""
	switch {
	case taken < len(c.waiting):
		version = c.waiting[taken].asking.policy.version
	case len(f.leases.extras) > 0:
		version = f.leases.extras[0].version
	}
	c.body = wire.AppendCall(c.body[:0], version)
	if taken < len(c.waiting) { // before what no request waits for, which leaves a long question no room
		c.waiting[taken].ride()
		taken++
	}
	f.boardExtras(version)
	for taken < len(c.waiting) && c.fits(c.waiting[taken], version) {
		c.waiting[taken].ride()
		taken++
	}
	rest := copy(c.waiting, c.waiting[taken:])
	clear(c.waiting[rest:])
	c.waiting = c.waiting[:rest]
	f.boardSettling()
}

// fits reports whether a request may ride with those that do already.
func (c *calls) fits(s *Stream, version string) bool {
	switch {
	case s.state != waiting || len(c.riding) == 0:
		return true
	case s.asking.policy.version != version:
		return false
	default:
		return c.room(s.asking.attrs.size())
	}
}

// room reports whether so many bytes may ride with what does already.
func (c *calls) room(bytes int) bool {
	return len(c.riding) == 0 || len(c.riding) < batchItemsMax && len(c.body)+bytes <= batchBytesMax
}

// ride puts the request's question into the call, unless it waits no longer.
func (s *Stream) ride() {
	c := &s.f.calls
	if s.state != waiting {
		return
	}
	whole, length := false, len(c.body)
	defer func() {
		if !whole {
			c.body = c.body[:length]
		}
	}()
	defer s.rescue()
	a := s.asking
	kind, units := wire.KindAsk, s.f.units(a)
	if len(units) > 0 {
		kind = wire.KindLease
		c.lease()
	}
	c.body = wire.AppendAsk(c.body, kind, &a.attrs.ask, units)
	whole = true
	c.riding = append(c.riding, rider{stream: s, wants: a.wants, checks: len(a.plan.Checks())})
	a.wants = nil
}

// lease makes the call one about leases.
func (c *calls) lease() {
	c.leasing = true
	wire.Leasing(c.body)
}

func (f *Filter) boardSettling() {
	c := &f.calls
	settled := 0
	for _, d := range c.settling {
		if len(c.riding) >= batchItemsMax || len(c.riding) > 0 && len(c.body) > batchBytesMax {
			break
		}
		settled++
		c.body = wire.AppendSettle(c.body, &wire.Settle{Receipt: d.receipt, Status: d.status, Headers: d.headers, Numbers: d.numbers})
		c.riding = append(c.riding, rider{})
		f.forget(d)
	}
	rest := copy(c.settling, c.settling[settled:])
	clear(c.settling[rest:])
	c.settling = c.settling[:rest]
}

// riders takes the riders of the call that is over.
func (f *Filter) riders() []rider {
	c := &f.calls
	riding := c.riding
	c.riding = nil
	return riding
}

// answered gives each rider its answer, after the next call was sent: that is then under way while this worker decides.
func (f *Filter) answered(r Reply) {
	defer f.guard()
	f.tellOfMore()
	riding, sent := f.riders(), f.calls.sent
	f.calls.under = false
	defer f.deal(riding, r, sent)
	if f.note(r, f.calls.leasing) {
		f.again(riding)
	}
	f.send()
}

// again has requests ride once more whose call was about leases, which its bridge does not read: then it has charged nothing.
// During an upgrade there may be bridges of both kinds behind one address.
func (f *Filter) again(riding []rider) {
	var waits []*Stream
	for i := range riding {
		if r := &riding[i]; r.stream != nil {
			waits = append(waits, r.stream)
			r.stream, r.extra = nil, true
		}
	}
	f.calls.waiting = append(waits, f.calls.waiting...)
}

// deal gives each rider its answer. Should there be a panic in between, those behind it have none.
func (f *Filter) deal(riding []rider, r Reply, sent core.Micros) {
	c := &f.calls
	dealt := 0
	defer func() {
		for ; dealt < len(riding); dealt++ {
			f.deliver(&riding[dealt], nil, whyOf(r), sent)
		}
		clear(riding)
		c.spare = riding[:0]
	}()
	reply, err := replyOf(r)
	for dealt < len(riding) {
		var got *wire.Answer
		if err == nil {
			var ok bool
			if ok, err = reply.Next(&c.answer); ok && err == nil {
				got = &c.answer
			}
		}
		dealt++
		f.deliver(&riding[dealt-1], got, whyOf(r), sent)
	}
}

// deliver gives a rider its answer: nil if there is none, and why.
func (f *Filter) deliver(r *rider, got *wire.Answer, why Counter, sent core.Micros) {
	s, ok := r.stream, got != nil && got.Status == wire.StatusOK
	if got != nil && !ok {
		why = whyNot(got.Status)
	}
	defer f.guard()
	f.lease(r, got, ok, sent)
	switch {
	case s == nil && !r.extra && !ok:
		f.host.Count(CounterUnsettled)
	case s == nil || s.state != waiting:
	case got != nil:
		s.take(got)
	default:
		s.lose(why)
	}
}

// lose decides a rider that has no answer.
func (s *Stream) lose(why Counter) {
	defer s.rescue()
	s.degrade(why)
}

// whyNot says why an answer says nothing.
func whyNot(status wire.Status) Counter {
	switch status {
	case wire.StatusUnavailable, wire.StatusBusy:
		return CounterUnavailable
	case wire.StatusUnknown:
		return CounterUnknown
	default:
		return CounterUnanswered
	}
}

// whyOf says why a reply holds no answer.
//
//go:noinline
func whyOf(r Reply) Counter {
	if r.Status == 0 || r.Status == 503 || r.Status == 504 {
		return CounterUnreachable
	}
	return CounterUnanswered
}

//go:noinline
func replyOf(r Reply) (*wire.ReplyReader, error) {
	if r.Status != 200 {
		return nil, wire.ErrMalformed
	}
	return wire.ReadReply(r.Body)
}

// note counts failed calls. It reports true for one that was about leases and must be made again without them.
func (f *Filter) note(r Reply, leasing bool) (again bool) {
	c := &f.calls
	l := &f.leases
	switch {
	case r.Status == 200:
		l.reads, l.exact = r.Leases != "" && f.elapsed() >= l.shunned, r.Leases == wire.LeasingExact
		c.failures = 0
		return false
	case r.Status == 400 && leasing: // it is another one than the one that said that it does
		l.reads, l.shunned = false, f.elapsed()+shunnedFor
		return true
	}
	if c.failures++; c.failures >= failuresMax {
		c.openTill = f.host.Now() + openFor
	}
	return false
}

// expire ends the waits whose deadline is over, and looks whether the bridge is back.
func (f *Filter) expire() {
	defer f.guard()
	c := &f.calls
	f.judgeArrivals()
	now := f.host.Now()
	for _, s := range c.waiting {
		if s.state == waiting && now >= s.deadline {
			s.expire()
		}
	}
	for i := range c.riding {
		if s := c.riding[i].stream; s != nil && s.state == waiting && now >= s.deadline {
			s.expire()
		}
	}
	f.expireStanding(now)
	f.send() // what no wake was to be had for
	if c.failures < failuresMax || c.probing || ahead(c.openTill, now, openFor) {
		return
	}
	c.probing = f.dispatch(f.checkCall(wire.AppendCall(nil, ""), millis(f.config.Deadline)), func(r Reply) {
		defer f.guard()
		c.probing = false
		f.note(r, false)
	}) == nil
	if !c.probing {
		c.openTill = now + openFor
	}
}

// ahead reports whether an instant is yet to come. One that is further ahead than it can be is over: the clock went back.
func ahead(instant, now, most core.Micros) bool { return now < instant && instant-now <= most }

// expire decides a request whose time is over.
//
//go:noinline
func (s *Stream) expire() { s.lose(CounterTimeout) }

// checkCall is a call for decisions.
//
//go:noinline
func (f *Filter) checkCall(body []byte, timeoutMillis uint32) Call {
	call := f.call("POST", checkPath, body, timeoutMillis)
	call.Header = append(call.Header, [2]string{"content-type", wire.ContentType})
	return call
}

//go:noinline
func millis(m core.Micros) uint32 { return uint32((m + core.Millisecond - 1) / core.Millisecond) }
