// SPDX-License-Identifier: Apache-2.0

//go:build !penstock_filter

package core

import (
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core/counter"
)

// calendar caches the boundaries of the current calendar periods of a policy, which take longer to
// compute than the rest of a decision. A calendar is safe for concurrent use.
type calendar struct {
	zone  *time.Location // nil means UTC
	units [counter.CalendarYear + 1]atomic.Pointer[counter.Bounds]
}

func newCalendar(zone *time.Location) boundsFinder { return &calendar{zone: zone} }

// calendar.bounds returns the boundaries for a limit, nil for a limit without a calendar window.
// The boundaries span three periods, with the current one in the middle, so the store's clock can
// differ from the front's by a period. calendar.bounds allocates only when a period begins.
func (c *calendar) bounds(l *counter.Limit, now counter.Micros) *counter.Bounds {
	if l.Calendar() == 0 {
		return nil
	}
	last := &c.units[l.Calendar()]
	if b := last.Load(); b != nil && b[1] <= now && now < b[2] {
		return b
	}
	b := l.Calendar().Bounds(now, c.zone)
	b = l.Calendar().Bounds(b[0]-1, c.zone)
	last.Store(&b)
	return &b
}
