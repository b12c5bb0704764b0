// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"math"

	"github.com/penstock/penstock/core"
)

// The parameters. What they are weighed by is in docs/decisions.md.
const (
	horizon    = 100 * core.Millisecond // a batch is for so long: ten calls a second keep a counter hot
	extraMin   = 2                      // fewer units are not worth holding
	ageMin     = 250 * core.Millisecond
	idle       = 100 * core.Millisecond
	gapMin     = 5 * core.Millisecond // between two calls for what flows in
	gapMax     = 50 * core.Millisecond
	gapPart    = 50
	pauseMin   = core.Millisecond
	dryPart    = 0.3                // of what all nodes use in a gap
	scatter    = 0x9e3779b97f4a7c15 // odd, and without a pattern: the golden ratio
	holdPart   = 20                 // a node holds no more than this part of a limit
	rttMax     = core.Second        // of slower answers only so much is believed, or one would make leases long
	shareMax   = 500                // thousandths of what remains that all nodes together may take in advance
	DenialMax  = core.Second        // a refusal is remembered no longer: a reset or a settlement elsewhere is felt by then
	flowFactor = 1.5
)

// rates counts the units that arrived and those that were used in this span and in the one before.
type rates struct {
	since, span            core.Micros
	arrived, arrivedBefore int64
	used, usedBefore       int64
	everybody              float64 // units per microsecond that all nodes together use, about
}

// seen is the store's last answer.
type seen struct {
	at        core.Micros // when it came, on this clock
	ahead     core.Micros // by how much the store's clock is ahead of this one, at most
	remaining int64
	reset     core.Micros // instants on this clock, at the earliest
	next      core.Micros
}

// turn begins a new span.
func (c *Counter) turn(now core.Micros) {
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

// admits and arrives return how many units, at the rate of late, are used here and asked for here during a span.
func (c *Counter) admits(now, during core.Micros) float64 {
	return c.expect(now, during, c.usedBefore, c.used)
}

func (c *Counter) arrives(now, during core.Micros) float64 {
	return c.expect(now, during, c.arrivedBefore, c.arrived)
}

// expect weighs what was counted in the span before by the part of it that the last span's length still covers.
func (c *Counter) expect(now, during core.Micros, before, current int64) float64 {
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

func (c *Counter) horizon() core.Micros { return max(horizon, 4*c.rtt) }

// age returns for how long leased units may be used.
func (c *Counter) age() core.Micros {
	age := min(max(ageMin, 6*c.rtt), c.window/2)
	if c.algorithm == core.TokenBucket {
		age = min(age, core.Micros(float64(c.capacity)*float64(c.window)/float64(c.count)/holdPart))
	}
	return max(1, age)
}

// gap is how long a counter without units is left alone as a rule: what flows in meanwhile is a fiftieth of the limit.
func (c *Counter) gap() core.Micros {
	fills := c.window
	if c.algorithm == core.TokenBucket {
		fills = core.Micros(float64(c.capacity) * float64(c.window) / float64(c.count))
	}
	return max(gapMin, min(gapMax, fills/gapPart))
}

// pause is the gap, or half as much more or less, by the instant of the store's answer: nodes that paused alike would come
// one after the other for good, and the one that comes after the longest silence would get the most. Towards the end of a
// sliding window it is less and less: what flows in and is not taken by then is nobody's.
func (c *Counter) pause(now, answered core.Micros) core.Micros {
	gap := c.gap()
	pause := gap/2 + core.Micros(uint64(answered)*scatter>>33)%(gap+1)
	if left := c.last.reset - now; c.algorithm == core.SlidingWindow && left > 0 {
		pause = min(pause, max(pauseMin, 2*c.rtt, left/3))
	}
	return pause
}

// flows reports whether the store is empty and lives from what flows in.
func (c *Counter) flows(now core.Micros) bool { return now < c.flowUntil }

// extra returns how much to take in advance.
func (c *Counter) extra(now core.Micros) int64 {
	if extra := c.wanted(now) - c.Held(now); extra >= extraMin {
		return extra
	}
	return 0
}

// wanted returns how much should be in hand.
func (c *Counter) wanted(now core.Micros) int64 {
	age := c.age()
	if !c.heard || age < 4*c.rtt || c.algorithm == core.SlidingLog {
		return 0
	}
	span := min(c.horizon(), c.window/5)
	switch {
	case c.algorithm == core.TokenBucket:
		span = min(span, age/2)
	case now < c.last.reset:
		span = min(span, c.last.reset-now)
	default: // the window has ended, and when the present one does is not known
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

// shareMille returns this node's part of what remains. Of what flows in it is that of all nodes and a part by its own besides:
// one that is alone takes all of it.
func (c *Counter) shareMille(now core.Micros) int64 {
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

// lowAt returns how much in hand may be gone before a call returns.
func (c *Counter) lowAt(now core.Micros) int64 {
	while := c.admits(now, c.rtt)
	return int64(1.5*while + 2*math.Sqrt(while))
}

// refills reports whether to ask for more in advance.
func (c *Counter) refills(now core.Micros) bool {
	return !c.asking && c.lastExtra >= extraMin && !c.denies(now, extraMin) && c.extra(now) > 0
}

// hear takes from an answer how far away the store is.
func (c *Counter) hear(took core.Micros) {
	if took = min(took, rttMax); c.rtt == 0 {
		c.rtt = took
	} else {
		c.rtt += (took - c.rtt) / 8
	}
}

// learn takes from an answer what the store has left, and how fast that goes.
func (c *Counter) learn(now core.Micros, a *Asking, r *core.Result) {
	if passed := now - c.last.at; c.heard && passed > 0 {
		used := float64(c.last.remaining - r.Remaining)
		if c.algorithm != core.FixedWindow {
			used += float64(passed) * float64(c.count) / float64(c.window)
		}
		if used >= 0 {
			weight := float64(passed) / float64(passed+max(c.span, 1))
			c.everybody += weight * (used/float64(passed) - c.everybody)
		}
	}
	c.heard = true
	c.last = seen{at: now, ahead: r.At - a.sent, remaining: r.Remaining, reset: later(a.sent, r.Reset), next: later(a.sent, r.Next)}
}

func later(from, span core.Micros) core.Micros {
	if span >= core.Never-from {
		return core.Never
	}
	return from + span
}
