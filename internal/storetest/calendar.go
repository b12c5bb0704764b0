// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // the exam says the same on a machine without zones

	"github.com/penstock/penstock/core"
)

// calendar is what a calendar window is a part of: days, weeks, months or years in a zone. It works boundaries out by
// looking for the instant at which the date changes, whatever the zone's clocks do then.
type calendar struct {
	unit string // day, week, month or year
	zone *time.Location
	last core.Bounds // as they were worked out last
}

// calendarUnits are all units of calendar windows.
var calendarUnits = []string{"day", "week", "month", "year"}

// unitOf returns the calendar unit of a limit as policies write it, "" if it has none.
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

// zoned returns the calendar of a unit in a zone by its IANA name.
func zoned(unit, name string) *calendar {
	zone, err := time.LoadLocation(name)
	if err != nil {
		panic(err) // a mistake in the exam itself
	}
	return &calendar{unit: unit, zone: zone}
}

// limit returns a limit per unit.
func (c *calendar) limit(count int64) core.Limit {
	l, err := core.ParseLimit(fmt.Sprintf("%d/%s", count, c.unit))
	if err != nil {
		panic(err) // a mistake in the exam itself
	}
	return l
}

// day returns the first day of the period that holds an instant, as the zone's clocks show it, and ahead periods later.
func (c *calendar) day(at core.Micros, ahead int) (year int, month time.Month, day int) {
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

// boundary returns the start of the period that holds an instant, or of the one ahead periods later.
func (c *calendar) boundary(at core.Micros, ahead int) core.Micros {
	year, month, day := c.day(at, ahead)
	noon := core.Micros(time.Date(year, month, day, 12, 0, 0, 0, time.UTC).UnixMicro())
	before, since := noon-3*core.Day, noon+2*core.Day // no zone is that far from UTC
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

// bounds returns what a caller sends whose clock shows an instant.
func (c *calendar) bounds(at core.Micros) *core.Bounds {
	b := c.last
	if at < b[0] || at >= b[1] {
		ahead := 0
		for i := range b {
			b[i] = c.boundary(at, ahead)
			for ahead++; c.boundary(at, ahead) == b[i]; ahead++ { // a date that the zone never had
			}
		}
		c.last = b
	}
	return &b
}

// dated returns the check with the boundaries that a caller sends whose clock shows an instant.
func (c *calendar) dated(k core.Check, at core.Micros) core.Check {
	k.Bounds = c.bounds(at)
	return k
}
