// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"container/heap"

	"github.com/penstock/penstock/core/counter"
)

// This file contains the messages of a world and its queue of events.

type event struct {
	at      counter.Micros
	serial  int
	happens func()
}

type eventQueue []event

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].serial < q[j].serial
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *eventQueue) Push(e any)   { *q = append(*q, e.(event)) }
func (q *eventQueue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	*q = (*q)[:last]
	return e
}

func (w *world) at(at counter.Micros, happens func()) {
	w.serial++
	heap.Push(&w.events, event{at, w.serial, happens})
}

func (w *world) after(span counter.Micros, happens func()) { w.at(w.now+span, happens) }

// world.way returns the time that a message takes in one direction.
func (w *world) way() counter.Micros {
	return 1 + counter.Micros(float64(w.rtt)/2*(0.9+0.2*w.rng.Float64()))
}

func (w *world) lost() bool { return w.lose > 0 && w.rng.Float64() < w.lose }

// store executes a call.
func (w *world) store(checks ...counter.Check) []counter.Result {
	results := make([]counter.Result, len(checks))
	slots := make([]counter.Slot, len(checks))
	slots[0] = w.slot
	var bounds counter.Bounds
	if w.period > 0 {
		first := w.now - w.now%w.period - w.period
		bounds = counter.Bounds{first, first + w.period, first + 2*w.period, first + 3*w.period}
	}
	for i := range checks {
		checks[i].Key = []byte{byte(i)}
		if w.period > 0 {
			checks[i].Bounds = &bounds
		}
	}
	if err := counter.ValidateChecks(checks, results); err != nil {
		panic(err)
	}
	counter.Decide(w.now, checks, slots, results)
	if slots[0].Write {
		w.slot = slots[0]
	}
	return results
}

// world.ask makes the node send a call for a request, or in advance if the cost is 0.
func (w *world) ask(i int, q waiter) {
	n := w.nodes[i]
	a, ok := n.counter.Ask(w.clock(n), q.limit, q.cost)
	if !ok {
		if q.cost > 0 {
			w.askExactly(i, q)
		}
		return
	}
	check := counter.Check{Limit: q.limit}
	a.Fill(&check)
	w.mistaken(&check)
	n.asked = w.now
	w.figures.calls++
	crowded := w.crowded > 0 && q.cost > 0 && w.rng.Float64() < w.crowded
	if w.lost() {
		w.after(w.deadline, func() { w.answered(i, n, q, &a, nil, 0) })
		return
	}
	w.after(w.way(), func() {
		checks := []counter.Check{check}
		if crowded { // the call has another limit that never admits
			checks = append(checks, counter.Check{Limit: q.limit, Op: counter.OpTake, Cost: q.limit.Capacity() + 1})
		}
		at, results := w.now, w.store(checks...)
		switch reply := w.way() + w.late(); {
		case w.lost() || reply > w.deadline:
			w.after(w.deadline, func() { w.answered(i, n, q, &a, nil, 0) })
		default:
			w.after(reply, func() { w.answered(i, n, q, &a, &results[0], at) })
		}
	})
}

func (w *world) late() counter.Micros {
	if w.slow == 0 || w.rng.Float64() >= w.slow {
		return 0
	}
	return counter.Micros(w.rng.Int64N(int64(w.slowest)))
}

// world.answered ends a call with the result that the store computed at an instant, or
// without a result.
func (w *world) answered(i int, n *node, q waiter, a *Call, r *counter.Result, at counter.Micros) {
	if w.nodes[i] != n {
		return // the node has died
	}
	if r == nil {
		if !n.counter.Overtaken(a) {
			n.counter.Failed(w.clock(n))
		}
		w.mistakenly(n, a)
		w.figures.decisions++
		w.figures.failed += q.cost
	} else {
		w.figures.granted += r.Granted
		w.misdated(n, a)
		n.counter.Granted(w.clock(n), a, r)
		switch {
		case q.cost == 0:
		case r.Granted > 0:
			w.admitted(i, q, at, r.Receipt)
		default:
			w.denied(q)
		}
		w.figures.mostHeld = max(w.figures.mostHeld, w.held())
	}
	w.serve(i)
	w.tickSoon(i)
}

// askExactly sends a request without a lease.
func (w *world) askExactly(i int, q waiter) {
	w.figures.calls++
	w.after(w.way(), func() {
		at, r := w.now, w.store(counter.Check{Limit: q.limit, Op: counter.OpTake, Cost: q.cost})[0]
		w.after(w.way(), func() {
			if w.figures.granted += r.Granted; r.Granted > 0 {
				w.admitted(i, q, at, r.Receipt)
			} else {
				w.denied(q)
			}
		})
	})
}

func (w *world) held() (units int64) {
	for _, n := range w.nodes {
		units += n.counter.Held(w.clock(n))
	}
	return units
}

// tickSoon schedules a tick while the node holds anything.
func (w *world) tickSoon(i int) {
	n := w.nodes[i]
	if n.ticking || !n.counter.Holding() {
		return
	}
	n.ticking = true
	w.after(TickEvery, func() {
		n.ticking = false
		if w.nodes[i] != n {
			return
		}
		for _, b := range n.counter.Tick(w.clock(n), nil) {
			w.giveBack(b)
			w.kept(n, b)
		}
		w.tickSoon(i)
	})
}

func (w *world) giveBack(b Refund) {
	w.figures.givebacks++
	w.figures.returned += b.Units
	check := counter.Check{Limit: &w.limit}
	if w.lowered > 0 && w.rng.IntN(2) == 0 {
		check.Limit = &w.lower // whichever limit the node used last
	}
	b.Fill(&check)
	for range w.timesSent(&check) {
		if !w.lost() {
			w.after(w.way()+w.late(), func() { w.store(check) })
		}
	}
}
