// SPDX-License-Identifier: Apache-2.0

package filter

// What a callback asks Envoy to do with requests is done when the callback is over: one request after the other, but for those that
// Envoy answers on the spot, as it does with refusals. Such an answer passes the filter, and when that callback is over Envoy does
// what waits next, within it. So a callback that let a thousand requests go would have a thousand answers within each other on one
// stack, which ends the virtual machine or Envoy. Hence each lets go of a few, and the next one comes at once.

// outMax is how many requests one callback lets go of.
const outMax = 32

// outgoing is a request that was decided and that Envoy has not been told of.
type outgoing struct {
	stream   *Stream
	response *Response // our own; nil to go on
}

// outbox is what Envoy has not been told yet.
type outbox struct {
	waiting []outgoing
	told    int // by the callback at present
}

// letGo has a request go on, or be answered.
func (f *Filter) letGo(o outgoing) {
	if f.out.told < outMax && len(f.out.waiting) == 0 {
		f.tellOf(o)
		return
	}
	f.out.waiting = append(f.out.waiting, o)
	f.summonAgain()
}

// tellOf tells Envoy of a request, unless it is gone.
func (f *Filter) tellOf(o outgoing) {
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

// tellOfMore begins a callback that may let go of many: those come first that have waited.
func (f *Filter) tellOfMore() {
	o := &f.out
	o.told = 0
	for i := 0; i < len(o.waiting); i++ {
		if o.told == outMax {
			rest := copy(o.waiting, o.waiting[i:])
			clear(o.waiting[rest:])
			o.waiting = o.waiting[:rest]
			return
		}
		f.tellOfOne(o.waiting[i])
	}
	clear(o.waiting)
	o.waiting = o.waiting[:0]
}

// tellOfOne keeps a panic of the host to one request.
func (f *Filter) tellOfOne(o outgoing) {
	defer f.guard()
	f.tellOf(o)
}

// summonAgain makes the host call Flush soon, whether or not a call is under way, and reports whether it will. Where it will not, the
// next tick does as well.
//
//go:noinline
func (f *Filter) summonAgain() bool {
	c := &f.calls
	if !c.woken {
		c.woken = true // before the host is asked, who may do it at once
		if !f.wake() {
			c.woken = false
			return false
		}
	}
	return true
}
