// SPDX-License-Identifier: Apache-2.0

package counter

import (
	"fmt"
	"github.com/penstock/penstock/internal/test/seed"
	"math/rand/v2"
	"testing"
)

// TestRefundRestoresWhatTheChargeStillLacks: a refund after the bucket has filled adds nothing. If
// the bucket is nearly full, the refund adds only what the bucket still lacks because of the
// charge.
func TestRefundRestoresWhatTheChargeStillLacks(t *testing.T) {
	type ask struct {
		after Micros // time since the first charge
		cost  int64
	}
	const plain = 1000 // added to a cost to mark a charge that is not refundable
	for _, c := range []struct {
		what           string
		first          int64
		asked          []ask
		refund         Micros
		restores, left int64
	}{
		{what: "at once", first: 100, restores: 100, left: 100},
		{what: "before anything else", first: 100, refund: 40 * Second, restores: 60, left: 100},
		{what: "nearly full, and taken again", first: 100, asked: []ask{{99 * Second, 99}}, refund: 99 * Second, restores: 1, left: 1},
		{what: "half full, and taken again", first: 100, asked: []ask{{50 * Second, 50}}, refund: 50 * Second, restores: 50, left: 50},
		{what: "half full, taken again, and flowing in", first: 100, asked: []ask{{50 * Second, 50}}, refund: 60 * Second, restores: 50, left: 60},
		{what: "half full twice", first: 100, asked: []ask{{50 * Second, 30}, {80 * Second, 50}}, refund: 80 * Second, restores: 50, left: 50},
		{what: "low, and then less so", first: 100, asked: []ask{{60 * Second, 50}, {95 * Second, 40}}, refund: 96 * Second, restores: 40, left: 46},
		{what: "less low, and then more so", first: 100, asked: []ask{{30 * Second, 1}, {99 * Second, 1}}, refund: 99 * Second, restores: 2, left: 99},
		{what: "full since", first: 50, asked: []ask{{51 * Second, 100}}, refund: 60 * Second, left: 9},
		{what: "full since, and the policy no longer settles", first: 50, asked: []ask{{51 * Second, plain + 90}}, refund: 60 * Second, left: 19},
		{what: "full since, no longer settles, and does again", first: 50, asked: []ask{{51 * Second, plain + 90}, {60 * Second, 1}}, refund: 61 * Second, left: 19},
		{what: "the policy no longer settles", first: 100, asked: []ask{{99 * Second, plain + 99}}, refund: 99 * Second, restores: 1, left: 1},
		{what: "full now", first: 50, refund: 50 * Second, left: 100},
		{what: "a small one that is still missing", first: 50, asked: []ask{{20 * Second, 70}}, refund: 60 * Second, restores: 30, left: 70},
		{what: "so old that it has flowed in", first: 100, asked: []ask{{50 * Second, 50}}, refund: 100 * Second, left: 50},
	} {
		l, err := ParseLimit("60/1m burst 100")
		if err != nil {
			t.Fatal(err)
		}
		slots, r := make([]Slot, 1), make([]Result, 1)
		do := func(after Micros, op Op, cost int64, receipt Micros) Result {
			settles := cost < plain
			cost %= plain
			Decide(noon+after, []Check{{Limit: &l, Op: op, Cost: cost, Receipt: receipt, Refundable: settles}}, slots, r)
			if op == OpTake && r[0].Granted != cost {
				t.Fatalf("%s: %d after %s: %+v", c.what, cost, after, r[0])
			}
			return r[0]
		}
		first := do(0, OpTake, c.first, 0)
		for _, a := range c.asked {
			do(a.after, OpTake, a.cost, 0)
		}
		got := do(c.refund, OpRefund, c.first, first.Receipt)
		if got.Granted != c.restores || got.Remaining != c.left {
			t.Errorf("%s: %d restored and %d left, want %d and %d", c.what, got.Granted, got.Remaining, c.restores, c.left)
		}
	}
}

// refunders is a set of clients of one token bucket that use their charges and can also
// lease units. Later, when the response is known, part of a charge or of a leased unit is refunded.
type refunders struct {
	*lessees
	leases  bool
	many    bool         // many small charges are open at a time
	mixed   bool         // some charges are final and not refundable
	charges []refundable // the charges to replay
}

// refundable holds the part of a charge that remains after refunds, for a replay.
type refundable struct {
	at    Micros
	units int64
}

