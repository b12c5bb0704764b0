// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/penstock/penstock/core"
)

// on returns an instant in UTC.
func on(year int, month time.Month, day, hour int) core.Micros {
	return core.Micros(time.Date(year, month, day, hour, 0, 0, 0, time.UTC).UnixMicro())
}

// today moves the clock to an instant and returns the check as a caller asks it whose clock shows the same.
func (e *examiner) today(at core.Micros, c *calendar, k core.Check) core.Check {
	e.at(at)
	return c.dated(k, at)
}

func askCalendar(e *examiner) {
	instants := []core.Micros{
		on(2023, 2, 14, 12), on(2023, 12, 31, 12), on(2024, 2, 28, 23), on(2024, 2, 29, 12), on(2024, 3, 10, 12), // New York
		on(2024, 3, 31, 12), on(2024, 10, 27, 12), on(2024, 10, 6, 0), on(2024, 4, 26, 12), on(2024, 12, 30, 12), on(2100, 2, 28, 12)}
	for _, unit := range calendarUnits {
		for _, zone := range zones {
			c := zoned(unit, zone)
			l := c.limit(3)
			for i, at := range instants {
				key := unit + zone + string(rune('a'+i))
				first, next, after := c.boundary(at, 0), c.boundary(at, 1), c.boundary(at, 2)
				charge := e.admitted(e.today(first, c, take(key, l, 3)))
				e.equal("the receipt", int64(charge.Receipt), int64(first))
				e.equal("the reset of "+key, int64(charge.Reset), int64(next-first))
				r := e.refused(e.today(next-1, c, take(key, l, 1)))
				e.equal("the wait of "+key, int64(r.Wait), 1)
				r = e.admitted(e.today(next, c, take(key, l, 3)))
				e.equal("the reset of the period after", int64(r.Reset), int64(after-next))
			}
		}
	}
}

func askCalendarClock(e *examiner) {
	for _, unit := range calendarUnits {
		c := zoned(unit, "Europe/Berlin")
		l, at := c.limit(3), on(2024, 3, 31, 12)
		e.admitted(e.today(at, c, take(unit, l, 2)))
		for ahead := range 2 { // a caller one, then two periods behind
			e.at(c.boundary(at, ahead+1))
			late := c.dated(take(unit, l, 3), at)
			e.equal("the receipt", int64(e.admitted(late).Receipt), int64(e.now))
			e.refused(c.dated(take(unit, l, 1), e.now)) // for a caller that knows the day it is the same counter
			e.refused(c.dated(take(unit, l, 1), at))
		}
	}
}

func askStale(e *examiner) {
	beside := limit(core.FixedWindow, 5, 31*core.Day)
	for _, unit := range calendarUnits {
		c := zoned(unit, "America/New_York")
		l, at := c.limit(3), on(2024, 11, 3, 12)
		sent := c.bounds(at)
		for i, now := range []core.Micros{sent[0] - 1, sent[3], sent[3] + 400*core.Day} {
			e.at(now)
			for _, k := range []core.Check{take(unit, l, 1), look(unit, l, 1), force(unit, l, 1), reset(unit, l), shadow(take(unit, l, 1))} {
				checks := []core.Check{force(unit+" beside", beside, 1), c.dated(k, at)}
				err := e.Store.Take(context.Background(), checks, make([]core.Result, 2))
				if !errors.Is(err, core.ErrStale) || !errors.Is(err, core.ErrUnavailable) || errors.Is(err, core.ErrInvalid) {
					e.Fatalf("%s: boundaries %d at %d (case %d): the error is %v, want stale and unavailable", name(&k), *sent, now, i, err)
				}
			}
			e.left(unit+" beside", beside, 5)
		}
		for _, now := range []core.Micros{sent[0], sent[3] - 1} {
			e.at(now)
			e.admitted(c.dated(take(unit, l, 3), at))
		}
	}
}

func askCalendarClockBack(e *examiner) {
	for _, unit := range calendarUnits {
		c := zoned(unit, "Europe/Berlin")
		l, at := c.limit(3), on(2024, 10, 27, 12)
		next := c.boundary(at, 1)
		e.admitted(e.today(at, c, take(unit, l, 3)))
		e.admitted(e.today(next, c, take(unit, l, 1)))
		// The clock goes back over the boundary: the period that had begun goes on.
		for _, back := range []core.Micros{1, core.Second, core.Hour} {
			r := e.refused(e.today(next-back, c, take(unit, l, 3)))
			e.equal("what remains", r.Remaining, 2)
			e.equal("the wait", int64(r.Wait), int64(c.boundary(at, 2)-e.now))
		}
		e.admitted(e.today(next-1, c, take(unit, l, 2)))
		e.refused(e.today(next+1, c, take(unit, l, 1)))
		e.admitted(e.today(c.boundary(at, 2), c, take(unit, l, 3)))
		// A clock that was ten periods ahead is corrected: what was counted is counted now, and nobody waits for ten.
		key := unit + " ahead"
		e.admitted(e.today(c.boundary(at, 10), c, take(key, l, 2)))
		r := e.refused(e.today(at, c, take(key, l, 2)))
		e.equal("the wait after a correction", int64(r.Wait), int64(next-at))
		e.admitted(c.dated(take(key, l, 1), at))
		e.admitted(e.today(next, c, take(key, l, 3)))
	}
}

func askCalendarReceipt(e *examiner) {
	for _, unit := range calendarUnits {
		c := zoned(unit, "Asia/Kathmandu")
		l, at := c.limit(5), on(2024, 12, 30, 12)
		charge := e.admitted(e.today(at, c, take(unit, l, 4)))
		back := giveBack(unit, l, 1, charge.Receipt)
		e.equal("what is given back before the end", e.one(e.today(c.boundary(at, 1)-1, c, back)).Granted, 1)
		e.admitted(e.today(c.boundary(at, 1), c, take(unit, l, 5)))
		e.equal("what is given back after the end", e.one(c.dated(back, e.now)).Granted, 0)
		e.refused(c.dated(take(unit, l, 1), e.now))
	}
}

func askZone(e *examiner) {
	for _, unit := range calendarUnits {
		utc, west := zoned(unit, "UTC"), zoned(unit, "America/New_York")
		l := utc.limit(3)
		begins := utc.boundary(on(2024, 6, 12, 12), 1)
		e.admitted(e.today(begins+core.Hour, utc, take(unit, l, 2)))
		// In the west the period before is not over: what it has counted since is kept.
		e.refused(west.dated(take(unit, l, 2), e.now))
		e.admitted(west.dated(take(unit, l, 1), e.now))
		e.refused(e.today(west.boundary(begins, 1)-1, west, take(unit, l, 1)))
		e.admitted(e.today(west.boundary(begins, 1), west, take(unit, l, 3)))

		// The zones of two nodes, by turns: in the east the period began two hours earlier.
		east, key := zoned(unit, "Europe/Berlin"), unit+" by turns"
		e.admitted(e.today(begins+core.Hour, east, take(key, l, 1)))
		for range 2 {
			e.refused(utc.dated(take(key, l, 3), e.now))
			e.admitted(utc.dated(take(key, l, 1), e.now))
			utc, east = east, utc
		}
		e.refused(utc.dated(take(key, l, 1), e.now))
	}
}
