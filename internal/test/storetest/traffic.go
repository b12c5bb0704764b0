// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"fmt"
	"math/rand/v2"
	"slices"

	corecounter "github.com/penstock/penstock/core/counter"
)

// traffic generates the calls of greedy clients, which make use of the remaining units and the ends
// of windows that earlier answers have reported. Its clock is unreliable, and the policy changes
// from time to time.
type traffic struct {
	rng       *rand.Rand
	now       corecounter.Micros
	counters  []*counter
	penalties []*counter
	calls     int // number of calls so far
	// honest means that the clock only goes forward and that limits do not change.
	honest bool
}

// counter is what the generated clients know about one counter or penalty. They know no more than
// what the store has answered.
type counter struct {
	key       string
	limit     corecounter.Limit
	calendar  *calendar            // the calendar of a calendar limit; otherwise nil
	penalty   *corecounter.Penalty // nil unless this is a penalty, which has no limit
	violation int64                // the ID of the violations that its denials are
	// refundable reports whether the counter's charges can be refunded after use.
	refundable bool
	remaining  int64
	wakes      corecounter.Micros // the instant at which a client may try again
	charges    []charge
}

type charge struct {
	receipt corecounter.Micros
	units   int64
	age     corecounter.Micros // the age of a lease
}

const (
	trafficCounters = 12  // counters in use at a time
	trafficLife     = 250 // number of calls for which these counters are used
	trafficChecks   = 8   // the maximum in one call, without penalties
	trafficCharges  = 6   // charges that are kept for each counter, to be refunded
	trafficSpan     = 60 * 365 * corecounter.Day
)

// windows holds lengths of windows. The traffic also uses random lengths.
var windows = []corecounter.Micros{corecounter.WindowMin, 7 * corecounter.Millisecond, 100 * corecounter.Millisecond, corecounter.Second,
	999_983, 7 * corecounter.Second, corecounter.Minute, corecounter.Hour, corecounter.Day, corecounter.WindowMax}

func newTraffic(seed uint64) *traffic {
	return &traffic{rng: rand.New(rand.NewPCG(seed, 0)), now: start}
}

// traffic.next moves the clock and returns the checks of the next call.
func (tr *traffic) next() []corecounter.Check {
	if tr.calls%trafficLife == 0 {
		tr.renew()
	}
	tr.calls++
	tr.move()
	n := 1
	if tr.rng.IntN(2) == 0 {
		n = 1 + tr.rng.IntN(trafficChecks)
	}
	checks := make([]corecounter.Check, n)
	for i, which := range tr.rng.Perm(len(tr.counters))[:n] {
		c := tr.counters[which]
		if !tr.honest && tr.chance(3) {
			tr.edit(c)
		}
		checks[i] = tr.dated(c, tr.check(c, n))
	}
	return tr.addPenalties(checks)
}

// traffic.find returns the counter or penalty that has the given key.
func (tr *traffic) find(key []byte) *counter {
	for _, all := range [][]*counter{tr.counters, tr.penalties} {
		if i := slices.IndexFunc(all, func(c *counter) bool { return c.key == string(key) }); i >= 0 {
			return all[i]
		}
	}
	return nil
}

// traffic.learn records what the answers to a call report, so that later calls can make use of it.
func (tr *traffic) learn(checks []corecounter.Check, results []corecounter.Result) {
	for i := range checks {
		c, r := tr.find(checks[i].Key), &results[i]
		c.remaining, c.wakes = r.Remaining, tr.now+r.Reset
		if r.Wait > 0 && r.Wait != corecounter.Never {
			c.wakes = tr.now + r.Wait
		}
		if r.Receipt != 0 {
			c.charges = append(c.charges, charge{r.Receipt, r.Granted, checks[i].Age})
			c.charges = c.charges[max(0, len(c.charges)-trafficCharges):]
		}
	}
}

func (tr *traffic) chance(percent int) bool { return tr.rng.IntN(100) < percent }