func newRefunders(rng *rand.Rand, l Limit, leases bool) *refunders {
	c := &refunders{lessees: newLessees(rng, l), leases: leases, many: rng.IntN(2) == 0, mixed: rng.IntN(4) == 0}
	c.refundable = true
	return c
}

func (c *refunders) step() {
	switch dice := c.rng.IntN(10); {
	case dice < 3 && c.leases:
		c.lessees.step()
		return
	case dice < 7:
		c.charge()
	default:
		c.settle()
	}
	if c.many && c.rng.IntN(8) > 0 {
		c.now += Micros(c.rng.Int64N(int64(c.limit.fill)/64 + 2))
	} else {
		c.move()
	}
}

func (c *refunders) charge() {
	n := c.randomUpTo(c.limit.burst)
	if c.many {
		n = 1 + c.rng.Int64N(c.limit.burst/16+1)
	}
	c.plain = c.mixed && c.rng.IntN(4) == 0
	r := c.ask(Check{Op: OpUpTo, Cost: n, Min: 1, Max: n})
	if c.plain {
		c.plain, r.Receipt = false, 0
	}
	if r.Granted > 0 {
		c.useUnits(r.Granted, r.Receipt)
		if last := len(c.charges) - 1; last >= 0 && c.charges[last].at == c.now {
			c.charges[last].units += r.Granted
		} else {
			c.charges = append(c.charges, refundable{c.now, r.Granted})
		}
	}
}

// refunders.settle refunds some of the used units.
func (c *refunders) settle() {
	recent := 8
	if c.many {
		recent = 64
	}
	for range 1 + c.rng.IntN(3) {
		if len(c.used) == 0 {
			return
		}
		i := len(c.used) - 1 - c.rng.IntN(min(len(c.used), recent))
		u := &c.used[i]
		if u.units == 0 || u.receipt == 0 {
			continue
		}
		n := c.randomUpTo(u.units)
		u.units -= n
		c.ask(Check{Op: OpRefund, Cost: n, Receipt: u.receipt})
		for j := range c.charges {
			// Older charges have been refilled completely, or count as refilled.
			if c.charges[j].at == u.at && c.now-u.at < c.limit.fill {
				c.charges[j].units -= n
			}
		}
	}
}

// replayedMissing returns the parts that would be missing now from a bucket that was never charged
// the refunded units.
func (c *refunders) replayedMissing() (missing int64) {
	last := Micros(0)
	refill := func(at Micros) {
		if missing -= int64(min(at-last, c.limit.fill)) * c.limit.refill; missing < 0 {
			missing = 0
		}
		last = at
	}
	for _, charge := range c.charges {
		refill(charge.at)
		missing += charge.units * c.limit.unit
	}
	refill(c.now)
	return missing
}

func refundedLimit(rng *rand.Rand) (Limit, bool) {
	windows := []Micros{WindowMin, 7 * Millisecond, 999_983, Second, Minute, Hour}
	count := 1 + rng.Int64N(1<<rng.IntN(12))
	if rng.IntN(3) == 0 { // a limit whose tick is many microseconds
		count = CountMax - rng.Int64N(1<<rng.IntN(41))
	}
	l, err := NewLimit(TokenBucket, count, windows[rng.IntN(len(windows))], 1+rng.Int64N(3*min(count, CountMax/3)))
	return l, err == nil
}

// refundedRuns is the number of limits to try.
const refundedRuns = 4_000

// refundTraffic runs random traffic with one rule disabled, on several limits, until clients get
// too many units. refundTraffic returns a description of how the clients exceeded the limit, or "".
func refundTraffic(rng *rand.Rand, leases bool, without string) (how string) {
	for range refundedRuns {
		l, ok := refundedLimit(rng)
		if !ok {
			continue // the bucket would fill too slowly to be a valid limit
		}
		c := newRefunders(rng, l, leases)
		c.without = without
		for range 300 {
			c.step()
		}
		if excess, span := c.excess(); excess > 0 {
			return fmt.Sprintf("%s: %d units too many within %s", l, excess, span)
		}
	}
	return ""
}

// TestRefundsOfATokenBucketKeepItsPromise: no span of time exceeds the limit by even one unit,
// whatever is refunded, however late and in whatever order, with and without leases.
func TestRefundsOfATokenBucketKeepItsPromise(t *testing.T) {
	for _, leases := range []bool{false, true} {
		if how := refundTraffic(seed.Random(t), leases, ""); how != "" {
			t.Errorf("leases %t: %s", leases, how)
		}
	}
}

