// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"log/slog"
	"sync/atomic"
	"time"
)

// reportEvery is the minimum time between two log lines of one kind: an outage of a minute logs six
// lines, not six million.
const reportEvery = 10 * time.Second

// reporter counts failures by kind and logs them at a bounded rate: the first at once, then one
// line per reportEvery with the number of failures since the last line. A reporter takes no lock
// and allocates only when it logs. A reporter is safe for concurrent use.
type reporter struct {
	logger *slog.Logger
	server string // without credentials
	start  time.Time
	kinds  [kindCount]tally
}

// breakerReporter logs the state changes of one server's circuit breaker.
type breakerReporter struct {
	logger     *slog.Logger
	server     string // without credentials
	start      time.Time
	states     tally        // changes of the breaker's state
	lastLogged BreakerState // the state that was logged last
	opened     time.Time    // when the breaker opened, according to the last log line
}

type tally struct {
	total  atomic.Uint64
	logged atomic.Uint64 // the total number of failures that have been logged
	due    atomic.Int64  // the time before which nothing is logged, in nanoseconds since start
}

// reporter.recordFailures records that n calls failed with f.
func (r *reporter) recordFailures(now time.Time, f *Failure, n uint64) {
	t := &r.kinds[f.Kind]
	total := t.total.Add(n)
	if f.Kind == KindCanceled || f.Kind == KindClosed || !t.claim(now.Sub(r.start)) {
		return
	}
	r.logger.Warn("rate limit checks fail: "+f.Error(),
		"kind", f.Kind.String(), "calls", total-t.logged.Swap(total), "redis", r.server)
}

// breakerReporter.recordState records a new state of the breaker. An outage is logged in two lines,
// when the breaker opens and when it closes. The end is logged for every outage whose beginning was
// logged; otherwise the last log line would suggest that the outage continues. There are at most
// two lines per reportEvery. The breaker's lock serializes the calls.
func (r *breakerReporter) recordState(now time.Time, state BreakerState) {
	total := r.states.total.Add(1)
	switch {
	case state == BreakerClosed && r.lastLogged != BreakerClosed:
		r.log("circuit breaker of redis is closed again", state, total, "open", now.Sub(r.opened).Round(time.Millisecond))
	case state == BreakerOpen && r.states.claim(now.Sub(r.start)):
		if r.lastLogged == BreakerClosed {
			r.opened = now
		}
		r.log("circuit breaker of redis is now open", state, total)
	}
}

// breakerReporter.untried is invoked when the breaker has been half open for a while because there
// were no requests. It logs this once for each logged outage. The breaker's lock serializes the
// calls of untried and recordState.
func (r *breakerReporter) untried() {
	if r.lastLogged == BreakerOpen {
		r.log("redis answers again, and its circuit breaker closes with the next request", BreakerHalfOpen, r.states.total.Load())
	}
}

// breakerReporter.log writes a line about a change of the breaker's state.
func (r *breakerReporter) log(text string, state BreakerState, total uint64, args ...any) {
	r.lastLogged = state
	r.logger.Warn(text, append([]any{"state", state.String(), "changes", total - r.states.logged.Swap(total), "redis", r.server}, args...)...)
}

// tally.claim reports whether a line may be logged now. Of several concurrent callers, at most one
// gets true.
func (t *tally) claim(since time.Duration) bool {
	due := t.due.Load()
	return int64(since) >= due && t.due.CompareAndSwap(due, int64(since+reportEvery))
}