// traffic.upTo returns a random number between 0 and the given maximum. Small and large orders of
// magnitude are about equally likely.
func (tr *traffic) upTo(most int64) int64 {
	if most <= 0 {
		return 0
	}
	bound := int64(1)
	for bound <= most && tr.rng.IntN(42) > 0 && bound < 1<<41 {
		bound *= 1 + tr.rng.Int64N(4)
	}
	return tr.rng.Int64N(min(bound, most) + 1)
}

// traffic.renew replaces all counters by new random ones.
func (tr *traffic) renew() {
	if tr.now > start+trafficSpan || tr.now < start-trafficSpan/10 {
		tr.now = start
	}
	tr.counters = tr.counters[:0]
	for i := range trafficCounters {
		if i < trafficCalendars {
			tr.counters = append(tr.counters, tr.calendarCounter(i))
			continue
		}
		a, window := algorithms[i%len(algorithms)], tr.window()
		l := tr.limit(a, window)
		key := fmt.Sprintf("%d:%d:%s:%s", tr.calls, i, window, a.Label())
		tr.counters = append(tr.counters, &counter{key: key, limit: l, remaining: l.Capacity(),
			refundable: !tr.honest && tr.chance(60)})
	}
	tr.renewPenalties()
}

// traffic.limit returns a limit with a random count and a random burst. Both are valid for the
// window.
func (tr *traffic) limit(a corecounter.Algorithm, window corecounter.Micros) corecounter.Limit {
	countMax := corecounter.CountMax
	if a == corecounter.SlidingLog {
		countMax = corecounter.LogCountMax
	}
	for {
		count := min(countMax, 1+int64(1)<<tr.rng.IntN(42)/2+tr.upTo(countMax)%1000)
		if tr.chance(30) {
			count = 1 + tr.rng.Int64N(12)
		}
		capacity := int64(0)
		if a == corecounter.TokenBucket && tr.chance(60) {
			capacity = min(corecounter.CountMax, 1+tr.upTo(3*count))
		}
		if l, err := corecounter.NewLimit(a, count, window, capacity); err == nil {
			return l
		}
	}
}

// traffic.editedLimit returns the limit as it is after a random edit of the policy. The window and
// the algorithm stay the same, because they are part of the key.
func (tr *traffic) editedLimit(l *corecounter.Limit) corecounter.Limit {
	if tr.chance(50) {
		return tr.limit(l.Algorithm(), l.Window())
	}
	nearly, err := corecounter.NewLimit(l.Algorithm(), max(1, l.Count()+tr.rng.Int64N(5)-2), l.Window(), 0)
	if err != nil {
		return *l
	}
	return nearly
}

// traffic.move moves the clock. Usually the clock goes a little forward, often to a boundary or
// just before or after one. Sometimes it goes far forward, or back.
func (tr *traffic) move() {
	c := tr.counters[tr.rng.IntN(len(tr.counters))]
	window := min(c.limit.Window(), corecounter.WindowMax)
	if tr.chance(20) {
		c = tr.penalties[tr.rng.IntN(len(tr.penalties))]
		window = c.penalty.Window
	}
	switch dice := tr.rng.IntN(100); {
	case dice < 30: // does not move
	case dice < 50:
		tr.now += corecounter.Micros(tr.rng.Int64N(int64(window)/10 + 1))
	case dice < 65:
		tr.forward(c.wakes + corecounter.Micros(tr.rng.IntN(3)-1))
	case dice < 80:
		tr.forward(tr.edge(c) + corecounter.Micros(tr.rng.IntN(3)-1))
	case dice < 84:
		tr.now += corecounter.Micros(tr.rng.Int64N(2*int64(window)) + 1)
	case dice < 90:
		tr.now += corecounter.Micros(tr.rng.IntN(2000))
	case tr.honest:
	case dice < 96:
		tr.now -= corecounter.Micros(tr.rng.Int64N(int64(window)) + 1)
	case dice < 97:
		tr.now -= window + corecounter.Micros(tr.rng.IntN(3)-1)
	case dice < 98:
		tr.now += corecounter.Hour
	case dice < 99:
		tr.now -= corecounter.Hour
	default:
		tr.now -= corecounter.Micros(tr.rng.IntN(3))
	}
}

