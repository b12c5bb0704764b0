// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"fmt"

	corecounter "github.com/penstock/penstock/core/counter"
)

// Numbers of calendar windows and penalties in the traffic.

const (
	trafficCalendars = 4  // how many of trafficCounters have calendar windows
	trafficPenalties = 3  // penalties in use at a time, in addition to the counters
	penaltiesMax     = 2  // the maximum of penalties in one call
	violationsKnown  = 12 // number of violation IDs; with so many, two counters rarely share one
)

// zones holds time zones for calendar windows. Some have summer time, in one case with a change of
// half an hour or at midnight, and some are far east or far west.
var zones = []string{"UTC", "Europe/Berlin", "America/New_York", "Africa/Cairo", "Australia/Lord_Howe", "Asia/Kathmandu",
	"Pacific/Kiritimati", "America/Santiago"}

// calendarCounter returns a counter of a calendar window.
func (tr *traffic) calendarCounter(i int) *counter {
	unit := calendarUnits[i%len(calendarUnits)]
	c := newZoned(unit, zones[tr.rng.IntN(len(zones))])
	l := c.limit(1 + tr.upTo(corecounter.CountMax-1))
	if tr.chance(40) {
		l = c.limit(1 + tr.rng.Int64N(12))
	}
	return &counter{key: fmt.Sprintf("%d:%d:%s:fw", tr.calls, i, unit), limit: l, calendar: c, remaining: l.Capacity()}
}

// traffic.penalty returns a random penalty, usually one that is soon imposed.
func (tr *traffic) penalty() *corecounter.Penalty {
	p := &corecounter.Penalty{Window: max(tr.window(), tr.window()), Threshold: 1 + tr.rng.Int64N(4)}
	if tr.chance(10) {
		p.Threshold = 1 + tr.upTo(corecounter.ViolationsMax-1)
	}
	for range 1 + tr.rng.IntN(5) {
		p.Multipliers = append(p.Multipliers, []int64{1, 1, 2, 3, 8, 100, 1_000_000}[tr.rng.IntN(7)])
	}
	if tr.chance(60) {
		p.Max = 1 + corecounter.Micros(tr.rng.Int64N(3*int64(p.Window)))
		if tr.chance(60) {
			p.Max = 1 + p.Max/1000 // the penalty ends soon, so that another can follow
		}
	}
	return p
}

// traffic.window returns one of the lengths in windows, or a random length.
func (tr *traffic) window() corecounter.Micros {
	if tr.chance(30) {
		return corecounter.Millisecond * corecounter.Micros(1+tr.upTo(int64(corecounter.WindowMax/corecounter.Millisecond)-1))
	}
	return windows[tr.rng.IntN(len(windows))]
}

// renewPenalties replaces all penalties by new random ones.
func (tr *traffic) renewPenalties() {
	tr.penalties = tr.penalties[:0]
	for i := range trafficPenalties {
		tr.penalties = append(tr.penalties, &counter{key: fmt.Sprintf("%d:penalty:%d", tr.calls, i), penalty: tr.penalty()})
	}
	for _, c := range tr.counters {
		c.violation = 1 + tr.rng.Int64N(violationsKnown)
		if tr.chance(20) {
			c.violation = corecounter.ViolationMax - c.violation + 1
		}
	}
}

// traffic.edit changes the limit of a counter, or a penalty, as an edit of the policy does.
func (tr *traffic) edit(c *counter) {
	switch {
	case c.penalty != nil:
		c.penalty = tr.penalty()
	case c.calendar == nil:
		c.limit = tr.editedLimit(&c.limit)
	case tr.chance(30):
		c.calendar = newZoned(c.calendar.unit, zones[tr.rng.IntN(len(zones))])
	default:
		c.limit = c.calendar.limit(max(1, c.limit.Count()+tr.rng.Int64N(5)-2))
	}
}

// addPenalties inserts checks of penalties into a call, and makes the denials of other checks
// violations of these penalties.
func (tr *traffic) addPenalties(checks []corecounter.Check) []corecounter.Check {
	if tr.chance(50) {
		return checks
	}
	var guards []string
	for _, which := range tr.rng.Perm(len(tr.penalties))[:1+tr.rng.IntN(penaltiesMax)] {
		c := tr.penalties[which]
		if !tr.honest && tr.chance(3) {
			tr.edit(c)
		}
		k := penaltyCheck(corecounter.OpTake, c.key, c.penalty)
		switch dice := tr.rng.IntN(100); {
		case dice < 8:
			k.Op = corecounter.OpLook
		case dice < 11:
			k.Op = corecounter.OpReset
		}
		at := tr.rng.IntN(len(checks) + 1)
		checks = append(checks, corecounter.Check{})
		copy(checks[at+1:], checks[at:])
		checks[at] = k
		guards = append(guards, c.key)
	}
	greedy := tr.chance(50)
	for i := range checks {
		k := &checks[i]
		if c := tr.find(k.Key); greedy && k.Op == corecounter.OpTake && k.Penalty == nil && tr.chance(60) {
			k.Cost = min(c.limit.Capacity(), corecounter.CountMax, c.remaining+1)
		}
		if k.Penalty == nil && tr.chance(75) {
			guard := guards[tr.rng.IntN(len(guards))]
			for j := range checks {
				if string(checks[j].Key) == guard {
					k.Guard, k.Violation = j+1, tr.find(k.Key).violation
				}
			}
		}
	}
	return checks
}

// traffic.dated adds to a check the calendar boundaries that the caller's clock determines. This
// clock can be one or two periods behind the store's clock, and is sometimes so wrong that the call
// is stale.
func (tr *traffic) dated(c *counter, k corecounter.Check) corecounter.Check {
	if c.calendar == nil {
		return k
	}
	at := tr.now
	switch dice := tr.rng.IntN(100); {
	case !tr.honest && c.calendar.bounds(at)[0] == at && dice < 15:
		at = c.calendar.boundary(at, -3) // the call becomes stale exactly now
	case dice < 12:
		at = c.calendar.bounds(at)[0] - 1 // in the previous period
		if dice < 5 {
			at = c.calendar.bounds(at)[0] - 1
		}
	case tr.honest:
	case dice < 13:
		at = c.calendar.bounds(at)[1+tr.rng.IntN(3)] // a caller that is ahead
	case dice < 14:
		at -= corecounter.Micros(tr.rng.Int64N(5 * int64(c.limit.Window())))
	}
	return c.calendar.dated(k, max(corecounter.Day, at))
}

// traffic.edge returns a time at or near which something begins or ends for a counter or a penalty.
func (tr *traffic) edge(c *counter) corecounter.Micros {
	switch {
	case c.calendar != nil:
		return c.calendar.bounds(tr.now)[1]
	case c.penalty != nil:
		return c.wakes + c.penalty.Window
	default:
		window := c.limit.Window()
		return tr.now - tr.now%window + window
	}
}
