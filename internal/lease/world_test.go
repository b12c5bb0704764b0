// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"container/heap"
	"math/rand/v2"

	"github.com/penstock/penstock/core"
)

// world is K nodes and one store, which is core.Decide over one counter, with messages that take their time, get lost or
// come late, and nodes that die. Time is an argument of everything; the seed tells the whole story.
type world struct {
	scene
	seed    uint64
	rng     *rand.Rand  // what happens to messages and nodes; the traffic is the same for every way to serve it
	now     core.Micros // true time, which is the store's clock
	events  eventQueue
	serial  int
	slot    core.Slot
	nodes   []*node
	uses    []use
	figures figures
}

// scene is what is played. Spans are in microseconds.
type scene struct {
	limit    core.Limit
	lower    core.Limit  // the same with smaller numbers: of another edition of the policy, or of another tier
	lowered  float64     // the part of requests that come under it
	period   core.Micros // of a calendar limit, whose days are that short here; otherwise 0
	nodes    int
	traffic  traffic
	lasts    core.Micros
	rtt      core.Micros
	exact    bool        // without leases: every request is a call
	crash    core.Micros // every so often a node dies
	lose     float64     // the part of messages, either way, that get lost
	slow     float64     // the part of replies that take up to slowest longer
	slowest  core.Micros
	refunded float64 // the part of admitted requests that count for nothing after all, as their response says
	crowded  float64 // the part of requests that another limit refuses, in the same call, or after these units were reserved
	drift    float64 // the greatest difference in speed between a node's clock and the store's
	mistake  mistake
	patience core.Micros // after which those that wait for a call make another one; 0: they do not
	deadline core.Micros // after which a call without a reply has failed; 0: one second
}

// begins is the true time at which every scene does: the beginning of a window.
const begins = 1_700_000_000 * core.Second

type figures struct {
	arrived, admitted, denied, failed int64 // units
	decisions, atOnce                 int64 // requests
	calls, givebacks                  int64
	asked                             []int64 // units by node
	got                               []int64
	mostHeld                          int64
	granted, returned                 int64 // units that answers brought, and that were sent back
}

// use is units of the limit, and when they count: at the store's decision for those of the request that asked, as without
// a lease, otherwise when the request goes on.
type use struct {
	at    core.Micros
	units int64
}

type node struct {
	counter Counter
	speed   float64
	origin  core.Micros
	waiting []waiter
	ticking bool
	asked   core.Micros // when its last call went out
	born    int
}

type waiter struct {
	since core.Micros
	cost  int64
	limit *core.Limit
}

func newWorld(s scene, seed uint64) *world {
	w := &world{scene: s, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), now: begins}
	if w.deadline == 0 {
		w.deadline = core.Second
	}
	for range s.nodes {
		w.nodes = append(w.nodes, w.newNode())
	}
	w.figures.asked, w.figures.got = make([]int64, s.nodes), make([]int64, s.nodes)
	return w
}

func (w *world) newNode() *node {
	w.serial++
	return &node{speed: 1 + w.drift*(w.rng.Float64()-0.5), origin: core.Micros(w.rng.Int64N(int64(core.Hour))), born: w.serial}
}

// clock is what the node's own clock shows.
func (w *world) clock(n *node) core.Micros {
	return n.origin + core.Micros(float64(w.now-begins)*n.speed)
}

// play plays the scene to its end and returns what happened.
func (w *world) play() *figures {
	next := w.traffic.start(&w.scene, rand.New(rand.NewPCG(w.seed, 2)))
	var arrive func(node int, cost int64) func()
	schedule := func() {
		if at, node, cost := next(); at < w.lasts {
			w.at(begins+at, arrive(node, cost))
		}
	}
	arrive = func(node int, cost int64) func() {
		return func() {
			w.request(node, cost)
			schedule()
		}
	}
	schedule()
	if w.crash > 0 {
		w.at(begins+w.crash, w.die)
	}
	w.run()
	return &w.figures
}

// run lets everything happen that is scheduled, and what follows from it.
func (w *world) run() {
	for len(w.events) > 0 {
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		e.happens()
	}
}

func (w *world) die() {
	i := w.rng.IntN(len(w.nodes))
	w.figures.decisions += int64(len(w.nodes[i].waiting))
	w.nodes[i] = w.newNode()
	if w.now < begins+w.lasts {
		w.at(w.now+w.crash, w.die)
	}
}

