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

// calendarSkew is how far the front's clock may be ahead of the store's, beside being behind: for so long after a new
// period has begun, the boundaries that are sent still begin with the one before. They hold the next two anyway.
const calendarSkew = Hour

// bounds returns the boundaries for a limit; nil if it is not by the calendar. It allocates when a period begins.
func (c *calendar) bounds(l *Limit, now Micros) *Bounds {
	if l.calendar == 0 {
		return nil
	}
	now -= calendarSkew
	last := &c.units[l.calendar]
	if b := last.Load(); b != nil && b[0] <= now && now < b[1] {
		return b
	}
	b := l.calendar.Bounds(now, c.zone)
	last.Store(&b)
	return &b
}
