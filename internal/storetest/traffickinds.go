// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"fmt"

	"github.com/penstock/penstock/core"
)

// Traffic of calendar windows and penalties.

const (
	trafficCalendars = 4  // of trafficCounters, how many count in calendar windows
	trafficPenalties = 3  // in use at a time, beside the counters
	penaltiesMax     = 2  // at most in one call
	violationsKnown  = 12 // numbers of violations; two counters seldom have the same
)

// zones are what calendar windows are computed in: with and without summer time, by half an hour and at midnight, far
// east and west.
var zones = []string{"UTC", "Europe/Berlin", "America/New_York", "Africa/Cairo", "Australia/Lord_Howe", "Asia/Kathmandu",
	"Pacific/Kiritimati", "America/Santiago"}

// calendarCounter returns a counter of a calendar window.
func (tr *traffic) calendarCounter(i int) *counter {
	unit := calendarUnits[i%len(calendarUnits)]
	c := zoned(unit, zones[tr.rng.IntN(len(zones))])
	l := c.limit(1 + tr.upTo(core.CountMax-1))
	if tr.chance(40) {
		l = c.limit(1 + tr.rng.Int64N(12))
	}
	return &counter{key: fmt.Sprintf("%d:%d:%s:fw", tr.calls, i, unit), limit: l, calendar: c, remaining: l.Capacity()}
}

// penalty returns a penalty of any size, mostly one that is soon imposed.
func (tr *traffic) penalty() *core.Penalty {
	p := &core.Penalty{Window: max(tr.window(), tr.window()), Threshold: 1 + tr.rng.Int64N(4)}
	if tr.chance(10) {
		p.Threshold = 1 + tr.upTo(core.ViolationsMax-1)
	}
	for range 1 + tr.rng.IntN(5) {
		p.Multipliers = append(p.Multipliers, []int64{1, 1, 2, 3, 8, 100, 1_000_000}[tr.rng.IntN(7)])
	}
	if tr.chance(60) {
		p.Max = 1 + core.Micros(tr.rng.Int64N(3*int64(p.Window)))
		if tr.chance(60) {
			p.Max = 1 + p.Max/1000 // is soon over, so that there can be a next one
		}
	}
	return p
}

// window returns one of the windows that traffic uses, or any other.
func (tr *traffic) window() core.Micros {
	if tr.chance(30) {
		return core.Millisecond * core.Micros(1+tr.upTo(int64(core.WindowMax/core.Millisecond)-1))
	}
	return windows[tr.rng.IntN(len(windows))]
}

// renewPenalties leaves all penalties for new ones.
func (tr *traffic) renewPenalties() {
	tr.penalties = tr.penalties[:0]
	for i := range trafficPenalties {
		tr.penalties = append(tr.penalties, &counter{key: fmt.Sprintf("%d:penalty:%d", tr.calls, i), penalty: tr.penalty()})
	}
	for _, c := range tr.counters {
		c.violation = 1 + tr.rng.Int64N(violationsKnown)
		if tr.chance(20) {
			c.violation = core.ViolationMax - c.violation + 1
		}
	}
}

// edit changes what the policy says of a counter or a penalty.
func (tr *traffic) edit(c *counter) {
	switch {
	case c.penalty != nil:
		c.penalty = tr.penalty()
	case c.calendar == nil:
		c.limit = tr.changed(&c.limit)
	case tr.chance(30):
		c.calendar = zoned(c.calendar.unit, zones[tr.rng.IntN(len(zones))])
	default:
		c.limit = c.calendar.limit(max(1, c.limit.Count()+tr.rng.Int64N(5)-2))
	}
}

// guarded puts the checks of penalties somewhere into the call, and makes refusals by others violations in their record.
func (tr *traffic) guarded(checks []core.Check) []core.Check {
	if tr.chance(50) {
		return checks
	}
	var guards []string
	for _, which := range tr.rng.Perm(len(tr.penalties))[:1+tr.rng.IntN(penaltiesMax)] {
		c := tr.penalties[which]
		if !tr.honest && tr.chance(3) {
			tr.edit(c)
		}
		k := penaltyCheck(core.OpTake, c.key, c.penalty)
		switch dice := tr.rng.IntN(100); {
		case dice < 8:
			k.Op = core.OpLook
		case dice < 11:
			k.Op = core.OpReset
		}
		at := tr.rng.IntN(len(checks) + 1)
		checks = append(checks, core.Check{})
		copy(checks[at+1:], checks[at:])
		checks[at] = k
		guards = append(guards, c.key)
	}
	greedy := tr.chance(50)
	for i := range checks {
		k := &checks[i]
		if c := tr.find(k.Key); greedy && k.Op == core.OpTake && k.Penalty == nil && tr.chance(60) {
			k.Cost = min(c.limit.Capacity(), core.CountMax, c.remaining+1)
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

// dated adds the boundaries of a calendar window as the caller knows them: its clock may be behind by a period or two,
// and now and then is so far off that the call is stale.
func (tr *traffic) dated(c *counter, k core.Check) core.Check {
	if c.calendar == nil {
		return k
	}
	at := tr.now
	switch dice := tr.rng.IntN(100); {
	case !tr.honest && c.calendar.bounds(at)[0] == at && dice < 15:
		at = c.calendar.boundary(at, -3) // stale since this very instant
	case dice < 12:
		at = c.calendar.bounds(at)[0] - 1 // the period before
		if dice < 5 {
			at = c.calendar.bounds(at)[0] - 1
		}
	case tr.honest:
	case dice < 13:
		at = c.calendar.bounds(at)[1+tr.rng.IntN(3)] // a caller ahead
	case dice < 14:
		at -= core.Micros(tr.rng.Int64N(5 * int64(c.limit.Window())))
	}
	return c.calendar.dated(k, max(core.Day, at))
}

// edge returns an instant at which something begins or ends soon, for a counter or a penalty.
func (tr *traffic) edge(c *counter) core.Micros {
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