// traffic.forward moves the clock to an instant, unless the instant has passed, or is so far ahead
// that all counters would expire.
func (tr *traffic) forward(to corecounter.Micros) {
	if to > tr.now && to < tr.now+2*corecounter.WindowMax {
		tr.now = to
	}
}

func (tr *traffic) check(c *counter, n int) corecounter.Check {
	k := check(corecounter.OpTake, c.key, c.limit, tr.cost(c, n))
	switch dice := tr.rng.IntN(100); {
	case dice < 62:
	case dice < 72:
		k.Op, k.Min = corecounter.OpUpTo, 1+tr.upTo(k.Cost-1)
		k.Max = k.Cost + tr.upTo(c.limit.Capacity())
		k.ShareMille = []int64{0, 1, 333, 500, 999, 1000}[tr.rng.IntN(6)]
		k.Age = tr.age(&c.limit)
	case dice < 80:
		k.Op = corecounter.OpLook
	case dice < 82:
		k.Op, k.Cost = corecounter.OpReset, 0
	case dice < 93:
		k.Op = corecounter.OpRefund
		k.Receipt = []corecounter.Micros{0, tr.now, tr.now - c.limit.Window(), -1}[tr.rng.IntN(4)]
		if len(c.charges) > 0 && !tr.chance(5) {
			charge := &c.charges[tr.rng.IntN(len(c.charges))]
			k.Receipt, k.Cost, k.Age = charge.receipt, tr.part(charge), charge.age
			if !tr.honest && tr.chance(10) {
				k.Age = tr.age(&c.limit)
			}
		} else if tr.honest {
			k.Op = corecounter.OpLook
		}
	default:
		k.Op = corecounter.OpForce
		if tr.chance(40) { // may be far beyond the largest debt of a counter
			k.Cost = min(corecounter.CountMax+1, 3*k.Cost)
		}
	}
	k.Shadow = tr.chance(12)
	k.Refundable = c.refundable != (!tr.honest && tr.chance(3))
	return k
}

// traffic.age returns a random duration for which units under the limit are leased, or 0, which
// means that they are not leased.
func (tr *traffic) age(l *corecounter.Limit) corecounter.Micros {
	if l.Algorithm() == corecounter.SlidingLog || tr.chance(40) {
		return 0
	}
	return 1 + corecounter.Micros(tr.rng.Int64N(max(1, int64(l.Window())>>tr.rng.IntN(20))))
}

// traffic.part returns how many units of a charge to refund, and usually removes these units from
// the charge. A client that is not honest sometimes refunds more than it was charged.
func (tr *traffic) part(c *charge) int64 {
	units := min(corecounter.CountMax+1, tr.rng.Int64N(c.units+1))
	if tr.honest || tr.chance(80) {
		c.units -= units
		return units
	}
	return min(corecounter.CountMax+1, c.units+tr.upTo(3))
}

// traffic.cost returns a cost that a greedy client might choose. If the call has other checks, the
// cost is often small.
func (tr *traffic) cost(c *counter, n int) int64 {
	most := min(c.limit.Capacity(), corecounter.CountMax) + 1
	switch dice := tr.rng.IntN(100); {
	case dice < 30:
		return 1
	case dice < 50:
		return tr.upTo(most)
	case dice < 70:
		return min(most, c.remaining)
	case dice < 90/n:
		return min(most, c.remaining+1)
	case dice < 94/n:
		return most - tr.rng.Int64N(2)
	case dice < 97:
		return 0
	default:
		return min(most, tr.rng.Int64N(20))
	}
}
