// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"errors"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/penstock/penstock/core"
)

// outageLogEvery is the least time between two log lines about checks the store did not answer: an outage of an hour is
// 360 lines, not as many as there were requests.
const outageLogEvery = 10 * time.Second

// outage logs decisions made without the store. Safe for concurrent use; it takes no lock.
type outage struct {
	due   atomic.Int64 // Unix nanoseconds before which nothing is logged
	since atomic.Int64 // decisions since the last line
}

// note records one decision at an instant.
func (o *outage) note(logger *zap.Logger, now time.Time, d *core.Decision, err error) {
	count := o.since.Add(1)
	due := o.due.Load()
	if now.UnixNano() < due || !o.due.CompareAndSwap(due, now.Add(outageLogEvery).UnixNano()) {
		return
	}
	o.since.Add(-count)
	what := "the store does not answer, on_error decides"
	if errors.Is(err, core.ErrOverloaded) {
		what = "more requests wait for the store than it can answer, and are refused"
	}
	logger.Warn(what, zap.Error(err), zap.String("decision", d.Outcome.String()),
		zap.Int64("requests", count))
}
