// SPDX-License-Identifier: Apache-2.0

package core

import (
	"errors"
	"strconv"
	"time"
)

// CalendarUnit is a unit of the calendar that a limit can count in: its windows begin when the date changes in a time zone,
// and are as long as the calendar says. The zero CalendarUnit is none.
type CalendarUnit uint8

// The units of the calendar.
const (
	CalendarDay CalendarUnit = iota + 1
	CalendarWeek
	CalendarMonth
	CalendarYear
)

// calendarUnits are the units as policies and keys name them, how long they are as a rule, and the duration that is
// nearest to them.
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

// String returns the unit as policies write it: "day", "week", "month" or "year"; "none" for none.
func (u CalendarUnit) String() string {
	switch {
	case u == 0:
		return "none"
	case int(u) >= len(calendarUnits):
		return "CalendarUnit(" + strconv.Itoa(int(u)) + ")"
	}
	return calendarUnits[u].name
}

// calendarUnit returns the unit of a name.
func calendarUnit(name string) (CalendarUnit, bool) {
	for u := CalendarDay; int(u) < len(calendarUnits); u++ {
		if calendarUnits[u].name == name {
			return u, true
		}
	}
	return 0, false
}

// NewCalendarLimit returns a limit of count units per calendar unit. It counts in fixed windows. The error says which
// number is out of which bounds.
func NewCalendarLimit(count int64, unit CalendarUnit) (Limit, error) {
	if unit < CalendarDay || int(unit) >= len(calendarUnits) {
		return Limit{}, errors.New("calendar unit " + strconv.Itoa(int(unit)) + " is unknown")
	}
	if count < 1 || count > CountMax {
		return Limit{}, countOutOfBounds(FixedWindow, count, CountMax)
	}
	return Limit{algorithm: FixedWindow, calendar: unit, count: count, burst: count, window: calendarUnits[unit].span}, nil
}

// Bounds returns the boundaries of the unit's period that holds now and of the two after it, by the dates in loc (nil is
// UTC). A period begins at the first instant of its first date: not at midnight where the clocks skip that, and at the
// first of two where they strike it twice. A week begins on Monday. A date that a zone never had is no period. It takes
// some ten microseconds; the result holds until its second boundary.
func (u CalendarUnit) Bounds(now Micros, loc *time.Location) Bounds {
	if loc == nil {
		loc = time.UTC
	}
	year, month, day := time.UnixMicro(int64(now)).In(loc).Date()
	// Where the clocks are put back over midnight, yesterday comes again after today has begun: it is today still.
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

// start returns the first instant of the period that is ahead periods after the one of the date.
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

// offsetMax is further from UTC than any zone's clocks are, in hours.
const offsetMax = 26

const (
	// clocksStand is a time in which no zone's clocks change twice.
	clocksStand = 15 * time.Minute
	// clocksChange is by how much clocks change at most, but for zones that move over the date line.
	clocksChange = 2 * time.Hour
)

// dateBegins returns the first instant at which the clocks of loc show the given midnight, written as if it were in UTC, or
// anything later. It looks at the clocks and at nothing else: time.Date does not say which of two midnights it returns, and
// on the last day of a leap year Time.ZoneBounds returns spans that are over, where a zone's rules go on beyond its table.
func dateBegins(midnight time.Time, loc *time.Location) Micros {
	shown := func(at time.Time) bool {
		_, offset := at.In(loc).Zone()
		return !at.Add(time.Duration(offset) * time.Second).Before(midnight)
	}
	// Most clocks change by an hour at most, so that midnight is near where the clocks of the day before would show it.
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
	for at.Sub(before) > time.Second { // clocks change with whole seconds
		if between := before.Add(at.Sub(before) / 2).Truncate(time.Second); shown(between) {
			at = between
		} else {
			before = between
		}
	}
	return Micros(at.UnixMicro())
}

// Holds reports whether now is in one of the three periods.
func (b *Bounds) Holds(now Micros) bool { return now >= b[0] && now < b[3] }

// at returns boundary i. Those after the last one are estimated: as far apart as the last two are.
func (b *Bounds) at(i int) Micros {
	if last := len(b) - 1; i > last {
		return b[last] + Micros(i-last)*(b[last]-b[last-1])
	}
	return b[i]
}

// period returns the number of the period that holds now. Outside of the boundaries it is the nearest: nobody asks.
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

// ascending reports whether the boundaries are instants that a store can keep, each after the one before.
func (b *Bounds) ascending() bool {
	return 0 < b[0] && b[0] < b[1] && b[1] < b[2] && b[2] < b[3] && int64(b[3]) <= exactMax/2
}

// errStale is made once: when the clocks of a front and its store are apart, it is the answer to every call.
var errStale error = staleError{}

// staleError wraps [ErrUnavailable] and [ErrStale].
type staleError struct{}

func (staleError) Error() string {
	return ErrUnavailable.Error() + ": " + ErrStale.Error() + ": the clocks of this process and of the store are more than a period apart"
}

func (staleError) Unwrap() []error { return []error{ErrUnavailable, ErrStale} }

// Stale returns an error that wraps [ErrStale] and [ErrUnavailable] if the instant now is outside the boundaries of a
// check's calendar window. A store asks it before [Decide], with the instant it decides at. It does not allocate.
func Stale(now Micros, checks []Check) error {
	for i := range checks {
		if b := checks[i].Bounds; b != nil && !b.Holds(now) {
			return errStale
		}
	}
	return nil
}

// rollCalendar brings a counter of a calendar window to the slot's instant. A counter that began half a period before this
// one or earlier is over. One that a clock ahead of this one has taken to a later period goes on there. Any other (the time
// zone was another, or the clock wrong) is moved to this period with what it has counted: otherwise an edit of the time
// zone would be a fresh allowance, and two nodes of which one has not taken it over yet would give one at every turn.
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
	s.ends = b.at(i + 1)
	return store
}
