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

// Bounds of what waits. The bridge refuses calls that are larger.
const (
	batchItemsMax = wire.ItemsMax
	batchBytesMax = 256 << 10
	waitingMax    = 16384 // requests of one worker; one more is decided by on_error
	settlingMax   = 16384
)

// calls are those of one worker: one is under way, and what arrives meanwhile rides in the next.
type calls struct {
	waiting  []*Stream     // have not been asked about yet
	settling []wire.Settle // responses to be told of
	riding   []*Stream     // of the call under way, in its order; nil for what needs no answer
	riders   map[uint32]*Stream
	under    bool
	woken    bool
	failures int
	openTill core.Micros
	probing  bool
	body     []byte
	answer   wire.Answer
}

// enqueue makes a request wait for the bridge. It reports false if it should not.
func (f *Filter) enqueue(s *Stream) bool {
	c := &f.calls
	switch {
	case c.failures >= failuresMax:
		f.host.Count(CounterOpen)
		return false
	case len(c.waiting) >= waitingMax:
		f.host.Count(CounterOpen)
		return false
	}
	if !c.under && !c.woken {
		if f.host.Wake() != nil {
			f.host.Count(CounterUnreachable)
			return false
		}
		c.woken = true
	}
	c.waiting = append(c.waiting, s)
	return true
}

// settle tells the bridge of a response, with the next call.
func (f *Filter) settle(s wire.Settle) {
	c := &f.calls
	if len(c.settling) >= settlingMax {
		return // what was reserved stands as the charge
	}
	c.settling = append(c.settling, s)
	if !c.under && !c.woken {
		c.woken = f.host.Wake() == nil
	}
}

// Flush sends what waits, unless a call is under way.
func (f *Filter) Flush() {
	c := &f.calls
	c.woken = false
	if c.under || len(c.waiting)+len(c.settling) == 0 {
		return
	}
	f.send()
}

// send makes the next call of what waits: of the requests of one version of the policy, and of responses.
func (f *Filter) send() {
	c := &f.calls
	c.riding = c.riding[:0]
	version := ""
	if len(c.waiting) > 0 {
		version = c.waiting[0].policy.version
	}
	c.body = wire.AppendCall(c.body[:0], version)
	taken := 0
	var item wire.Item
	for _, s := range c.waiting {
		if len(c.riding) >= batchItemsMax || len(c.body) > batchBytesMax || s.policy.version != version {
			break
		}
		taken++
		if s.state != waiting {
			continue // gone, or its time is over
		}
		item.Kind, item.Ask = wire.KindAsk, s.attrs.ask(s.known)
		c.body = wire.AppendItem(c.body, &item)
		c.riding = append(c.riding, s)
	}
	c.waiting = c.waiting[:copy(c.waiting, c.waiting[taken:])]
	settled := 0
	for _, s := range c.settling {
		if len(c.riding) >= batchItemsMax || len(c.body) > batchBytesMax {
			break
		}
		settled++
		c.body = wire.AppendItem(c.body, &wire.Item{Kind: wire.KindSettle, Settle: s})
		c.riding = append(c.riding, nil)
	}
	c.settling = c.settling[:copy(c.settling, c.settling[settled:])]
	if len(c.riding) == 0 {
		return
	}
	c.under = true
	call := f.call("POST", checkPath, c.body, millis(f.config.Deadline))
	call.Header = append(call.Header, [2]string{"content-type", wire.ContentType})
	if f.host.Call(call, f.answered) != nil {
		f.answered(Reply{})
	}
}

// answered gives each rider its answer, after the next call was sent: that is then under way while this worker decides.
func (f *Filter) answered(r Reply) {
	c := &f.calls
	riding := append([]*Stream(nil), c.riding...)
	c.under = false
	f.note(r)
	if len(c.waiting)+len(c.settling) > 0 {
		f.send()
	}
	reply, err := f.replyOf(r)
	for _, s := range riding {
		ok := false
		if err == nil {
			ok, err = reply.Next(&c.answer)
		}
		switch {
		case s == nil || s.state != waiting:
		case ok:
			s.answered(&c.answer)
		case r.Status == 0 || r.Status == 503 || r.Status == 504:
			s.degrade(CounterUnreachable)
		default:
			s.degrade(CounterUnanswered)
		}
	}
}

func (f *Filter) replyOf(r Reply) (*wire.ReplyReader, error) {
	if r.Status != 200 {
		return nil, errStatus
	}
	return wire.ReadReply(r.Body)
}

var errStatus = wire.ErrMalformed

// note counts failed calls.
func (f *Filter) note(r Reply) {
	c := &f.calls
	if r.Status == 200 {
		c.failures = 0
		return
	}
	if c.failures++; c.failures >= failuresMax {
		c.openTill = f.host.Now() + openFor
	}
}

// expire ends the waits whose deadline is over, and looks whether the bridge is back.
func (f *Filter) expire() {
	c := &f.calls
	now := f.host.Now()
	for _, list := range [...][]*Stream{c.waiting, c.riding} {
		for _, s := range list {
			if s != nil && s.state == waiting && now >= s.deadline {
				s.degrade(CounterTimeout)
			}
		}
	}
	if c.failures < failuresMax || c.probing || now < c.openTill {
		return
	}
	call := f.call("POST", checkPath, wire.AppendCall(nil, ""), millis(f.config.Deadline))
	call.Header = append(call.Header, [2]string{"content-type", wire.ContentType})
	c.probing = f.host.Call(call, func(r Reply) {
		c.probing = false
		f.note(r)
	}) == nil
	if !c.probing {
		c.openTill = now + openFor
	}
}

func millis(m core.Micros) uint32 { return uint32((m + core.Millisecond - 1) / core.Millisecond) }
