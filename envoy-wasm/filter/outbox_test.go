// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"slices"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// nestingHost is a host that resumes and answers requests at the end of a callback, like Envoy. A
// local reply passes through the filter, and further actions run at the end of that callback,
// nested in the reply.
type nestingHost struct {
	*fakeEnvoy
	streams    map[uint32]*Stream
	after      []func()
	depth, max int
}

func (n *nestingHost) later(id uint32) {
	n.after = append(n.after, func() {
		s := n.streams[id]
		if s.Responds() {
			s.ResponseHeaders([][2]string{{":status", "200"}}, true)
		}
		n.runActions()
		s.Done()
	})
}

func (n *nestingHost) Resume(id uint32) { n.resumed = append(n.resumed, id); n.later(id) }

func (n *nestingHost) Respond(id uint32, r Response) { n.fakeEnvoy.Respond(id, r); n.later(id) }

// runActions runs the actions that Envoy runs at the end of a callback.
func (n *nestingHost) runActions() {
	n.depth++
	n.max = max(n.max, n.depth)
	for len(n.after) > 0 {
		next := n.after[0]
		n.after = n.after[1:]
		next()
	}
	n.depth--
}

// request starts a request.
func (n *nestingHost) request(f *Filter, id uint32, path string) {
	n.streams[id] = f.NewStream(id)
	if n.streams[id].RequestHeaders(get(path)) == Continue {
		n.resumed = append(n.resumed, id)
		n.later(id)
	}
	n.runActions()
}

// TestAnswersAreNotWithinEachOther: a thousand requests are answered at once, for example in one
// turn, by one reply, after the bridge died, or at their deadline. Each request is answered once,
// with little nesting, because the stack of a virtual machine is small.
func TestAnswersAreNotWithinEachOther(t *testing.T) {
	const many = 1000
	for name, end := range map[string]func(n *nestingHost, f *Filter){
		"a reply": func(n *nestingHost, f *Filter) {
			for len(n.calls) > 0 {
				c, _, items := n.check()
				c.answer(replyWith(slices.Repeat([]wire.Answer{denialOver()}, len(items))...))
				n.runActions()
			}
		},
		"no bridge": func(n *nestingHost, f *Filter) {
			for len(n.calls) > 0 {
				c, _, _ := n.check()
				n.refuses = errNo
				c.answer(Reply{})
				n.runActions()
			}
		},
		"too late": func(n *nestingHost, f *Filter) {
			for range f.config.Deadline/tickFast + 1 {
				n.now += tickFast
				f.Tick()
				n.runActions()
			}
			n.calls = nil // these requests are never answered
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := mannersPolicy(t)
			p.OnError = counter.OnErrorDeny
			n := &nestingHost{fakeEnvoy: newEnvoy(t), streams: map[uint32]*Stream{}}
			f := withPolicy(t, n.fakeEnvoy, p)
			f.host = n
			for id := range uint32(3 * many) {
				n.request(f, id, []string{"/never", "/api/x", "/free"}[id%3])
			}
			f.Flush()
			n.runActions()
			for turns := 0; len(f.out.waiting)+len(n.calls)+f.calls.sources.queued > 0; turns++ {
				f.Flush()
				n.runActions()
				if len(f.out.waiting) == 0 {
					end(n, f)
				}
				if turns > 6*many {
					t.Fatalf("%d are never told", len(f.out.waiting))
				}
			}
			if n.max > outMax+1 {
				t.Errorf("%d answers within each other", n.max)
			}
			if len(n.responses) != 2*many || len(n.resumed) != many || f.calls.held != 0 {
				t.Errorf("%d answered, %d resumed, %d bytes held", len(n.responses), len(n.resumed), f.calls.held)
			}
		})
	}
}

// TestGoneRequestsGetNoAnswer: requests that have ended get no answer. If no wake is available, the
// next tick delivers the answers.
func TestGoneRequestsGetNoAnswer(t *testing.T) {
	e := newEnvoy(t)
	f := withFullTurn(t, e, mannersPolicy(t))
	var streams []*Stream
	for id := range uint32(outMax + 3) {
		s := f.NewStream(id)
		s.RequestHeaders(get("/free"))
		streams = append(streams, s)
	}
	e.sleeps = errNo
	f.Flush()
	if len(e.resumed) != outMax || e.every != TickMillis {
		t.Errorf("%d resumed, a tick every %d ms", len(e.resumed), e.every)
	}
	streams[outMax+1].Done()
	f.Tick()
	if !slices.Equal(e.resumed[outMax:], []uint32{outMax, outMax + 2}) || len(f.out.waiting) != 0 {
		t.Errorf("resumed %v", e.resumed[outMax:])
	}
}

// eagerHost is a host that ends the turn at once.
type eagerHost struct {
	*fakeEnvoy
	f *Filter
}

func (e *eagerHost) Wake() error {
	err := e.fakeEnvoy.Wake()
	e.f.Flush()
	return err
}

// TestAnEagerHost tests a host that ends a turn within the call that requests it.
func TestAnEagerHost(t *testing.T) {
	e := newEnvoy(t)
	f := withFullTurn(t, e, mannersPolicy(t))
	f.host = &eagerHost{e, f}
	for id := range uint32(3) {
		f.NewStream(id).RequestHeaders(get("/free"))
	}
	if !slices.Equal(e.resumed, []uint32{0, 1, 2}) || f.calls.woken || len(f.arrivals.waiting) != 0 {
		t.Errorf("resumed %v, woken %v", e.resumed, f.calls.woken)
	}
}
