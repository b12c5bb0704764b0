// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"testing"

	"github.com/penstock/penstock/core"
)

// TestALeaseFromAFullBucket takes units in advance from a full bucket, lets it fill up again for nearly the age of the lease,
// and then uses everything: the lease, and all that the bucket has. Charged when they were taken, the units would come on
// top of a full bucket; so the bucket pays for the age, and where it is not told of it, this shows.
func TestALeaseFromAFullBucket(t *testing.T) {
	for _, unpaid := range []bool{false, true} {
		slots := make([]core.Slot, 1)
		decide := func(now core.Micros, check core.Check) core.Result {
			var r [1]core.Result
			check.Limit = &bucket
			if unpaid {
				check.Age = 0
			}
			core.Decide(begins+now, []core.Check{check}, slots, r[:])
			return r[0]
		}
		c := Counter{rates: rates{span: horizon, since: 0, used: 5000}}
		first := asks(t, &c, 0, &bucket, 1)
		r := decide(0, core.Check{Op: core.OpLook})
		r.Granted = 1
		c.Granted(0, &first, &r)
		now := 10 * core.Second
		c.turn(now)
		c.usedBefore = 5000
		a := asks(t, &c, now, &bucket, 1)
		var check core.Check
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
			takes(t, &c, now, &bucket, 1, Admit)
		}
		all := decide(now, core.Check{Op: core.OpUpTo, Cost: 5000, Min: 1, Max: 5000})
		uses = append(uses, use{begins + now, held + all.Granted})
		excess := bucketExcess(uses, 1000, 1000, int64(core.Second))
		if unpaid && excess < 10 || !unpaid && excess > 0 {
			t.Errorf("unpaid %v: %d leased for %v, %d units over", unpaid, held, a.Age, excess)
		}
		if !unpaid && held+all.Granted < 940 {
			t.Errorf("%d units of a burst of 1000", held+all.Granted)
		}
	}
}
