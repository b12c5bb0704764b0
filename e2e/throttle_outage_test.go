// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestRedisFailsWhileRequestsWait tests that throttled requests stop waiting when Redis does not
// answer, and that on_error admits all of them. A charge from before the outage is not repeated.
// After the outage, the limit is enforced again.
func TestRedisFailsWhileRequestsWait(t *testing.T) {
	t.Parallel()
	for name, outage := range map[string]struct{ begin, end func(r *redistest.Server) }{
		"killed": {(*redistest.Server).Kill, (*redistest.Server).Restart},
		"frozen": {(*redistest.Server).Pause, (*redistest.Server).Resume},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
			q := &queue{t: t, p: fleet(t, 1, redis, throttleCaddyfile(open, "2/1s fixed_window"))[0], count: 2}
			awaitWindow(t, time.Second)
			for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i"} {
				q.join(name, "/") // c and d may pass after one second, e and f after two
			}
			before := q.countDegraded()
			outage.begin(redis)
			start := time.Now()
			q.group.Wait()
			if took := time.Since(start); took > answerWithin {
				t.Errorf("the last was answered after %v", took)
			}
			var charged int64
			for _, v := range q.here {
				if v.answer.status != http.StatusOK {
					t.Errorf("%s: status %d", v.name, v.answer.status)
				}
				if v.answer.body == "allowed" {
					charged++
				}
			}
			degraded := q.countDegraded()
			if degraded == before || charged+degraded != int64(len(q.here)) {
				t.Errorf("%d charged and %d let through, %d of them before: want those who waited let through", charged, degraded, before)
			}
			outage.end(redis)
			eventually.Until(t, patience, "requests are counted again", func() bool { return q.p.get("/hard").body != "degraded_allowed" })
			charged++ // the last request to /hard
			// A request that was admitted without an answer of Redis is charged at most once. It is
			// charged when a frozen Redis continues, or when a killed Redis has restarted. Because
			// of that charge, the last request to /hard may have been denied.
			if n := sum(readUsed(t, redis, audits)); n < charged-1 || n > charged+degraded {
				t.Errorf("%d charged by Redis, want %d to %d", n, charged, charged+degraded)
			}
			if a := q.p.get("/hard"); a.status != http.StatusTooManyRequests {
				t.Errorf("status %d: the limit does not hold again", a.status)
			}
		})
	}
}

// countDegraded returns the number of requests admitted so far because Redis did not answer.
func (q *queue) countDegraded() (n int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, v := range q.here {
		if v.answer.body == "degraded_allowed" {
			n++
		}
	}
	return n
}
