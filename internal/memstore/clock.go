// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core"
)

// ownClock is the wall clock when the store was made plus the time since then on the monotonic clock, so that it does not
// go back when the wall clock is set. But the monotonic clock stands while the machine sleeps, or is moved to another, and
// a wall clock that was wrong at first is set right: then the store would know another day than its callers, for good. So
// when it is asked about a day it does not know, it follows the wall clock. It is safe for concurrent use.
type ownClock struct {
	started time.Time
	base    atomic.Int64 // microseconds
}

func newOwnClock() *ownClock {
	c := &ownClock{started: time.Now()}
	c.base.Store(c.started.UnixMicro())
	return c
}

func (c *ownClock) now() core.Micros {
	return core.Micros(c.base.Load() + time.Since(c.started).Microseconds())
}

// followMin is the least difference that is worth following: less is what two readings of a clock differ by.
const followMin = core.Second

// follow sets the clock by the wall clock, and reports whether they differed.
func (c *ownClock) follow() bool {
	now := time.Now()
	ahead := core.Micros(now.UnixMicro()) - c.now()
	if -followMin < ahead && ahead < followMin {
		return false
	}
	c.base.Store(now.UnixMicro() - now.Sub(c.started).Microseconds())
	return true
}
