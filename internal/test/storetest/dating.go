// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"time"

	corecounter "github.com/penstock/penstock/core/counter"
)

// instantUTC returns an instant in UTC.
func instantUTC(year int, month time.Month, day, hour int) corecounter.Micros {
	return corecounter.Micros(time.Date(year, month, day, hour, 0, 0, 0, time.UTC).UnixMicro())
}

// examiner.today moves the store's clock to an instant, and returns the check of a caller whose
// clock shows the same instant.
func (e *examiner) today(at corecounter.Micros, c *calendar, k corecounter.Check) corecounter.Check {
	e.at(at)
	return c.dated(k, at)
}

func askCalendar(e *examiner) {
	instants := []corecounter.Micros{
		// New York
		instantUTC(2023, 2, 14, 12), instantUTC(2023, 12, 31, 12), instantUTC(2024, 2, 28, 23), instantUTC(2024, 2, 29, 12), instantUTC(2024, 3, 10, 12),
		instantUTC(2024, 3, 31, 12), instantUTC(2024, 10, 27, 12), instantUTC(2024, 10, 6, 0), instantUTC(2024, 4, 26, 12), instantUTC(2024, 12, 30, 12), instantUTC(2100, 2, 28, 12)}
	for _, unit := range calendarUnits {
		for _, zone := range zones {
			c := newZoned(unit, zone)
			l := c.limit(3)
			for i, at := range instants {
				key := unit + zone + string(rune('a'+i))
				first, next, after := c.boundary(at, 0), c.boundary(at, 1), c.boundary(at, 2)
				charge := e.mustAdmit(e.today(first, c, take(key, l, 3)))
				e.equal("the receipt", int64(charge.Receipt), int64(first))
				e.equal("the reset of "+key, int64(charge.Reset), int64(next-first))
				r := e.mustDeny(e.today(next-1, c, take(key, l, 1)))
				e.equal("the wait of "+key, int64(r.Wait), 1)
				r = e.mustAdmit(e.today(next, c, take(key, l, 3)))
				e.equal("the reset of the period after", int64(r.Reset), int64(after-next))
			}
		}
	}
}

func askCalendarClock(e *examiner) {
	for _, unit := range calendarUnits {
		c := newZoned(unit, "Europe/Berlin")
		l, at := c.limit(3), instantUTC(2024, 3, 31, 12)
		e.mustAdmit(e.today(at, c, take(unit, l, 2)))
		for ahead := range 2 { // the caller is one period behind, and then two
			e.at(c.boundary(at, ahead+1))
			late := c.dated(take(unit, l, 3), at)
			e.equal("the receipt", int64(e.mustAdmit(late).Receipt), int64(e.now))
			// a caller that knows the current period uses the same counter
			e.mustDeny(c.dated(take(unit, l, 1), e.now))
			e.mustDeny(c.dated(take(unit, l, 1), at))
		}
	}
}

func askStale(e *examiner) {
	beside := limit(corecounter.FixedWindow, 5, 31*corecounter.Day)
	for _, unit := range calendarUnits {
		c := newZoned(unit, "America/New_York")
		l, at := c.limit(3), instantUTC(2024, 11, 3, 12)
		sent := c.bounds(at)
		for i, now := range []corecounter.Micros{sent[0] - 1, sent[3], sent[3] + 400*corecounter.Day} {
			e.at(now)
			for _, k := range []corecounter.Check{take(unit, l, 1), look(unit, l, 1), force(unit, l, 1), reset(unit, l), shadow(take(unit, l, 1))} {
				checks := []corecounter.Check{force(unit+" beside", beside, 1), c.dated(k, at)}
				err := e.Store.Take(context.Background(), checks, make([]corecounter.Result, 2))
				if !errors.Is(err, corecounter.ErrStale) || !errors.Is(err, corecounter.ErrUnavailable) || errors.Is(err, corecounter.ErrInvalid) {
					e.Fatalf("%s: boundaries %d at %d (case %d): the error is %v, want stale and unavailable", name(&k), *sent, now, i, err)
				}
			}
			e.left(unit+" beside", beside, 5)
		}
		for _, now := range []corecounter.Micros{sent[0], sent[3] - 1} {
			e.at(now)
			e.mustAdmit(c.dated(take(unit, l, 3), at))
		}
	}
}

