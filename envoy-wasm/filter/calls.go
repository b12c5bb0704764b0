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
	waitingMax    = 16384     // requests of one worker, those in line included; one more is refused with 503
	heldBytesMax  = 128 << 20 // headers of requests that wait or stand in line; likewise
	settlingMax   = 16384     // one more is not told of, so what was reserved stands as the charge
)

// calls are those of one worker: one is under way, and what arrives meanwhile rides in the next.
type calls struct {
	waiting  []*Stream   // have not been asked about yet
	settling []*due      // responses to be told of
	flight   *flight     // the call under way; nil for none
	boarding *flight     // the one that is being made
	spare    *flight     // one that is over, for a later one
	standing []*Stream   // have calls of their own
	dealt    core.Micros // when the one was sent whose answers are being given
	held     int         // bytes of headers of those that wait or stand in line
	nodes    int64       // how many count in the bridge's store, as it said last
	woken    bool
	failures int
	openTill core.Micros
	probing  bool
	body     []byte
	answer   wire.Answer
}

// flight is a call that shares its way. When its time is over its riders are decided without it, and the next one is made. Its answer
// may come later: that proves that the bridge is there, and its units are used.
type flight struct {
	riding  []rider
	sent    core.Micros // on the clock of leases
	leasing bool        // it is about leases
	looked  core.Micros // when a tick has looked at it last, likewise
	waited  core.Micros // for how long its answer could have been read
	over    bool        // its riders were decided without it
}

// rider is an item of a call.
type rider struct {
	gate   *gate    // that counts it
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
func (f *Filter) summon() bool { return f.calls.flight != nil || f.summonAgain() }

// Flush ends a turn: it decides those who arrived in it, and sends what waits, unless a call is under way.
func (f *Filter) Flush() {
	defer f.guard()
	f.tellOfMore()
	f.judgeArrivals() // before woken is false: what it has ask needs no other call of this
	f.calls.woken = false
	f.moveLines()
	if f.send(); len(f.out.waiting) > 0 {
		f.summonAgain()
	}
}

// send makes the next call of what waits: of the requests of one version of the policy, and of responses. Where a call
// cannot be made, its riders are decided at once, and those who came after them have the next.
func (f *Filter) send() {
	c := &f.calls
	for c.flight == nil && len(c.waiting)+len(c.settling)+len(f.leases.extras) > 0 {
		next := c.spare
		if c.spare = nil; next == nil {
			next = new(flight)
		}
		now := f.elapsed()
		*next = flight{riding: next.riding[:0], sent: now, looked: now}
		c.boarding = next
		f.board()
		if len(next.riding) == 0 {
			c.spare = next
			continue // all of them were gone
		}
		c.flight = next
		f.hurry()
		if f.dispatch(f.checkCall(c.body, f.callMillis()), func(r Reply) { f.answered(next, r) }) != nil {
			c.flight = nil
			f.note(Reply{}, false)
			f.deal(next, Reply{})
		}
	}
}

// lateMax is how long an answer is waited for when its riders were decided: it may yet say that the bridge is there.
const lateMax = core.Second

//go:noinline
func (f *Filter) callMillis() uint32 { return millis(f.config.Deadline + lateMax) }

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
	case s.state != waiting || len(c.boarding.riding) == 0:
		return true
	case s.asking.policy.version != version:
		return false
	default:
		return c.room(s.asking.attrs.size())
	}
}

// room reports whether so many bytes may ride with what does already.
func (c *calls) room(bytes int) bool {
	riding := len(c.boarding.riding)
	return riding == 0 || riding < batchItemsMax && len(c.body)+bytes <= batchBytesMax
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
	c.boarding.riding = append(c.boarding.riding, rider{stream: s, gate: s.gate, wants: a.wants, checks: len(a.plan.Checks())})
	a.wants, s.gate = nil, nil
}

// lease makes the call one about leases.
func (c *calls) lease() {
	c.boarding.leasing = true
	wire.Leasing(c.body)
}

func (f *Filter) boardSettling() {
	c := &f.calls
	settled := 0
	for _, d := range c.settling {
		if riding := len(c.boarding.riding); riding >= batchItemsMax || riding > 0 && len(c.body) > batchBytesMax {
			break
		}
		settled++
		c.body = wire.AppendSettle(c.body, &wire.Settle{Receipt: d.receipt, Status: d.status, Headers: d.headers, Numbers: d.numbers})
		c.boarding.riding = append(c.boarding.riding, rider{})
		f.forget(d)
	}
	rest := copy(c.settling, c.settling[settled:])
	clear(c.settling[rest:])
	c.settling = c.settling[:rest]
}

