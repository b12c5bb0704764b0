// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core/counter"
)

// processClock shows the time of the wall clock at New, plus the time that has passed on the
// monotonic clock since then. So it does not go back when the wall clock is set. However, the
// monotonic clock stops while the machine sleeps, and the wall clock might have been wrong at New.
// The store would then remain in a different calendar period than its callers. So if the period of
// a call does not contain the clock's time, the clock is set to the wall clock. A processClock is
// safe for concurrent use.
type processClock struct {
	started time.Time
	base    atomic.Int64 // microseconds
}

func newProcessClock() *processClock {
	c := &processClock{started: time.Now()}
	c.base.Store(c.started.UnixMicro())
	return c
}

func (c *processClock) now() counter.Micros {
	return counter.Micros(c.base.Load() + time.Since(c.started).Microseconds())
}

// followMin is the least difference between the clocks that is corrected. Smaller differences arise
// because the clocks are read one after the other.
const followMin = counter.Second

// processClock.follow sets the clock to the wall clock and reports whether they differed.
func (c *processClock) follow() bool {
	now := time.Now()
	ahead := counter.Micros(now.UnixMicro()) - c.now()
	if -followMin < ahead && ahead < followMin {
		return false
	}
	c.base.Store(now.UnixMicro() - now.Sub(c.started).Microseconds())
	return true
}
