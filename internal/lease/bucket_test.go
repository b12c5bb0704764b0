// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/counter"
)

// TestALeaseFromAFullBucket takes units in advance from a full bucket, lets the bucket refill for
// nearly the age of the lease, and then uses both the lease and everything in the bucket. If the
// bucket did not charge for the age, the leased units would exceed the limit; the test shows that
// too.
func TestALeaseFromAFullBucket(t *testing.T) {
	for _, unpaid := range []bool{false, true} {
		slots := make([]counter.Slot, 1)
		decide := func(now counter.Micros, check counter.Check) counter.Result {
			var r [1]counter.Result
			check.Limit = &bucket
			if unpaid {
				check.Age = 0
			}
			counter.Decide(begins+now, []counter.Check{check}, slots, r[:])
			return r[0]
		}
		c := Counter{rates: rates{span: horizon, since: 0, used: 5000}}
		first := prepareCall(t, &c, 0, &bucket, 1)
		r := decide(0, counter.Check{Op: counter.OpLook})
		r.Granted = 1
		c.Granted(0, &first, &r)
		now := 10 * counter.Second
		c.nextSpan(now)
		c.usedBefore = 5000
		a := prepareCall(t, &c, now, &bucket, 1)
		var check counter.Check
		a.Fill(&check)
		r = decide(now, check)
		uses := []use{{begins + now, 1}}
		c.Granted(now, &a, &r)
		held := c.Held(now)
		if held < 20 {
			t.Fatalf("%d units leased: too few to tell", held)
		}
		now += a.Age - a.Age/100
		for range held {
			checkTake(t, &c, now, &bucket, 1, Admit)
		}
		all := decide(now, counter.Check{Op: counter.OpUpTo, Cost: 5000, Min: 1, Max: 5000})
		uses = append(uses, use{begins + now, held + all.Granted})
		excess := bucketExcess(uses, 1000, 1000, int64(counter.Second))
		if unpaid && excess < 10 || !unpaid && excess > 0 {
			t.Errorf("unpaid %v: %d leased for %v, %d units over", unpaid, held, a.Age, excess)
		}
		if !unpaid && held+all.Granted < 940 {
			t.Errorf("%d units of a burst of 1000", held+all.Granted)
		}
	}
}

// TestALeaseIsRefundedUnderItsOwnAge: some units are leased while the store is fast, and others for
// longer after it has become slow. Until a long lease ends, a bucket credits less for a short one,
// so each lease must be refunded with the age for which it was charged. Units charged for a request
// that stopped waiting are not a lease.
func TestALeaseIsRefundedUnderItsOwnAge(t *testing.T) {
	l := must(counter.NewLimit(counter.TokenBucket, 1000, counter.Second, 100_000))
	grant := func(c *Counter, now counter.Micros, a Call, granted int64) {
		a.Age = c.age()
		a.Max = max(a.Max, granted)
		c.Granted(now, &a, &counter.Result{At: begins + now, Granted: granted, Remaining: 500, Reset: counter.Second, Receipt: begins + now})
	}
	var c Counter
	grant(&c, 1000, prepareCall(t, &c, 0, &l, 1), 11)
	near := c.age()
	for range 40 {
		c.measureRTT(400 * ms)
	}
	far := c.age()
	if far <= near {
		t.Fatalf("an age of %s near the store, and of %s far from it", near, far)
	}
	grant(&c, 2000, prepareCall(t, &c, 2000, &l, 1), 21)
	waiting := prepareCall(t, &c, 3000, &l, 40)
	checkTake(t, &c, 3000, &l, 50, Wait)
	grant(&c, 4000, Call{Cost: 90, Min: 40, own: 40, sent: waiting.sent, epoch: waiting.epoch}, 90)
	c.Leave(50)
	ages := map[int64]counter.Micros{}
	for _, b := range c.Release(nil) {
		ages[b.Units] = b.Age
	}
	if diff := cmp.Diff(map[int64]counter.Micros{10: near, 20: far, 50: unleased}, ages); diff != "" {
		t.Errorf("what goes back, and its ages (-want +got):\n%s", diff)
	}
}
