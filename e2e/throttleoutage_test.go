// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/await"
	"github.com/penstock/penstock/internal/redistest"
)

// TestRedisFailsWhileRequestsWait: those who wait do so no longer once Redis has not answered: on_error lets them all
// through, while it is still away. What was charged before is charged once, and afterwards the limit holds again.
func TestRedisFailsWhileRequestsWait(t *testing.T) {
	t.Parallel()
	for name, outage := range map[string]struct{ begin, end func(r *redistest.Server) }{
		"killed": {(*redistest.Server).Kill, (*redistest.Server).Restart},
		"frozen": {(*redistest.Server).Pause, (*redistest.Server).Resume},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
			q := &queue{t: t, p: fleet(t, 1, redis, throttled(open, "2/1s fixed_window"))[0], count: 2}
			begins(t, time.Second)
			for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i"} {
				q.join(name, "/") // c and d may go after a second, e and f after two
			}
			before := q.degraded()
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
			degraded := q.degraded()
			if degraded == before || charged+degraded != int64(len(q.here)) {
				t.Errorf("%d charged and %d let through, %d of them before: want those who waited let through", charged, degraded, before)
			}
			outage.end(redis)
			await.Until(t, patience, "requests are counted again", func() bool { return q.p.get("/hard").body != "degraded_allowed" })
			charged++ // that one
			// Whose question got no answer may have been charged, once: while Redis was busy, or when it woke up.
			// What was let through without an answer is charged when Redis is back, and the last request may be denied for it.
			most := charged + degraded
			if name == "frozen" { // Redis also does what was sent before it froze, which this node cannot know
				most += degraded
			}
			if n := sum(used(t, redis, audits)); n < charged-1 || n > most {
				t.Errorf("%d charged by Redis, want %d to %d", n, charged, most)
			}
			if a := q.p.get("/hard"); a.status != http.StatusTooManyRequests {
				t.Errorf("status %d: the limit does not hold again", a.status)
			}
		})
	}
}

// degraded is how many were let through so far because Redis did not answer.
func (q *queue) degraded() (n int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, v := range q.here {
		if v.answer.body == "degraded_allowed" {
			n++
		}
	}
	return n
}
