// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"container/heap"
	"math/rand/v2"

	"github.com/penstock/penstock/core/counter"
)

// world consists of K nodes and one store, which applies counter.Decide to one counter. Messages
// take time, get lost or arrive late, and nodes die. All code receives the time as an argument, so
// the seed reproduces a run.
type world struct {
	scene
	seed uint64
	// rng is for messages and nodes. The traffic has its own, so it is the same in every mode.
	rng     *rand.Rand
	now     counter.Micros // true time, which is the store's clock
	events  eventQueue
	serial  int
	slot    counter.Slot
	nodes   []*node
	uses    []use
	figures figures
}

// scene describes one simulated run: the limit, the nodes, the traffic and the faults. Durations
// are in microseconds.
type scene struct {
	limit counter.Limit
	// lower is the same limit with smaller numbers, as in another version of the policy or for
	// another tier.
	lower    counter.Limit
	lowered  float64        // the fraction of requests under lower
	period   counter.Micros // the length of a "day" of a calendar limit; otherwise 0
	nodes    int
	traffic  traffic
	lasts    counter.Micros
	rtt      counter.Micros
	exact    bool           // no leases: each request makes a call
	crash    counter.Micros // interval at which a node dies
	lose     float64        // the fraction of messages, in either direction, that are lost
	slow     float64        // the fraction of replies that take longer, by up to slowest
	slowest  counter.Micros
	refunded float64 // the fraction of admitted requests that are refunded because of their response
	// crowded is the fraction of requests that another limit denies, in the same call or after
	// the request's units were reserved.
	crowded  float64
	drift    float64 // the greatest difference in speed between a node's clock and the store's
	mistake  mistake
	patience counter.Micros // time after which a waiting request makes another call; 0 means never
	deadline counter.Micros // time after which a call without a reply has failed; 0 means one second
}

// begins is the true time at which every scene begins, at the start of a window.
const begins = 1_700_000_000 * counter.Second

type figures struct {
	arrived, admitted, denied, failed int64 // units
	decisions, atOnce                 int64 // requests
	calls, givebacks                  int64
	asked                             []int64 // units by node
	got                               []int64
	mostHeld                          int64
	granted, returned                 int64 // units that answers granted, and units that were refunded
}

// A use is a number of units and the instant at which they count. The units of a request that made
// a call count at the store's decision, as without a lease. Other units count when the request
// continues.
type use struct {
	at    counter.Micros
	units int64
}

type node struct {
	counter Counter
	speed   float64
	origin  counter.Micros
	waiting []waiter
	ticking bool
	asked   counter.Micros // when its last call was sent
	born    int
}

type waiter struct {
	since counter.Micros
	cost  int64
	limit *counter.Limit
}

func newWorld(s scene, seed uint64) *world {
	w := &world{scene: s, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), now: begins}
	if w.deadline == 0 {
		w.deadline = counter.Second
	}
	for range s.nodes {
		w.nodes = append(w.nodes, w.newNode())
	}
	w.figures.asked, w.figures.got = make([]int64, s.nodes), make([]int64, s.nodes)
	return w
}

func (w *world) newNode() *node {
	w.serial++
	return &node{speed: 1 + w.drift*(w.rng.Float64()-0.5), origin: counter.Micros(w.rng.Int64N(int64(counter.Hour))), born: w.serial}
}

// world.clock returns the time on the node's own clock.
func (w *world) clock(n *node) counter.Micros {
	return n.origin + counter.Micros(float64(w.now-begins)*n.speed)
}

// world.simulate simulates the scene to its end and returns its figures.
func (w *world) simulate() *figures {
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

// world.run executes all scheduled events, and those that follow from them.
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

// world.request handles the arrival of a request.
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

// world.decide carries out a verdict.
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

// world.counts returns the instant at which the units of an admitted request are counted.
func (w *world) counts(held Held) counter.Micros {
	if !held.Leased && w.limit.Algorithm() == counter.TokenBucket {
		return held.Receipt // a call charged these units for this request, so they count from that charge
	}
	return w.now
}

// world.serve decides the requests that waited for a call that has returned.
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

// world.overdue makes the first waiting request send another call if the current one takes too
// long.
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

func (w *world) admitted(i int, q waiter, at, receipt counter.Micros) {
	w.decided(q)
	w.figures.admitted += q.cost
	w.figures.got[i] += q.cost
	if w.refunded > 0 && w.rng.Float64() < w.refunded {
		w.refundLater(q, at, receipt)
		return
	}
	w.uses = append(w.uses, use{at, q.cost})
}

// refundLater simulates a request that does not count because of its response. Its proxy refunds
// the units once, in a settlement.
func (w *world) refundLater(q waiter, at, receipt counter.Micros) {
	w.after(w.way()+w.late()+counter.Micros(w.rng.Int64N(int64(300*counter.Millisecond))), func() {
		if w.lost() {
			w.uses = append(w.uses, use{at, q.cost})
			return
		}
		w.store(counter.Check{Limit: q.limit, Op: counter.OpRefund, Cost: q.cost, Receipt: receipt})
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

// putBackLater simulates a request that another limit denies after a while.
func (w *world) putBackLater(i int, q waiter, held Held) {
	n := w.nodes[i]
	w.after(counter.Micros(w.rng.Int64N(int64(2*w.rtt)+1)), func() {
		if w.nodes[i] == n {
			n.counter.PutBack(w.clock(n), q.cost, held)
			w.denied(q)
			w.tickSoon(i)
		}
	})
}
