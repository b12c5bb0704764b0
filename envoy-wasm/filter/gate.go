// SPDX-License-Identifier: Apache-2.0

package filter

import "github.com/penstock/penstock/core"

// Requests for one counter are answered from few calls. Of a request's checks the narrowest counts: while as many requests for its
// counter are being asked about as may pass, and one more, the others wait in a line of that counter. A refusal is held against all
// of them that cost as much; otherwise the next ones are asked about. So a client that sends ten thousand requests at once costs the
// bridge, and those who are asked about in the same calls, a few questions.

const (
	// waveMax is how many requests for one counter are asked about at a time: a quarter of a call, so that others ride in it too.
	waveMax = 64
	// lineMax is how many requests wait for one counter, of waitingMax in all. One more is refused with 429.
	lineMax = waitingMax * 3 / 4
)

// gate is what is known of a counter while requests for it are being asked about. There is none otherwise.
type gate struct {
	key         string
	room        int64   // units, as the last answer said; at first the limit's capacity
	under       int     // requests that are being asked about
	length      int     // of the line
	first, last *Stream // the line
	following   *gate   // of those with a line
	lining      bool    // it is one of these
}

// gates are those of one worker.
type gates struct {
	byKey       map[string]*gate
	first, last *gate // with a line, or with one a moment ago
	lines       int   // how many these are
	lined       int   // requests in all lines
}

// of returns the gate of the request's narrowest counter, which is opened if there is none.
//
//go:noinline
func (l *gates) of(a *asking) *gate {
	c := &a.plan.Checks()[a.narrow]
	g := l.byKey[string(c.Key)]
	if g == nil {
		if l.byKey == nil {
			l.byKey = make(map[string]*gate)
		}
		g = &gate{key: string(c.Key), room: c.Limit.Capacity()}
		l.byKey[g.key] = g
	}
	return g
}

// shut forgets a gate if nobody is at it.
//
//go:noinline
func (l *gates) shut(g *gate) {
	if g.under == 0 && !g.lining {
		delete(l.byKey, g.key)
	}
}

// follow has a gate with a line looked at after all others with one.
//
//go:noinline
func (l *gates) follow(g *gate) {
	g.lining, g.following = true, nil
	if l.first == nil {
		l.first = g
	} else {
		l.last.following = g
	}
	l.last = g
	l.lines++
}

// wave is how many such requests are asked about at a time. One whose credential is not known may be another client's.
//
//go:noinline
func (g *gate) wave(a *asking) int {
	if !a.alike || a.unsure {
		return waveMax
	}
	return int(min(g.room/a.plan.Checks()[a.narrow].Cost+1, waveMax))
}

// line has a request wait while enough like it are being asked about, or counts it among these. from is the gate whose line it
// comes from, nil for none. full says that it can do neither.
func (f *Filter) line(s *Stream, from *gate) (waits, full bool) {
	l, a := &f.gates, s.asking
	if a.narrow < 0 {
		return false, false
	}
	g := l.of(a)
	switch {
	case (g.first == nil || g == from) && g.under < g.wave(a):
		g.under++
		s.gate = g
		return false, false
	case g.length >= lineMax:
		return false, true
	}
	s.state, s.next = lined, nil
	if g.first == nil {
		g.first = s
	} else {
		g.last.next = s
	}
	g.last = s
	g.length++
	l.lined++
	if !g.lining {
		l.follow(g)
	}
	f.hurry()
	return true, false
}

// leave ends that a request is asked about.
func (f *Filter) leave(g *gate) {
	if g != nil {
		g.under--
		f.gates.shut(g)
	}
}

// learn takes what an answer says of the room that a counter has.
func (g *gate) learn(a *asking, results []core.Result) {
	if a.narrow < 0 || string(a.plan.Checks()[a.narrow].Key) != g.key {
		return
	}
	if r := &results[a.narrow]; !r.Local && !r.Overflow {
		g.room = r.Remaining
	}
}

// moveLines has requests in line go on, of each gate in turn, as many as one callback lets go of.
func (f *Filter) moveLines() {
	l, moved := &f.gates, 0
	if l.first == nil {
		return
	}
	now := f.host.Now()
	for idle := 0; idle < l.lines && moved < outMax && len(f.out.waiting) == 0; idle++ {
		g := l.first
		l.first = g.following
		l.lines--
		if g.goesOn(now) {
			f.moveOne(g)
			idle = -1
			moved++
		}
		if g.first != nil {
			l.follow(g)
			continue
		}
		g.lining = false
		l.shut(g)
	}
	if moved > 0 && l.first != nil {
		f.summonAgain()
	}
}

// goesOn reports whether there is a first in line that waits no longer.
func (g *gate) goesOn(now core.Micros) bool {
	s := g.first
	return s != nil && (s.state != lined || g.under < g.wave(s.asking) || s.late(now))
}

// moveOne has the first in line go on.
//
//go:noinline
func (f *Filter) moveOne(g *gate) {
	s := g.first
	g.first, s.next = s.next, nil
	g.length--
	f.gates.lined--
	if s.state == lined { // or it is gone
		s.state = fresh
		s.advance(g)
	}
}

// advance decides a request that has waited, or has it wait for the bridge. from is the gate whose line it comes from, if it does.
//
//go:noinline
func (s *Stream) advance(from *gate) {
	defer s.rescue()
	var action Action
	if from == nil || s.asking.unsure {
		action = s.judge(from)
	} else {
		action = s.proceed(from)
	}
	if action == Continue {
		s.f.letGo(outgoing{stream: s})
	}
}

// waitedMin is how long a request waits at most for other calls than its own, with a deadline that is not longer. Then it is
// refused: the bridge is there, and has too much to do.
const waitedMin = core.Second

// late reports whether a request is decided though others like it are being asked about, or calls are: it has waited for as long as it
// may, or calls fail and its own time is over.
//
//go:noinline
func (s *Stream) late(now core.Micros) bool {
	c, most := &s.f.calls, s.f.config.Deadline
	if c.failures < 2 {
		most = max(waitedMin, 3*most)
	}
	return c.failures >= failuresMax || !ahead(s.asking.attrs.view.At+most, now, most)
}

// whyLate says why such a request is decided.
//
//go:noinline
func (c *calls) whyLate() Counter {
	if c.failures > 0 {
		return CounterTimeout
	}
	return CounterFull
}
