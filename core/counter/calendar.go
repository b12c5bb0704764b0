// SPDX-License-Identifier: Apache-2.0

package counter

import (
	"errors"
	"strconv"
	"time"
)

// CalendarUnit is a calendar unit that a limit can count in. Its windows begin when the date
// changes in a time zone, and last as long as the calendar period does. The zero CalendarUnit means
// none.
type CalendarUnit uint8

// The calendar units.
const (
	CalendarDay CalendarUnit = iota + 1
	CalendarWeek
	CalendarMonth
	CalendarYear
)

// calendarUnits holds, for each unit, its name in policies and keys, its typical length, and the
// nearest duration.
var calendarUnits = [...]struct {
	name    string
	span    Micros
	nearest string
}{
	CalendarDay:   {"day", Day, "1d"},
	CalendarWeek:  {"week", 7 * Day, "7d"},
	CalendarMonth: {"month", 30 * Day, "30d"},
	CalendarYear:  {"year", 365 * Day, "31d at most"},
}

// String returns the unit as policies write it: "day", "week", "month" or "year". The zero unit is
// "none".
func (u CalendarUnit) String() string {
	switch {
	case u == 0:
		return "none"
	case int(u) >= len(calendarUnits):
		return "CalendarUnit(" + strconv.Itoa(int(u)) + ")"
	}
	return calendarUnits[u].name
}

// calendarUnit returns the unit with the given name.
func calendarUnit(name string) (CalendarUnit, bool) {
	for u := CalendarDay; int(u) < len(calendarUnits); u++ {
		if calendarUnits[u].name == name {
			return u, true
		}
	}
	return 0, false
}

// NewCalendarLimit returns a limit of count units per calendar unit, counted in fixed windows. The
// error names the number that is out of bounds, and the bounds.
func NewCalendarLimit(count int64, unit CalendarUnit) (Limit, error) {
	if unit < CalendarDay || int(unit) >= len(calendarUnits) {
		return Limit{}, errors.New("calendar unit " + strconv.Itoa(int(unit)) + " is unknown")
	}
	if count < 1 || count > CountMax {
		return Limit{}, countOutOfBounds(FixedWindow, count, CountMax)
	}
	return Limit{algorithm: FixedWindow, calendar: unit, count: count, burst: count, window: calendarUnits[unit].span}, nil
}

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
	// If the clocks go back across midnight, they show yesterday's date again after today has
	// begun. The current period is still today's.
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

// start returns the first instant of the period that contains the date or, if ahead is positive, of
// the period that comes that many periods later.
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
	return dateBegins(time.Date(year, month, day, 0, 0, 0, 0, time.UTC), loc)
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

// dateBegins returns the first instant at which the clocks of loc show the given midnight or later.
// The argument is the local date and time, stored as if it were UTC. dateBegins only compares UTC
// offsets: time.Date does not specify which of two midnights it returns, and on the last day of a
// leap year Time.ZoneBounds returns spans in the past for a zone whose rules extend beyond its
// table.
func dateBegins(midnight time.Time, loc *time.Location) Micros {
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

// Holds reports whether one of the three periods contains now.
func (b *Bounds) Holds(now Micros) bool { return now >= b[0] && now < b[3] }

// at returns boundary i. A boundary after the last one is extrapolated from the last two.
func (b *Bounds) at(i int) Micros {
	if last := len(b) - 1; i > last {
		return b[last] + Micros(i-last)*(b[last]-b[last-1])
	}
	return b[i]
}

// over returns an instant by which period i has certainly ended. If the end is unknown, over adds
// the length of all three periods, which is longer than any single period. Adding the length of the
// last period could be days too few, for example for the month after February.
func (b *Bounds) over(i int) Micros {
	if last := len(b) - 1; i >= last {
		return b[last] + Micros(i-last+1)*(b[last]-b[0])
	}
	return b[i+1]
}

// period returns the index of the period that contains now. For an instant outside the boundaries
// it returns the nearest period; no caller relies on this.
func (b *Bounds) period(now Micros) int {
	switch {
	case now < b[1]:
		return 0
	case now < b[2]:
		return 1
	default:
		return 2
	}
}

// ascending reports whether the boundaries ascend and are all instants that a store can represent.
func (b *Bounds) ascending() bool {
	return 0 < b[0] && b[0] < b[1] && b[1] < b[2] && b[2] < b[3] && int64(b[3]) <= exactMax/2
}

// errStale is allocated only once, because every call fails with it while the clocks of the process
// and the store differ.
var errStale error = staleError{}

// staleError wraps [ErrUnavailable] and [ErrStale].
type staleError struct{}

// Error implements error.
func (staleError) Error() string {
	return ErrUnavailable.Error() + ": " + ErrStale.Error() + ": the clocks of this process and of the store are more than a period apart"
}

// Unwrap returns the two wrapped errors.
func (staleError) Unwrap() []error { return []error{ErrUnavailable, ErrStale} }

// Stale returns an error that wraps [ErrStale] and [ErrUnavailable] if now is outside the
// boundaries of a check's calendar window, otherwise nil. A store calls it before [Decide], with
// the same instant. It does not allocate.
func Stale(now Micros, checks []Check) error {
	for i := range checks {
		if b := checks[i].Bounds; b != nil && !b.Holds(now) {
			return errStale
		}
	}
	return nil
}

// rollCalendar brings a counter of a calendar window to the slot's instant. A counter whose period
// began at least half a period before the current one has expired. If a clock ahead of this one has
// moved the counter to a later period, the counter stays there. In all other cases the time zone
// was different or a clock was wrong, so the counter moves to the current period with its usage.
// Otherwise an edit of the time zone would grant a fresh allowance. While only one of two nodes has
// loaded the edit, every switch between the nodes would grant another.
func (l *Limit) rollCalendar(s *Slot, b *Bounds) (store bool) {
	i := b.period(s.now)
	switch at := s.State.At; {
	case at == b[i]:
	case 2*(b[i]-at) >= b[i+1]-b[i]:
		s.State = State{At: b[i]}
	default:
		later := i + 1
		for later < len(b) && b[later] != at {
			later++
		}
		if later < len(b) {
			i, s.now = later, at
		} else {
			s.State.At, store = b[i], true
		}
	}
	s.ends, s.over = b.at(i+1), b.over(i)
	return store
}
