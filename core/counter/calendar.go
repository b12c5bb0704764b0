// SPDX-License-Identifier: Apache-2.0

package counter

import (
	"errors"
	"strconv"
)

// CalendarUnit is a calendar unit that a limit can count in. A window begins when the date changes
// in a time zone, and lasts for one day, week, month or year. The zero CalendarUnit means none.
type CalendarUnit uint8

// The calendar units.
const (
	CalendarDay CalendarUnit = iota + 1
	CalendarWeek
	CalendarMonth
	CalendarYear
)

// calendarUnits holds, for each unit, its name in policies and keys, its typical length, and the
// nearest duration that a window can have.
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

// Holds reports whether one of the three periods contains now.
func (b *Bounds) Holds(now Micros) bool { return now >= b[0] && now < b[3] }

// boundary returns boundary i. A boundary after the last one is extrapolated from the last two.
func (b *Bounds) boundary(i int) Micros {
	if last := len(b) - 1; i > last {
		return b[last] + Micros(i-last)*(b[last]-b[last-1])
	}
	return b[i]
}

// endedBy returns an instant by which period i has certainly ended. If the end is unknown, endedBy
// adds the length of all three periods, which is longer than any single period. Adding the length
// of the last period could be days too few, for example for the month after February.
func (b *Bounds) endedBy(i int) Micros {
	if last := len(b) - 1; i >= last {
		return b[last] + Micros(i-last+1)*(b[last]-b[0])
	}
	return b[i+1]
}

// Bounds.period returns the index of the period that contains now. For an instant outside the
// boundaries it returns the nearest period; no caller relies on this.
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

// Bounds.areAscending reports whether the boundaries ascend and are all instants that a store can
// represent.
func (b *Bounds) areAscending() bool {
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
// the same instant. Stale does not allocate.
func Stale(now Micros, checks []Check) error {
	for i := range checks {
		if b := checks[i].Bounds; b != nil && !b.Holds(now) {
			return errStale
		}
	}
	return nil
}

// rollCalendar advances a counter of a calendar window to the slot's instant. A counter whose
// period began at least half a period before the current period has expired. If a clock ahead of
// this one has moved the counter to a later period, the counter stays there. In all other cases the
// time zone was different or a clock was wrong, so the counter moves to the current period with its
// usage. Otherwise an edit of the time zone would grant a fresh allowance.
//
// While only one of two nodes has loaded the edit, the counter moves to and fro. Aux is the latest
// instant from which the counter was moved back, and no period that began by then resets the
// counter. Otherwise every switch between the nodes could grant another allowance. If Aux is in the
// future, a clock was wrong, and Aux is ignored.
func (l *Limit) rollCalendar(s *Slot, b *Bounds) (store bool) {
	i := b.period(s.now)
	switch at := s.State.At; {
	case at == b[i]:
	case 2*(b[i]-at) >= b[i+1]-b[i] && (int64(b[i]) > s.State.Aux || s.State.Aux > int64(s.now)):
		s.State = State{At: b[i]}
	default:
		later := i + 1
		for later < len(b) && b[later] != at {
			later++
		}
		if later < len(b) {
			i, s.now = later, at
		} else {
			if b[i] < at && at <= s.now {
				s.State.Aux = max(s.State.Aux, int64(at))
			}
			s.State.At, store = b[i], true
		}
	}
	s.ends, s.over = b.boundary(i+1), b.endedBy(i)
	return store
}
