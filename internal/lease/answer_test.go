// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/counter"
)

// TestAnswers: the result of a decision from held units equals the result that the store would have
// returned. Its times are on the store's clock, and its remaining units are those of the store plus
// the held ones.
func TestAnswers(t *testing.T) {
	for _, tt := range []struct {
		name    string
		limit   *counter.Limit
		cost    int64
		verdict Verdict
		want    counter.Result
	}{
		{"admitted", &fixed, 2, Admit, counter.Result{Granted: 2, Remaining: 502, Reset: 300 * ms, Next: 300 * ms}},
		{"admitted, and more is asked for", &sliding, 2, AdmitAsk, counter.Result{Granted: 2, Remaining: 502, Reset: 300 * ms, Next: 300 * ms}},
		{"denied", &sliding, 5, Deny, counter.Result{Denied: true, Wait: 200 * ms, Remaining: 2, Reset: 300 * ms, Next: 300 * ms}},
		{"denied for ever", &fixed, 1001, Deny, counter.Result{Denied: true, Wait: counter.Never, Remaining: 2, Reset: 300 * ms, Next: 300 * ms}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c Counter
			leases(t, &c, tt.limit, 0, 0, 400*ms, 2)
			if tt.verdict == Deny {
				a := prepareCall(t, &c, 0, tt.limit, 5)
				c.Granted(0, &a, &counter.Result{At: begins, Denied: true, Wait: 300 * ms, Reset: 400 * ms, Next: 400 * ms})
			}
			var got counter.Result
			c.Answer(100*ms, tt.cost, tt.verdict, &got)
			tt.want.At = begins + 100*ms
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestTheStoresWaitIsReported checks that the client gets the store's wait, rather than the shorter
// time for which the denial is remembered.
func TestTheStoresWaitIsReported(t *testing.T) {
	var c Counter
	year := must(counter.ParseLimit("10/year"))
	a := prepareCall(t, &c, 0, &year, 1)
	c.Granted(0, &a, &counter.Result{Denied: true, Wait: 300 * counter.Day, Reset: 300 * counter.Day, LeasedIn: 100 * ms})
	checkTake(t, &c, 50*ms, &year, 1, Deny)
	var r counter.Result
	if c.Answer(50*ms, 1, Deny, &r); r.Wait != 300*counter.Day-50*ms {
		t.Errorf("wait %v", r.Wait)
	}
}

// TestNothingIsAllocated: no method of a counter allocates.
func TestNothingIsAllocated(t *testing.T) {
	var (
		c     Counter
		r     counter.Result
		check counter.Check
		now   counter.Micros
	)
	backs := make([]Refund, 0, refundsMax)
	allocs := testing.AllocsPerRun(1000, func() {
		now += 90 * ms
		a, _ := c.Ask(now, &sliding, 1)
		c.Take(now, &sliding, 1)
		a.Fill(&check)
		c.Granted(now+1, &a, &counter.Result{Granted: 20, Remaining: 10, Reset: 50 * ms, Receipt: begins})
		c.Serve(now+1, &sliding, 1)
		_, held := c.Take(now+2, &sliding, 3)
		c.Answer(now+2, 3, Admit, &r)
		c.PutBack(now+2, 3, held)
		backs = c.Tick(now+3, backs[:0])
		backs = c.Release(backs[:0])
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}
