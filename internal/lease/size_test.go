// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"testing"

	"github.com/penstock/penstock/core/counter"
)

// TestHowMuchIsAsked checks how many units a node takes in advance at a given rate of requests, in
// units per 100 ms, under a limit of 1,000 per second.
func TestHowMuchIsAsked(t *testing.T) {
	const now = 10 * counter.Second
	for _, tt := range []struct {
		name    string
		limit   *counter.Limit
		rate    int64
		counter Counter
		want    int64
	}{
		{"as much as a horizon brings", &fixed, 30, Counter{last: lastAnswer{reset: now + counter.Second}}, 30},
		{"less than two is not worth it", &fixed, 1, Counter{last: lastAnswer{reset: now + counter.Second}}, 0},
		{"no more than the limit's twentieth", &fixed, 300, Counter{last: lastAnswer{reset: now + counter.Second}}, 50},
		{"not beyond the window's end", &fixed, 30, Counter{last: lastAnswer{reset: now + 20*ms}}, 6},
		{"a little, where the window's end is not known", &fixed, 30, Counter{last: lastAnswer{reset: now}}, 15},
		{"no more than twice as much as before, and four", &fixed, 30, Counter{last: lastAnswer{reset: now + counter.Second}, lastWanted: 5}, 14},
		{"four times as long as a call takes", &fixed, 20, Counter{last: lastAnswer{reset: now + counter.Second}, rtt: 40 * ms}, 32},
		{"nothing where a lease ends before it is of use", &bucket, 30, Counter{rtt: 20 * ms}, 0},
		{"of a bucket half of what a lease lasts", &bucket, 40, Counter{}, 10},
		{"what arrives between two calls, if the store is empty", &sliding, 30, Counter{last: lastAnswer{reset: now + counter.Second}, flowUntil: now + 1}, 9},
		{"beside what is in hand", &fixed, 30, Counter{last: lastAnswer{reset: now + counter.Second}, slots: [2]slot{{units: 10, until: now + 1}}}, 20},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := tt.counter
			c.count, c.capacity, c.window, c.algorithm = tt.limit.Count(), tt.limit.Capacity(), tt.limit.Window(), tt.limit.Algorithm()
			c.heard, c.since, c.span = true, now, horizon
			c.usedBefore, c.arrivedBefore = tt.rate, tt.rate
			if a := prepareCall(t, &c, now, tt.limit, 1); a.Max-a.Cost != tt.want || a.Cost != 1 || a.Plain() != (tt.want == 0) {
				t.Errorf("asks %+v: %d in advance, want %d", a, a.Max-a.Cost, tt.want)
			}
		})
	}
}

// TestDenialByAnotherCheck: a denial by another check of the call says nothing about this counter.
// So after such a denial, the requests that wait make calls themselves, and the counter may lease
// as much as before.
func TestDenialByAnotherCheck(t *testing.T) {
	var c Counter
	a := prepareCall(t, &c, 0, &fixed, 1)
	checkTake(t, &c, 0, &fixed, 1, Wait)
	c.lastExtra = 7
	c.Granted(1, &a, &counter.Result{Remaining: 0, Reset: counter.Second})
	checkServe(t, &c, 2, &fixed, 1, Ask)
	checkTake(t, &c, 3, &fixed, 1, Ask)
	if c.lastExtra != 7 {
		t.Error("what it had leased is forgotten")
	}
}

// TestSmallRequestsWaitTheirTurn: a small request waits behind a large one, even if enough units
// are held for it.
func TestSmallRequestsWaitTheirTurn(t *testing.T) {
	var c Counter
	leases(t, &c, &fixed, 0, 1, counter.Second, 3)
	prepareCall(t, &c, 2, &fixed, 5)
	checkTake(t, &c, 3, &fixed, 1, Admit)
	checkTake(t, &c, 3, &fixed, 4, Wait)
	checkTake(t, &c, 3, &fixed, 1, Wait)
	c.Leave(4)
	c.Leave(1)
	checkTake(t, &c, 4, &fixed, 1, Admit)
}
