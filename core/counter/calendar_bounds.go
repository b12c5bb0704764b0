// SPDX-License-Identifier: Apache-2.0

//go:build !penstock_filter

package counter

import "time"

// Bounds returns the boundaries of the period that contains now and of the two periods after it, by
// the dates in loc (nil means UTC). A period begins at the first instant of its first date. If the
// clocks skip midnight, the period begins at the first instant after the gap; if they show midnight
// twice, it begins at the first of the two. A week begins on Monday. A date that the time zone
// skipped has no period. The call takes about ten microseconds. The result stays valid until its
// second boundary.
func (u CalendarUnit) Bounds(now Micros, loc *time.Location) Bounds {
	if loc == nil {
		loc = time.UTC
	}
	year, month, day := time.UnixMicro(int64(now)).In(loc).Date()
	// If the clocks go back across midnight, they show the date of the day before again after the
	// new day has begun. The current period is still that of the new day.
	ahead := 1
	for u.start(year, month, day, ahead, loc) > now {
		ahead--
	}
	var b Bounds
	b[0] = u.start(year, month, day, ahead, loc)
	for i := 1; i < len(b); {
		ahead++
		if next := u.start(year, month, day, ahead, loc); next > b[i-1] {
			b[i] = next
			i++
		}
	}
	return b
}

// CalendarUnit.start returns the first instant of the period that is the given number of periods
// after the one that contains the date.
func (u CalendarUnit) start(year int, month time.Month, day, ahead int, loc *time.Location) Micros {
	switch u {
	case CalendarDay:
		day += ahead
	case CalendarWeek:
		weekday := time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Weekday()
		day += 7*ahead - (int(weekday)+6)%7
	case CalendarMonth:
		month, day = month+time.Month(ahead), 1
	default:
		year, month, day = year+ahead, time.January, 1
	}
	return startOfDate(time.Date(year, month, day, 0, 0, 0, 0, time.UTC), loc)
}

// offsetMax is greater than the offset of any time zone from UTC, in hours.
const offsetMax = 26

const (
	// clocksStand is a span in which no time zone changes its clocks more than once.
	clocksStand = 15 * time.Minute
	// clocksChange is the greatest clock change of any time zone, except one that crosses the date
	// line.
	clocksChange = 2 * time.Hour
)

// startOfDate returns the first instant at which the clocks of loc show the given midnight or
// later. The argument is the local date and time, stored as if it were UTC. startOfDate only
// compares UTC offsets. It cannot use time.Date, which does not specify the midnight that it
// returns if there are two. It cannot use Time.ZoneBounds, which returns wrong spans on the last
// day of a leap year in some zones.
func startOfDate(midnight time.Time, loc *time.Location) Micros {
	shown := func(at time.Time) bool {
		_, offset := at.In(loc).Zone()
		return !at.Add(time.Duration(offset) * time.Second).Before(midnight)
	}
	// Most clocks change by at most an hour, so the offset of the day before gives a close estimate
	// of midnight.
	first := midnight.Add(-offsetMax * time.Hour)
	_, offset := first.In(loc).Zone()
	at := midnight.Add(-time.Duration(offset)*time.Second - clocksChange)
	if shown(at) {
		at = first
	}
	for !shown(at) {
		at = at.Add(clocksStand)
	}
	before := at.Add(-clocksStand)
	for at.Sub(before) > time.Second { // zone offsets change at whole seconds
		if between := before.Add(at.Sub(before) / 2).Truncate(time.Second); shown(between) {
			at = between
		} else {
			before = between
		}
	}
	return Micros(at.UnixMicro())
}