// TestRefundsOfATokenBucketNeedTheirRules: if any single rule is left out, the limit is exceeded.
func TestRefundsOfATokenBucketNeedTheirRules(t *testing.T) {
	for _, rule := range []string{"the rule of refunds", "dips lowered by refunds", "the dip of a lease",
		"what lies before a lease in its instant", "the dip of a coarse tick"} {
		how := ""
		for seed := uint64(1); how == "" && seed < 16; seed++ {
			how = refundTraffic(rand.New(rand.NewPCG(seed, 1)), true, rule)
		}
		if how == "" {
			t.Errorf("nothing is too many without %s", rule)
		} else {
			t.Logf("without %s: %s", rule, how)
		}
	}
}

// TestRefundsLeaveTheBucketThatNeverHadTheCharge: as long as there are no more than DipsMax dips,
// the bucket equals one that was never charged the refunded units.
func TestRefundsLeaveTheBucketThatNeverHadTheCharge(t *testing.T) {
	rng := seed.Random(t)
	compared, partly := 0, 0
	for range 4 * refundedRuns {
		l, ok := refundedLimit(rng)
		if !ok || l.tick > 1 {
			continue
		}
		c := newRefunders(rng, l, false)
		for range 300 {
			before := c.slot[0].State.Used
			c.step()
			look := c.ask(Check{Op: OpLook})
			if len(c.charges) > DipsMax {
				if look.Reset > 0 {
					break // there may be more than DipsMax dips
				}
				c.charges, c.used = c.charges[:0], c.used[:0] // the bucket is full: start over
			}
			if before > 0 {
				partly++
			}
			compared++
			if want := c.replayedMissing(); c.slot[0].State.Used != want {
				t.Fatalf("%s: %d parts missing, want %d as without what was given back (%+v)", l, c.slot[0].State.Used, want, c.charges)
			}
		}
	}
	if compared < 10_000 || partly < compared/4 {
		t.Errorf("%d states compared, %d of buckets that were not full: too few to mean anything", compared, partly)
	}
}

// TestRefundsDoNotRunABucketDry: a client that has half a bucket of requests in flight, all of
// which are refunded, is hardly ever denied, even though few dips are kept. After a refund that is
// too small the bucket lacks more, so later refunds are large enough.
func TestRefundsDoNotRunABucketDry(t *testing.T) {
	l, err := ParseLimit("100/1s burst 100")
	if err != nil {
		t.Fatal(err)
	}
	const requests, open, gap = 50_000, 50, 500 // 2,000 a second
	rng := rand.New(rand.NewPCG(1, 1))
	slots, r := make([]Slot, 1), make([]Result, 1)
	now, denied := noon, 0
	var due, receipts []Micros
	for range requests {
		now += Micros(1 + rng.Int64N(2*gap))
		for len(due) > 0 && due[0] <= now {
			Decide(due[0], []Check{{Limit: &l, Op: OpRefund, Cost: 1, Receipt: receipts[0], Refundable: true}}, slots, r)
			due, receipts = due[1:], receipts[1:]
		}
		if Decide(now, []Check{{Limit: &l, Cost: 1, Refundable: true}}, slots, r); r[0].Denied {
			denied++
			continue
		}
		end := now + open*gap/2 + Micros(rng.Int64N(open*gap))
		if len(due) > 0 {
			end = max(end, due[len(due)-1])
		}
		due, receipts = append(due, end), append(receipts, r[0].Receipt)
	}
	if denied*100 > requests*3 {
		t.Errorf("%d of %d refused, want 3 %% at most", denied, requests)
	}
	t.Logf("%d of %d refused", denied, requests)
}

// TestRefundOfMoreThanFits: a refund of more units than were ever charged restores at most what is
// missing, even if the number of parts overflows.
func TestRefundOfMoreThanFits(t *testing.T) {
	rng := seed.Random(t)
	for range 1000 {
		l, ok := refundedLimit(rng)
		if !ok {
			continue
		}
		slots, r := make([]Slot, 1), make([]Result, 1)
		Decide(noon, []Check{{Limit: &l, Cost: 1, Refundable: true}}, slots, r)
		Decide(noon, []Check{{Limit: &l, Op: OpRefund, Cost: CountMax - rng.Int64N(1<<rng.IntN(41)), Receipt: r[0].Receipt,
			Refundable: true}}, slots, r)
		if r[0].Granted != 1 || r[0].Remaining != l.burst {
			t.Fatalf("%s: %d restored and %d left, want 1 and all", l, r[0].Granted, r[0].Remaining)
		}
	}
}