// answered gives each rider its answer, after the next call was sent: that is then under way while this worker decides.
func (f *Filter) answered(fl *flight, r Reply) {
	defer f.guard()
	f.tellOfMore()
	if f.calls.flight == fl {
		f.calls.flight = nil
	}
	defer f.deal(fl, r)
	switch {
	case fl.over && r.Status != 200: // it was counted as failed before
	case fl.over:
		f.countLate(fl)
		f.note(r, false)
	case f.note(r, fl.leasing):
		f.again(fl.riding)
	}
	f.send()
}

// countLate counts the requests that were decided without an answer which came all the same.
func (f *Filter) countLate(fl *flight) {
	for i := range fl.riding {
		if fl.riding[i].stream != nil {
			f.host.Count(CounterLate)
		}
	}
}

// giveUp decides the riders of the call under way without its answer.
func (f *Filter) giveUp() {
	c := &f.calls
	fl := c.flight
	c.flight, fl.over = nil, true
	f.failed()
	for i := range fl.riding {
		r := &fl.riding[i]
		if r.stream != nil && r.stream.state == waiting {
			r.stream.lose(CounterTimeout)
		}
		f.leave(r.gate)
		r.gate = nil
	}
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
func (f *Filter) deal(fl *flight, r Reply) {
	c := &f.calls
	riding, dealt := fl.riding, 0
	c.dealt = fl.sent
	defer func() {
		for ; dealt < len(riding); dealt++ {
			f.deliver(&riding[dealt], nil, whyOf(r), fl.sent)
		}
		clear(riding)
		c.spare = fl
		f.moveLines()
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
		f.deliver(&riding[dealt-1], got, whyOf(r), fl.sent)
	}
}

// deliver gives a rider its answer: nil if there is none, and why.
func (f *Filter) deliver(r *rider, got *wire.Answer, why Counter, sent core.Micros) {
	s, ok := r.stream, got != nil && got.Status == wire.StatusOK
	if got != nil && !ok {
		why = whyNot(got.Status)
	}
	defer f.guard()
	defer f.leave(r.gate)
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
	case wire.StatusUnavailable:
		return CounterUnavailable
	case wire.StatusBusy:
		return CounterBusy
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
	switch {
	case r.busy():
		return CounterBusy
	case r.Status == 0 || r.Status == 503 || r.Status == 504:
		return CounterUnreachable
	}
	return CounterUnanswered
}

// busy reports whether a bridge has answered that it has too much to do: Envoy's own 503 does not say what the bridge reads.
func (r *Reply) busy() bool { return r.Status == 503 && r.Leases != "" }

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
		c.failures, c.nodes = 0, r.Nodes
		return false
	case r.busy():
		c.failures = 0
		return false
	case r.Status == 400 && leasing: // it is another one than the one that said that it does
		l.reads, l.shunned = false, f.elapsed()+shunnedFor
		return true
	}
	f.failed()
	return false
}

// failed counts a call that has failed.
//
//go:noinline
func (f *Filter) failed() {
	c := &f.calls
	if c.failures++; c.failures >= failuresMax {
		c.openTill = f.host.Now() + openFor
	}
}

// expire ends the waits whose deadline is over, and looks whether the bridge is back.
func (f *Filter) expire() {
	defer f.guard()
	c := &f.calls
	f.judgeArrivals()
	f.lookAtCall()
	now := f.host.Now()
	for _, s := range c.waiting {
		if s.state == waiting && s.late(now) {
			s.lose(c.whyLate())
		}
	}
	f.moveLines()
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

// lookAtCall ends the wait for the call under way if its time is over. From one tick to the next no more counts than there should be
// between them: an Envoy that comes late to its ticks comes late to the answer as well, and the bridge cannot help that.
func (f *Filter) lookAtCall() {
	fl := f.calls.flight
	if fl == nil {
		return
	}
	now, deadline := f.elapsed(), f.config.Deadline
	fl.waited += min(now-fl.looked, tickFast)
	fl.looked = now
	if fl.waited >= deadline || now-fl.sent >= deadline+lateMax {
		f.giveUp()
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
