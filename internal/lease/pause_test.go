// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"testing"

	"github.com/penstock/penstock/core"
)

// TestPauses are as long as a limit may do without being asked, give or take a half, and differ from one answer to the next.
func TestPauses(t *testing.T) {
	minute := must(core.NewLimit(core.SlidingWindow, 1000, core.Minute, 0))
	small := must(core.NewLimit(core.TokenBucket, 1000, core.Second, 100))
	for _, tt := range []struct {
		name  string
		limit *core.Limit
		left  core.Micros // of the window
		gap   core.Micros
		most  core.Micros
	}{
		{"a second", &sliding, core.Second, 20 * ms, 30 * ms},
		{"a minute", &minute, core.Minute, 50 * ms, 75 * ms},
		{"towards the end", &sliding, 21 * ms, 7 * ms, 7 * ms},
		{"at the end", &sliding, 100, 1 * ms, 1 * ms},
		{"when the end is not known", &sliding, -1, 20 * ms, 30 * ms},
		{"a bucket that is full in a second, whenever", &bucket, 21 * ms, 20 * ms, 30 * ms},
		{"a bucket that is soon full", &small, core.Second, 5 * ms, 7500},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const now = 10 * core.Second
			c := Counter{last: seen{reset: now + tt.left}}
			c.count, c.capacity, c.window, c.algorithm = tt.limit.Count(), tt.limit.Capacity(), tt.limit.Window(), tt.limit.Algorithm()
			var least, most, sum core.Micros = core.Never, 0, 0
			for i := range core.Micros(1000) {
				p := c.pause(now, begins+i*997)
				least, most, sum = min(least, p), max(most, p), sum+p
			}
			if most > tt.most || least < min(tt.gap/2, tt.most) || tt.most > tt.gap && (most-least < tt.gap*9/10 || sum/1000 < tt.gap*9/10) {
				t.Errorf("from %v to %v, %v as a rule; want %v and at most %v", least, most, sum/1000, tt.gap, tt.most)
			}
		})
	}
}

// TestWhatFlowsInIsAskedForOnceInAPause: after a grant of less than was wanted what is in hand is used, and then nothing is
// asked before the pause is over. A limit whose window ends at once is asked again, and so is one that has enough for all.
func TestWhatFlowsInIsAskedForOnceInAPause(t *testing.T) {
	for _, tt := range []struct {
		name     string
		limit    *core.Limit
		flows    bool
		left     int64 // in the store
		everyone float64
		want     Verdict
	}{
		{"a store that has refused", &sliding, true, 500, 0, Deny},
		{"a bucket that is nearly empty", &bucket, false, 1, 0.001, Deny},
		{"a window that is empty", &sliding, false, 0, 0.001, Deny},
		{"a bucket that is not", &bucket, false, 100, 0.001, Ask},
		{"a window that is not", &sliding, false, 1, 0.001, Ask},
		{"a fixed window", &fixed, false, 0, 0.001, Ask},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c Counter
			takes(t, &c, 0, tt.limit, 1, Ask)
			if tt.flows {
				c.flowUntil = 10 * ms
			}
			a := asks(t, &c, 0, tt.limit, 1)
			c.everybody = tt.everyone
			a.Max = 9
			c.Granted(500, &a, &core.Result{At: begins, Granted: 4, Remaining: tt.left, Reset: core.Second, Receipt: begins})
			for range 3 {
				takes(t, &c, 600, tt.limit, 1, Admit)
			}
			takes(t, &c, 9*ms, tt.limit, 1, tt.want)
			var r core.Result
			if c.Answer(9*ms, 1, Deny, &r); tt.want == Deny && (r.Wait < 1 || r.Wait > 21*ms) {
				t.Errorf("a client is told to wait for %v", r.Wait)
			}
			takes(t, &c, 31*ms, tt.limit, 1, Ask)
		})
	}
}
