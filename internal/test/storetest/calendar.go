// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // so that the exam also runs on a machine without time zone data

	corecounter "github.com/penstock/penstock/core/counter"
)

// calendar computes calendar windows of one unit in a time zone. It finds a boundary by searching
// for the instant at which the date changes. So it is right even if the zone's clocks change at
// that time.
type calendar struct {
	unit string // day, week, month or year
	zone *time.Location
	last corecounter.Bounds // the last computed boundaries
}

// calendarUnits are all units of calendar windows.
var calendarUnits = []string{"day", "week", "month", "year"}

// unitOf returns the calendar unit of a limit that is written as in a policy, or "" if it has none.
func unitOf(limit string) string {
	_, window, _ := strings.Cut(limit, "/")
	window, _, _ = strings.Cut(window, " ")
	for _, unit := range calendarUnits {
		if window == unit {
			return unit
		}
	}
	return ""
}

// newZoned returns the calendar of a unit in the time zone with the given IANA name.
func newZoned(unit, name string) *calendar {
	zone, err := time.LoadLocation(name)
	if err != nil {
		panic(err) // a mistake in the exam itself
	}
	return &calendar{unit: unit, zone: zone}
}

// calendar.limit returns a limit of the given count per unit of the calendar.
func (c *calendar) limit(count int64) corecounter.Limit {
	l, err := corecounter.ParseLimit(fmt.Sprintf("%d/%s", count, c.unit))
	if err != nil {
		panic(err) // a mistake in the exam itself
	}
	return l
}

// calendar.day returns the first day, in the zone, of a period. If ahead is 0, that is the period
// that contains the instant at. If ahead is n, it is the n-th period after that one.
func (c *calendar) day(at corecounter.Micros, ahead int) (year int, month time.Month, day int) {
	year, month, day = time.UnixMicro(int64(at)).In(c.zone).Date()
	switch c.unit {
	case "day":
		day += ahead
	case "week":
		weekday := time.Date(year, month, day, 12, 0, 0, 0, time.UTC).Weekday()
		day += 7*ahead - (int(weekday)+6)%7 // Monday is the first
	case "month":
		month, day = month+time.Month(ahead), 1
	default:
		year, month, day = year+ahead, 1, 1
	}
	return time.Date(year, month, day, 12, 0, 0, 0, time.UTC).Date()
}

// boundary returns the start of a period. The arguments at and ahead select the period as in the
// method day.
func (c *calendar) boundary(at corecounter.Micros, ahead int) corecounter.Micros {
	year, month, day := c.day(at, ahead)
	noon := corecounter.Micros(time.Date(year, month, day, 12, 0, 0, 0, time.UTC).UnixMicro())
	before, since := noon-3*corecounter.Day, noon+2*corecounter.Day // no zone is that far from UTC
	for since-before > 1 {
		between := before + (since-before)/2
		y, m, d := time.UnixMicro(int64(between)).In(c.zone).Date()
		if y < year || y == year && (m < month || m == month && d < day) {
			before = between
		} else {
			since = between
		}
	}
	return since
}

// calendar.bounds returns the boundaries that a caller sends if its clock shows the instant at.
func (c *calendar) bounds(at corecounter.Micros) *corecounter.Bounds {
	b := c.last
	if at < b[0] || at >= b[1] {
		ahead := 0
		for i := range b {
			b[i] = c.boundary(at, ahead)
			for ahead++; c.boundary(at, ahead) == b[i]; ahead++ { // skips a date that does not exist in the zone
			}
		}
		c.last = b
	}
	return &b
}

// calendar.dated returns the check with the boundaries that a caller sends if its clock shows the
// instant at.
func (c *calendar) dated(k corecounter.Check, at corecounter.Micros) corecounter.Check {
	k.Bounds = c.bounds(at)
	return k
}