// request lets one arrive.
func (w *world) request(i int, cost int64) {
	n := w.nodes[i]
	w.figures.arrived += cost
	w.figures.asked[i] += cost
	q := waiter{w.now, cost, &w.limit}
	if w.lowered > 0 && w.rng.Float64() < w.lowered {
		q.limit = &w.lower
	}
	if w.exact {
		w.askExactly(i, q)
		return
	}
	v, held := n.counter.Take(w.clock(n), q.limit, cost)
	w.decide(i, q, v, held)
	w.tickSoon(i)
}

// decide carries out a verdict about a request.
func (w *world) decide(i int, q waiter, v Verdict, held Held) {
	n := w.nodes[i]
	switch v {
	case Admit, AdmitAsk:
		if w.crowded > 0 && w.rng.Float64() < w.crowded {
			w.putBackLater(i, q, held)
		} else {
			w.admitted(i, q, w.counts(held), held.Receipt)
		}
		if v == AdmitAsk {
			w.ask(i, waiter{w.now, 0, q.limit})
		}
	case Deny:
		w.denied(q)
	case Wait:
		n.waiting = append(n.waiting, q)
		if w.patience > 0 {
			w.after(w.patience, func() { w.overdue(i, n) })
		}
	case Ask:
		w.ask(i, q)
	}
}

// counts returns when units that were admitted from the node count.
func (w *world) counts(held Held) core.Micros {
	if !held.Leased && w.limit.Algorithm() == core.TokenBucket {
		return held.Receipt // charged for this very request, like those of the one that asked
	}
	return w.now
}

// serve decides about those that waited for a call that has returned.
func (w *world) serve(i int) {
	n := w.nodes[i]
	for len(n.waiting) > 0 {
		q := n.waiting[0]
		v, held := n.counter.Serve(w.clock(n), q.limit, q.cost)
		if v == Wait {
			return
		}
		n.waiting = n.waiting[1:]
		w.decide(i, q, v, held)
	}
}

// overdue has the first of those that wait for a call, if it has done so for long, make another one.
func (w *world) overdue(i int, n *node) {
	if w.nodes[i] != n || len(n.waiting) == 0 {
		return
	}
	if left := n.asked + w.patience - w.now; left > 0 {
		w.after(left, func() { w.overdue(i, n) })
		return
	}
	q := n.waiting[0]
	n.waiting = n.waiting[1:]
	n.counter.Leave(q.cost)
	n.counter.Overdue()
	w.ask(i, q)
	w.serve(i)
	w.tickSoon(i)
}

func (w *world) admitted(i int, q waiter, at, receipt core.Micros) {
	w.decided(q)
	w.figures.admitted += q.cost
	w.figures.got[i] += q.cost
	if w.refunded > 0 && w.rng.Float64() < w.refunded {
		w.refundLater(q, at, receipt)
		return
	}
	w.uses = append(w.uses, use{at, q.cost})
}

// refundLater is a request whose response says that it does not count. Its proxy gives the units back, in a settlement,
// and does not try again.
func (w *world) refundLater(q waiter, at, receipt core.Micros) {
	w.after(w.way()+w.late()+core.Micros(w.rng.Int64N(int64(300*core.Millisecond))), func() {
		if w.lost() {
			w.uses = append(w.uses, use{at, q.cost})
			return
		}
		w.store(core.Check{Limit: q.limit, Op: core.OpGiveBack, Cost: q.cost, Receipt: receipt})
	})
}

func (w *world) denied(q waiter) {
	w.decided(q)
	w.figures.denied += q.cost
}

func (w *world) decided(q waiter) {
	w.figures.decisions++
	if q.since == w.now {
		w.figures.atOnce++
	}
}

// putBackLater is a request under another limit as well, which refuses it after a while.
func (w *world) putBackLater(i int, q waiter, held Held) {
	n := w.nodes[i]
	w.after(core.Micros(w.rng.Int64N(int64(2*w.rtt)+1)), func() {
		if w.nodes[i] == n {
			n.counter.PutBack(w.clock(n), q.cost, held)
			w.denied(q)
			w.tickSoon(i)
		}
	})
}
