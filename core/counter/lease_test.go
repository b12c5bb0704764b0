// SPDX-License-Identifier: Apache-2.0

package counter

import (
	"fmt"
	"github.com/penstock/penstock/internal/test/seed"
	"math/rand/v2"
	"slices"
	"testing"
)

// lessees is a set of clients of one token bucket. They lease units, use them and return
// them, at the instants that suit them best.
type lessees struct {
	rng    *rand.Rand
	limit  Limit
	ages   []Micros
	slot   []Slot
	now    Micros
	leases []leaseHeld
	used   []usage
	// the rule to disable, for the tests that show why the rule is needed
	without string
	// whether used units may be refunded
	refundable bool
	plain      bool // this charge is not refundable
}

// leaseHeld holds the unused units of a lease.
type leaseHeld struct {
	granted, age Micros
	units        int64
}

func newLessees(rng *rand.Rand, l Limit) *lessees {
	c := &lessees{rng: rng, limit: l, slot: make([]Slot, 1), now: noon + Micros(rng.Int64N(int64(l.window)))}
	for range 1 + rng.IntN(3) {
		age := l.fill/Micros([]int64{2, 3, 5, 20, 100}[rng.IntN(5)]) + Micros(rng.IntN(3))
		if rng.IntN(2) == 0 {
			age = Micros(1+rng.IntN(5)) * l.tick
		}
		c.ages = append(c.ages, max(1, min(age, l.window)))
	}
	return c
}

func (c *lessees) ask(check Check) Result {
	var r [1]Result
	check.Limit, check.Refundable = &c.limit, c.refundable && !c.plain
	switch {
	case c.without == "the rule of refunds" && check.Op == OpRefund:
		check.Refundable = false
	case c.without == "the clip" && check.Op == OpUpTo, c.without == "the refund rule" && check.Op == OpRefund:
		check.Age = 0
	case c.without == "the rule of different ages":
		c.slot[0].State.Leased = 0
	case c.without == "refunds under their own age" && check.Op == OpRefund && check.Age > 0:
		check.Age = slices.Max(c.ages)
	}
	dips := c.slot[0].State.Dips
	Decide(c.now, []Check{check}, c.slot, r[:])
	c.removeDips(&check, &dips)
	return r[0]
}

// removeDips removes what the disabled rule contributed to the dips.
func (c *lessees) removeDips(check *Check, before *[DipsMax]Dip) {
	s := &c.slot[0].State
	switch {
	case c.without == "dips lowered by refunds" && check.Op == OpRefund:
		s.Dips = *before
	case c.without == "the dip of a lease" && check.Age > 0 && check.Op == OpUpTo:
		s.Dips = *before
	case c.without == "what lies before a lease in its instant":
		for i := range s.Dips {
			s.Dips[i].At = min(s.Dips[i].At, c.now)
		}
	case c.without == "the dip of a coarse tick":
		for i := range s.Dips {
			if d := &s.Dips[i]; d.At == c.now && s.At < c.now && d.Missing+c.limit.refill <= s.Used {
				d.Missing += c.limit.refill
			}
		}
	}
}

// useUnits records units of a charge that are used now.
func (c *lessees) useUnits(units int64, receipt Micros) {
	if units > 0 {
		c.used = append(c.used, usage{at: c.now, units: units, receipt: receipt})
	}
}

// randomUpTo returns a random number of units from 1 to a maximum, often the maximum itself. It
// returns 0 if the maximum is not positive.
func (c *lessees) randomUpTo(most int64) int64 {
	if most <= 0 {
		return 0
	}
	return []int64{most, 1 + c.rng.Int64N(most), 1}[c.rng.IntN(3)]
}

func (c *lessees) step() {
	switch c.rng.IntN(6) {
	case 0:
		n := c.randomUpTo(c.limit.burst)
		r := c.ask(Check{Op: OpUpTo, Cost: n, Min: 1, Max: n})
		c.useUnits(r.Granted, r.Receipt)
	case 1, 2:
		c.lease()
	case 3:
		c.spendHeld()
	case 4:
		c.refund()
	default: // charged but not used
		r := c.ask(Check{Op: OpTake, Cost: c.randomUpTo(c.limit.burst)})
		if c.rng.IntN(2) == 0 {
			c.ask(Check{Op: OpRefund, Cost: r.Granted, Receipt: r.Receipt})
		} else if r.Granted > 0 {
			c.leases = append(c.leases, leaseHeld{granted: r.Receipt, age: 1, units: r.Granted})
		}
	}
	c.move()
}

