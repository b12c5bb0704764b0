// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"math"

	"github.com/penstock/penstock/core/counter"
)

// The parameters. docs/explanation/decisions.md explains how they were chosen.
const (
	// a lease covers the demand of this time, so a hot counter makes ten calls a second
	horizon  = 100 * counter.Millisecond
	extraMin = 2 // fewer units are not worth holding
	ageMin   = 250 * counter.Millisecond
	idle     = 100 * counter.Millisecond
	// the usual gap between two calls to a store that is nearly empty is 1/gapPart of the time in
	// which the limit is refilled, but at least gapMin and at most gapMax
	gapMin   = 5 * counter.Millisecond
	gapMax   = 50 * counter.Millisecond
	gapPart  = 50
	pauseMin = counter.Millisecond
	// the store is nearly empty if it has less than this fraction of what all nodes use in a gap
	dryPart  = 0.3
	scatter  = 0x9e3779b97f4a7c15 // a multiplier from the golden ratio, which scatters instants
	holdPart = 20                 // a node holds at most 1/holdPart of a limit
	// bound of measured round trips: a slow store must not make leases long
	rttMax = counter.Second
	// thousandths of the remaining units that all nodes together may take in advance
	shareMax = 500
	// the longest time that a denial is remembered; a reset or settlement elsewhere takes effect by
	// then
	DenialMax  = counter.Second
	flowFactor = 1.5
)

// rates counts the units that were requested and those that were used, in the current span
// and in the previous one.
type rates struct {
	_ [0]func() // never compared: see slim.Incomparable

	since, span            counter.Micros
	arrived, arrivedBefore int64
	used, usedBefore       int64
	everybody              float64 // units per microsecond that all nodes together use, estimated
}

// lastAnswer is the store's last answer.
type lastAnswer struct {
	at        counter.Micros // when it arrived, on this clock
	ahead     counter.Micros // upper bound of how far the store's clock is ahead of this one
	remaining int64
	reset     counter.Micros // reset and next are the earliest possible instants, on this clock
	next      counter.Micros
}

// nextSpan begins a new span.
func (c *Counter) nextSpan(now counter.Micros) {
	span := max(horizon, 2*c.rtt)
	if now-c.since < 2*c.span {
		c.arrivedBefore, c.usedBefore = c.arrived, c.used
	} else {
		c.arrivedBefore, c.usedBefore = 0, 0
	}
	c.arrived, c.used = 0, 0
	c.since, c.span = now, span
	c.low = c.lowAt(now)
}

// The methods named admits and arrives return how many units are used (admits) and requested
// (arrives) on this node during a span, at the recent rates.
func (c *Counter) admits(now, during counter.Micros) float64 {
	return c.expect(now, during, c.usedBefore, c.used)
}

func (c *Counter) arrives(now, during counter.Micros) float64 {
	return c.expect(now, during, c.arrivedBefore, c.arrived)
}

// Counter.expect scales the counts to a span. It weights the count of the previous span by the part
// of that span that lies within one span's length of now.
func (c *Counter) expect(now, during counter.Micros, before, current int64) float64 {
	if c.span == 0 {
		return 0
	}
	passed := now - c.since
	switch {
	case passed >= 2*c.span:
		return 0
	case passed >= c.span:
		before, current, passed = current, 0, passed-c.span
	}
	part := float64(passed) / float64(c.span)
	return (float64(before)*(1-part) + float64(current)) * float64(during) / float64(c.span)
}

func (c *Counter) horizon() counter.Micros { return max(horizon, 4*c.rtt) }

// Counter.age returns how long leased units may be used.
func (c *Counter) age() counter.Micros {
	age := min(max(ageMin, 6*c.rtt), c.window/2)
	if c.algorithm == counter.TokenBucket {
		age = min(age, counter.Micros(float64(c.capacity)*float64(c.window)/float64(c.count)/holdPart))
	}
	return max(1, age)
}

// Counter.gap returns the usual time between two calls of a counter whose store is nearly empty.
// In that time a fiftieth of the limit becomes available.
func (c *Counter) gap() counter.Micros {
	fills := c.window
	if c.algorithm == counter.TokenBucket {
		fills = counter.Micros(float64(c.capacity) * float64(c.window) / float64(c.count))
	}
	return max(gapMin, min(gapMax, fills/gapPart))
}

