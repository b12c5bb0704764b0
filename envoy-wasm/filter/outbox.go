// SPDX-License-Identifier: Apache-2.0

package filter

// Envoy resumes or answers requests one after the other, after the callback that requested this. A
// local reply, for example to a denied request, passes through the filter in a nested callback. At
// the end of that callback, Envoy handles the next request, nested again. A callback that answered
// a thousand requests would nest a thousand callbacks on one stack, which crashes the virtual
// machine or Envoy. Each callback therefore handles only a few requests, and requests another
// callback at once.

// outMax is the greatest number of requests that one callback resumes or answers.
const outMax = 32

// outgoing is a decided request that Envoy must still resume or answer.
type outgoing struct {
	stream   *Stream
	response *Response // the filter's own response; nil resumes the request
}

// outbox holds the decided requests that Envoy must still resume or answer.
type outbox struct {
	waiting []outgoing
	told    int // the number of requests handled by this callback
}

// letGo resumes or answers a request.
func (f *Filter) letGo(o outgoing) {
	if f.out.told < outMax && len(f.out.waiting) == 0 {
		f.resumeOrAnswer(o)
		return
	}
	f.out.waiting = append(f.out.waiting, o)
	f.requestFlush()
}

// resumeOrAnswer resumes or answers a request, unless the request has ended.
func (f *Filter) resumeOrAnswer(o outgoing) {
	if o.stream.state == gone {
		return
	}
	f.out.told++
	if o.response != nil {
		f.host.Respond(o.stream.id, *o.response)
		return
	}
	f.host.Resume(o.stream.id)
}

// beginResuming begins a callback that may resume many requests. Requests that waited in the outbox
// come first.
func (f *Filter) beginResuming() {
	o := &f.out
	o.told = 0
	for i := 0; i < len(o.waiting); i++ {
		if o.told == outMax {
			rest := copy(o.waiting, o.waiting[i:])
			clear(o.waiting[rest:])
			o.waiting = o.waiting[:rest]
			return
		}
		f.resumeOne(o.waiting[i])
	}
	clear(o.waiting)
	o.waiting = o.waiting[:0]
}

// resumeOne limits a panic of the host to one request.
func (f *Filter) resumeOne(o outgoing) {
	defer f.guard()
	f.resumeOrAnswer(o)
}

// requestFlush makes the host call Flush soon, even while a call is under way, and reports whether
// the host will do so. If the host will not do so, the next tick calls Flush.
//
//go:noinline
func (f *Filter) requestFlush() bool {
	c := &f.calls
	if !c.woken {
		c.woken = true // this is set first, because the host can call Flush at once
		if !f.wake() {
			c.woken = false
			return false
		}
	}
	return true
}
