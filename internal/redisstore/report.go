// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"log/slog"
	"sync/atomic"
	"time"
)

// reportEvery is the least time between two log lines of one kind: an outage of a minute is six lines, not six million.
const reportEvery = 10 * time.Second

// reporter counts failures by kind and logs them at a bounded rate: the first at once, then one line per reportEvery with
// the number since. Safe for concurrent use; no lock, no allocation unless a line is written.
type reporter struct {
	logger *slog.Logger
	server string // without credentials
	start  time.Time
	kinds  [kindCount]tally
}

// breakerReporter logs what becomes of one server's circuit breaker.
type breakerReporter struct {
	logger *slog.Logger
	server string // without credentials
	start  time.Time
	states tally        // changes of the breaker's state
	told   BreakerState // the last one that the log was told of
}

type tally struct {
	total  atomic.Uint64
	logged atomic.Uint64 // how many of total the log has told of
	due    atomic.Int64  // nanoseconds since start before which nothing is logged
}

// failed records that n calls failed with f.
func (r *reporter) failed(now time.Time, f *Failure, n uint64) {
	t := &r.kinds[f.Kind]
	total := t.total.Add(n)
	if f.Kind == KindCanceled || f.Kind == KindClosed || !t.claim(now.Sub(r.start)) {
		return
	}
	r.logger.Warn("rate limit checks fail: "+f.Error(),
		"kind", f.Kind.String(), "calls", total-t.logged.Swap(total), "redis", r.server)
}

// changed records a new state of the breaker. The end of an outage is told whenever its beginning was, or the log's last
// word would be that it lasts: at most two lines per reportEvery. The breaker's lock makes the calls one after the other.
func (r *breakerReporter) changed(now time.Time, state BreakerState) {
	total := r.states.total.Add(1)
	if state == BreakerClosed {
		if r.told == BreakerClosed {
			return
		}
	} else if !r.states.claim(now.Sub(r.start)) {
		return
	}
	r.told = state
	r.logger.Warn("circuit breaker of redis is now "+state.String(),
		"state", state.String(), "changes", total-r.states.logged.Swap(total), "redis", r.server)
}

// claim reports whether a line may be written now. Of several callers at most one is told so.
func (t *tally) claim(since time.Duration) bool {
	due := t.due.Load()
	return int64(since) >= due && t.due.CompareAndSwap(due, int64(since+reportEvery))
}
