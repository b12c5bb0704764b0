// SPDX-License-Identifier: Apache-2.0

package core

import (
	"sync/atomic"
	"time"
)

// calendar remembers the boundaries of the periods that a policy's calendar windows are in, since they take longer to
// find than everything else about a request. It is safe for concurrent use.
type calendar struct {
	zone  *time.Location // nil is UTC
	units [len(calendarUnits)]atomic.Pointer[Bounds]
}

// boundsFinder finds the boundaries for a limit. It is an interface so that a program that asks no store does without time
// zones.
type boundsFinder interface {
	bounds(l *Limit, now Micros) *Bounds
}

func newCalendar(zone *time.Location) boundsFinder { return &calendar{zone: zone} }

// bounds returns the boundaries for a limit; nil if it is not by the calendar. They begin with the period before the one
// that the front is in, so that the store's clock may be a period behind as well as one ahead. It allocates when a period
// begins.
func (c *calendar) bounds(l *Limit, now Micros) *Bounds {
	if l.calendar == 0 {
		return nil
	}
	last := &c.units[l.calendar]
	if b := last.Load(); b != nil && b[1] <= now && now < b[2] {
		return b
	}
	b := l.calendar.Bounds(now, c.zone)
	b = l.calendar.Bounds(b[0]-1, c.zone)
	last.Store(&b)
	return &b
}