// Counter.pause returns the gap, lengthened or shortened by up to a half. The instant of the
// store's answer serves as the random number. Nodes with equal pauses would always call in the same
// order, and the node that calls after the longest break would get the most units. Towards the end
// of a sliding window the pause shrinks, because units that become available but are not taken by
// then are lost.
func (c *Counter) pause(now, answered counter.Micros) counter.Micros {
	gap := c.gap()
	pause := gap/2 + counter.Micros(uint64(answered)*scatter>>33)%(gap+1)
	if left := c.last.reset - now; c.algorithm == counter.SlidingWindow && left > 0 {
		pause = min(pause, max(pauseMin, 2*c.rtt, left/3))
	}
	return pause
}

// Counter.flows reports whether the store is nearly empty, so that only new units are available.
func (c *Counter) flows(now counter.Micros) bool { return now < c.flowUntil }

// Counter.extra returns how many units to take in advance.
func (c *Counter) extra(now counter.Micros) int64 {
	if extra := c.wanted(now) - c.Held(now); extra >= extraMin {
		return extra
	}
	return 0
}

// Counter.wanted returns how many units should be held.
func (c *Counter) wanted(now counter.Micros) int64 {
	age := c.age()
	if !c.heard || age < 4*c.rtt || c.algorithm == counter.SlidingLog {
		return 0
	}
	span := min(c.horizon(), c.window/5)
	switch {
	case c.algorithm == counter.TokenBucket:
		span = min(span, age/2)
	case now < c.last.reset:
		span = min(span, c.last.reset-now)
	default: // the last known window has ended, and the end of the current one is unknown
		span = min(span, c.window/20)
	}
	wanted := int64(c.admits(now, span))
	if c.flows(now) {
		wanted = max(extraMin, int64(math.Ceil(flowFactor*c.arrives(now, c.gap()))))
	}
	wanted = min(wanted, c.capacity/holdPart)
	if c.lastWanted > 0 {
		wanted = min(wanted, 2*c.lastWanted+2*extraMin)
	}
	return wanted
}

// shareMille returns this node's share of the remaining units, in thousandths. For a nearly empty
// store it adds one half, so a node that is alone takes all new units.
func (c *Counter) shareMille(now counter.Micros) int64 {
	own := c.admits(now, 1)
	part := 1.0
	if c.everybody > own {
		part = own / c.everybody
	}
	share := max(1, int64(shareMax*part))
	if c.flows(now) {
		share += shareMax
	}
	return min(1000, share)
}

// lowAt returns how many held units are expected to be used before a call returns.
func (c *Counter) lowAt(now counter.Micros) int64 {
	while := c.admits(now, c.rtt)
	return int64(1.5*while + 2*math.Sqrt(while))
}

// Counter.refills reports whether to take more units in advance.
func (c *Counter) refills(now counter.Micros) bool {
	return !c.asking && c.lastExtra >= extraMin && !c.denies(now, extraMin) && c.extra(now) > 0
}

// measureRTT updates the estimated round trip to the store.
func (c *Counter) measureRTT(took counter.Micros) {
	if took = min(took, rttMax); c.rtt == 0 {
		c.rtt = took
	} else {
		c.rtt += (took - c.rtt) / 8
	}
}

// Counter.learn updates the estimates of the store's remaining units and of the rate at which
// all nodes use them, from an answer.
func (c *Counter) learn(now counter.Micros, a *Call, r *counter.Result) {
	if passed := now - c.last.at; c.heard && passed > 0 {
		used := float64(c.last.remaining - r.Remaining)
		if c.algorithm != counter.FixedWindow {
			used += float64(passed) * float64(c.count) / float64(c.window)
		}
		if used >= 0 {
			weight := float64(passed) / float64(passed+max(c.span, 1))
			c.everybody += weight * (used/float64(passed) - c.everybody)
		}
	}
	c.heard = true
	c.last = lastAnswer{at: now, ahead: r.At - a.sent, remaining: r.Remaining, reset: addSpan(a.sent, r.Reset), next: addSpan(a.sent, r.Next)}
}

func addSpan(from, span counter.Micros) counter.Micros {
	if span >= counter.Never-from {
		return counter.Never
	}
	return from + span
}