func askCalendarClockBack(e *examiner) {
	for _, unit := range calendarUnits {
		c := newZoned(unit, "Europe/Berlin")
		l, at := c.limit(3), instantUTC(2024, 10, 27, 12)
		next := c.boundary(at, 1)
		e.mustAdmit(e.today(at, c, take(unit, l, 3)))
		e.mustAdmit(e.today(next, c, take(unit, l, 1)))
		// If the clock goes back over the boundary, the new period continues.
		for _, back := range []corecounter.Micros{1, corecounter.Second, corecounter.Hour} {
			r := e.mustDeny(e.today(next-back, c, take(unit, l, 3)))
			e.equal("what remains", r.Remaining, 2)
			e.equal("the wait", int64(r.Wait), int64(c.boundary(at, 2)-e.now))
		}
		e.mustAdmit(e.today(next-1, c, take(unit, l, 2)))
		e.mustDeny(e.today(next+1, c, take(unit, l, 1)))
		e.mustAdmit(e.today(c.boundary(at, 2), c, take(unit, l, 3)))
		// When a clock that was ten periods ahead is corrected, the units count in the current
		// period, and no request waits for ten periods.
		key := unit + " ahead"
		e.mustAdmit(e.today(c.boundary(at, 10), c, take(key, l, 2)))
		r := e.mustDeny(e.today(at, c, take(key, l, 2)))
		e.equal("the wait after a correction", int64(r.Wait), int64(next-at))
		e.mustAdmit(c.dated(take(key, l, 1), at))
		e.mustAdmit(e.today(next, c, take(key, l, 3)))
	}
}

func askCalendarReceipt(e *examiner) {
	for _, unit := range calendarUnits {
		c := newZoned(unit, "Asia/Kathmandu")
		l, at := c.limit(5), instantUTC(2024, 12, 30, 12)
		charge := e.mustAdmit(e.today(at, c, take(unit, l, 4)))
		back := refund(unit, l, 1, charge.Receipt)
		e.equal("what is given back before the end", e.takeOne(e.today(c.boundary(at, 1)-1, c, back)).Granted, 1)
		e.mustAdmit(e.today(c.boundary(at, 1), c, take(unit, l, 5)))
		e.equal("what is given back after the end", e.takeOne(c.dated(back, e.now)).Granted, 0)
		e.mustDeny(c.dated(take(unit, l, 1), e.now))
	}
}

func askZone(e *examiner) {
	for _, unit := range calendarUnits {
		utc, west := newZoned(unit, "UTC"), newZoned(unit, "America/New_York")
		l := utc.limit(3)
		begins := utc.boundary(instantUTC(2024, 6, 12, 12), 1)
		e.mustAdmit(e.today(begins+corecounter.Hour, utc, take(unit, l, 2)))
		// In the western zone, the previous period has not ended, so its units are kept.
		e.mustDeny(west.dated(take(unit, l, 2), e.now))
		e.mustAdmit(west.dated(take(unit, l, 1), e.now))
		e.mustDeny(e.today(west.boundary(begins, 1)-1, west, take(unit, l, 1)))
		e.mustAdmit(e.today(west.boundary(begins, 1), west, take(unit, l, 3)))

		// Two nodes with different zones alternate. In the eastern zone, the period began two hours
		// earlier.
		east, key := newZoned(unit, "Europe/Berlin"), unit+" by turns"
		e.mustAdmit(e.today(begins+corecounter.Hour, east, take(key, l, 1)))
		for range 2 {
			e.mustDeny(utc.dated(take(key, l, 3), e.now))
			e.mustAdmit(utc.dated(take(key, l, 1), e.now))
			utc, east = east, utc
		}
		e.mustDeny(utc.dated(take(key, l, 1), e.now))

		// In the far zone, the period began more than half a period earlier or later.
		far, key := newZoned(unit, "UTC"), unit+" far apart"
		near := newZoned(unit, "Pacific/Honolulu")
		if unit == "day" { // the other periods differ by less than half of their length for most of the time
			e.mustAdmit(e.today(begins+5*corecounter.Hour, far, take(key, l, 1)))
			e.mustAdmit(near.dated(take(key, l, 1), e.now))
			e.mustAdmit(far.dated(take(key, l, 1), e.now))
			for range 2 {
				e.mustDeny(near.dated(take(key, l, 1), e.now))
				e.mustDeny(far.dated(take(key, l, 1), e.now))
			}
			e.mustAdmit(e.today(far.boundary(e.now, 1), far, take(key, l, 3)))
			e.mustDeny(near.dated(take(key, l, 1), e.now))
			e.mustDeny(far.dated(take(key, l, 1), e.now))
		}
	}
}
