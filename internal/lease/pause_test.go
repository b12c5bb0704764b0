// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"testing"

	"github.com/penstock/penstock/core/counter"
)

// TestPauses: pauses last as long as the gap of the limit, plus or minus half of it, and differ
// from answer to answer.
func TestPauses(t *testing.T) {
	minute := must(counter.NewLimit(counter.SlidingWindow, 1000, counter.Minute, 0))
	small := must(counter.NewLimit(counter.TokenBucket, 1000, counter.Second, 100))
	for _, tt := range []struct {
		name  string
		limit *counter.Limit
		left  counter.Micros // left of the window
		gap   counter.Micros
		most  counter.Micros
	}{
		{name: "a second", limit: &sliding, left: counter.Second, gap: 20 * ms, most: 30 * ms},
		{name: "a minute", limit: &minute, left: counter.Minute, gap: 50 * ms, most: 75 * ms},
		{name: "towards the end", limit: &sliding, left: 21 * ms, gap: 7 * ms, most: 7 * ms},
		{name: "at the end", limit: &sliding, left: 100, gap: 1 * ms, most: 1 * ms},
		{name: "when the end is not known", limit: &sliding, left: -1, gap: 20 * ms, most: 30 * ms},
		{name: "a bucket that is full in a second, whenever", limit: &bucket, left: 21 * ms, gap: 20 * ms, most: 30 * ms},
		{name: "a bucket that is soon full", limit: &small, left: counter.Second, gap: 5 * ms, most: 7500},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const now = 10 * counter.Second
			c := Counter{last: lastAnswer{reset: now + tt.left}}
			c.count, c.capacity, c.window, c.algorithm = tt.limit.Count(), tt.limit.Capacity(), tt.limit.Window(), tt.limit.Algorithm()
			var least, most, sum counter.Micros = counter.Never, 0, 0
			for i := range counter.Micros(1000) {
				p := c.pause(now, begins+i*997)
				least, most, sum = min(least, p), max(most, p), sum+p
			}
			if most > tt.most || least < min(tt.gap/2, tt.most) || tt.most > tt.gap && (most-least < tt.gap*9/10 || sum/1000 < tt.gap*9/10) {
				t.Errorf("from %v to %v, %v as a rule; want %v and at most %v", least, most, sum/1000, tt.gap, tt.most)
			}
		})
	}
}

// TestOneCallInEachPause: after a call that was granted less than it wanted, the units are used,
// and no call is made before the pause is over. The next call is made at once if the window ends,
// or if the store has enough for all.
func TestOneCallInEachPause(t *testing.T) {
	for _, tt := range []struct {
		name     string
		limit    *counter.Limit
		flows    bool
		left     int64 // left in the store
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
			checkTake(t, &c, 0, tt.limit, 1, Ask)
			if tt.flows {
				c.flowUntil = 10 * ms
			}
			a := prepareCall(t, &c, 0, tt.limit, 1)
			c.everybody = tt.everyone
			a.Max = 9
			c.Granted(500, &a, &counter.Result{At: begins, Granted: 4, Remaining: tt.left, Reset: counter.Second, Receipt: begins})
			for range 3 {
				checkTake(t, &c, 600, tt.limit, 1, Admit)
			}
			checkTake(t, &c, 9*ms, tt.limit, 1, tt.want)
			var r counter.Result
			if c.Answer(9*ms, 1, Deny, &r); tt.want == Deny && (r.Wait < 1 || r.Wait > 21*ms) {
				t.Errorf("a client is told to wait for %v", r.Wait)
			}
			checkTake(t, &c, 31*ms, tt.limit, 1, Ask)
		})
	}
}
