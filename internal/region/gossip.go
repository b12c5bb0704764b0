// SPDX-License-Identifier: Apache-2.0

package region

import (
	"fmt"

	"github.com/penstock/penstock/core/counter"
)

// A Count is what one region admitted in the window that begins at Start and in the previous
// window.
type Count struct {
	Start             counter.Micros
	Current, Previous int64
}

// Count.at returns the count as of a window that begins at start.
func (c Count) at(start, window counter.Micros) Count {
	switch {
	case c.Start >= start:
		return c
	case c.Start == start-window:
		return Count{Start: start, Previous: c.Current}
	}
	return Count{Start: start}
}

// Gossip counts a limit in one region without moving units. The region admits requests while the
// number that it has admitted, plus the numbers that the other regions have reported, is below the
// limit. The limit is exceeded by at most what the other regions admit between two reports and
// while a report travels. No request ever waits. It is not safe for concurrent use.
type Gossip struct {
	limit  counter.Limit
	self   int
	counts [RegionsMax]Count
}

// NewGossip returns the counter of a region. The limit must be a fixed or sliding window without
// calendar.
func NewGossip(limit counter.Limit, self int) (Gossip, error) {
	windowed := limit.Algorithm() == counter.FixedWindow || limit.Algorithm() == counter.SlidingWindow
	if !windowed || limit.Calendar() != 0 {
		return Gossip{}, fmt.Errorf("limit %q cannot be counted by gossip: "+
			"use fixed_window or sliding_window without a calendar unit", limit)
	}
	return Gossip{limit: limit, self: self}, nil
}

// Take decides a request and reports whether it is admitted.
func (g *Gossip) Take(now counter.Micros, cost int64) bool {
	window := g.limit.Window()
	start := now - now%window
	own := &g.counts[g.self]
	*own = own.at(start, window)
	used := int64(0)
	for i := range g.counts {
		c := g.counts[i].at(start, window)
		used += c.Current
		if g.limit.Algorithm() == counter.SlidingWindow {
			used += c.Previous * int64(start+window-now) / int64(window)
		}
	}
	if used+cost > g.limit.Count() {
		return false
	}
	own.Current += cost
	return true
}

// Report returns the region's own count, which must be reported to the other regions.
func (g *Gossip) Report() Count { return g.counts[g.self] }

// Hear merges the report of another region. Reports may be lost, repeated and out of order.
func (g *Gossip) Hear(from int, c Count) {
	if from == g.self {
		return
	}
	known := &g.counts[from]
	switch {
	case c.Start > known.Start:
		*known = c
	case c.Start == known.Start:
		known.Current, known.Previous = max(known.Current, c.Current), max(known.Previous, c.Previous)
	}
}