// lessees.lease takes units, uses some of them and holds the rest.
func (c *lessees) lease() {
	need := int64(c.rng.IntN(3))
	age := c.ages[c.rng.IntN(len(c.ages))]
	r := c.ask(Check{Op: OpUpTo, Cost: need, Min: 1, Max: need + c.randomUpTo(c.limit.burst), Age: age,
		ShareMille: []int64{500, 1000}[c.rng.IntN(2)]})
	c.useUnits(min(need, r.Granted), r.Receipt)
	if extra := r.Granted - need; extra > 0 {
		c.leases = append(c.leases, leaseHeld{granted: r.Receipt, age: age, units: extra})
	}
}

// spendHeld uses units of leases that have not ended.
func (c *lessees) spendHeld() {
	for i := range c.leases {
		if l := &c.leases[i]; l.granted+l.age > c.now && c.rng.IntN(2) == 0 {
			n := c.randomUpTo(l.units)
			l.units -= n
			c.useUnits(n, l.granted)
		}
	}
}

// lessees.refund returns units of leases, including leases that have ended. Units that the bucket
// does not take are lost.
func (c *lessees) refund() {
	for i := range c.leases {
		if l := &c.leases[i]; l.units > 0 && c.rng.IntN(2) == 0 {
			n := c.randomUpTo(l.units)
			l.units -= n
			c.ask(Check{Op: OpRefund, Cost: n, Receipt: l.granted, Age: l.age})
		}
	}
}

// lessees.move advances the clock to an instant that matters: the end of a lease, the next token, a
// full bucket.
func (c *lessees) move() {
	c.leases = c.leases[max(0, len(c.leases)-8):]
	look := c.ask(Check{Op: OpLook})
	switch c.rng.IntN(9) {
	case 0, 1, 2: // the clock stays at the same instant
	case 8:
		c.now += 1 + Micros(c.rng.Int64N(int64(c.limit.tick)))
	case 3:
		c.now += look.Next
	case 4:
		c.now += Micros(c.rng.Int64N(int64(c.limit.fill)/4 + 2))
	case 5:
		c.now += look.Reset
	default:
		if len(c.leases) > 0 {
			l := &c.leases[c.rng.IntN(len(c.leases))]
			c.now = max(c.now, l.granted+l.age-1+Micros(c.rng.IntN(2)))
		}
	}
}

// lessees.excess returns the number of units by which usage exceeds the limit in the worst span.
func (c *lessees) excess() (most int64, span Micros) {
	for i := range c.used {
		units := int64(0)
		for _, u := range c.used[i:] {
			units += u.units
			long := u.at - c.used[i].at
			if over := units - c.limit.burst - mulDiv(c.limit.count, int64(long), int64(c.limit.window)); over > most {
				most, span = over, long
			}
		}
	}
	return most, span
}

// leasedRuns is the number of limits to try. With a tenth of this number, most runs do not detect
// that a clip must forfeit part of a tick.
const leasedRuns = 12_000

// runLesseeTraffic runs random traffic with one rule disabled, on several limits, until clients get
// too many units. runLesseeTraffic returns a description of how the clients exceeded the limit, or
// "".
func runLesseeTraffic(rng *rand.Rand, runs int, without string) (how string) {
	windows := []Micros{WindowMin, 7 * Millisecond, 999_983, Second, Minute, Hour}
	for range runs {
		count := 1 + rng.Int64N(1<<rng.IntN(12))
		if rng.IntN(2) == 0 { // a limit whose tick is many microseconds
			count = CountMax - rng.Int64N(1<<rng.IntN(41))
		}
		l, err := NewLimit(TokenBucket, count, windows[rng.IntN(len(windows))], 1+rng.Int64N(3*min(count, CountMax/3)))
		if err != nil {
			continue // the bucket would fill too slowly to be a valid limit
		}
		c := newLessees(rng, l)
		c.without = without
		for range 300 {
			c.step()
		}
		if excess, span := c.excess(); excess > 0 {
			return fmt.Sprintf("%s: %d units too many within %s, with leases of %v", l, excess, span, c.ages)
		}
	}
	return ""
}

// TestLeasesOfATokenBucketKeepItsPromise: no span of time exceeds the limit by even one unit,
// however many units are leased, however long they are held, and whether they are used late or
// returned.
func TestLeasesOfATokenBucketKeepItsPromise(t *testing.T) {
	if how := runLesseeTraffic(seed.Random(t), leasedRuns, ""); how != "" {
		t.Fatal(how)
	}
}

// TestLeasesOfATokenBucketNeedTheirRules: if any single rule is left out, the limit is exceeded.
func TestLeasesOfATokenBucketNeedTheirRules(t *testing.T) {
	for _, rule := range []string{"the clip", "the refund rule", "the rule of different ages", "refunds under their own age"} {
		if how := runLesseeTraffic(rand.New(rand.NewPCG(1, 1)), leasedRuns, rule); how == "" {
			t.Errorf("nothing is too many without %s", rule)
		} else {
			t.Logf("without %s: %s", rule, how)
		}
	}
}
