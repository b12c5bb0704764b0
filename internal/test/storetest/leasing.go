// SPDX-License-Identifier: Apache-2.0

package storetest

import corecounter "github.com/penstock/penstock/core/counter"

// leasePromises concern leases: units that are charged now and used later.
var leasePromises = []promise{
	{"how long units may be out is known", "Every answer of a counter says for how long units may still be out on lease, " +
		"to the microsecond and of the longest lease, and none are of what was needed at once; otherwise a denial is " +
		"remembered when it is over, or not at all.", askLeasedIn},
	{"a bucket holds back what a lease's time brings", "What a token bucket leases may be used when it has refilled for as " +
		"long, so it leases only what it has beyond that; otherwise more than the burst is used at once.", askHeldBack},
	{"a lease comes back without what was refilled", "A token bucket credits a lease only what it has not refilled since, " +
		"or will have at as long before the end of the longest lease as this one lasted; otherwise a unit is counted twice.",
		askLeaseBack},
}

// asLeased returns the check as a part of a lease that lasts for the given age. The check is an
// up-to-n check or a refund.
func asLeased(c corecounter.Check, age corecounter.Micros) corecounter.Check {
	c.Age = age
	return c
}

// leasedLimits returns a limit of 100 per minute for each algorithm with which units can be leased,
// by the name of the algorithm.
func leasedLimits() map[string]corecounter.Limit {
	limits := map[string]corecounter.Limit{}
	for _, a := range algorithms {
		if a != corecounter.SlidingLog {
			limits[a.Label()] = limit(a, 100, corecounter.Minute)
		}
	}
	return limits
}

func askLeasedIn(e *examiner) {
	for key, l := range leasedLimits() {
		says := func(when string, r corecounter.Result, want corecounter.Micros) {
			e.Helper()
			if r.LeasedIn != want {
				e.Fatalf("%s: %s: units are out for %s, want %s; the answer is %+v", key, when, r.LeasedIn, want, r)
			}
		}
		e.setClock(0)
		says("a fresh counter", e.takeOne(take(key, l, 1)), 0)
		says("what is needed", e.takeOne(asLeased(upTo(key, l, 1, 10, 10, 1000), corecounter.Second)), 0)
		says("after it", e.takeOne(look(key, l, 1)), 0)
		batch := e.takeOne(asLeased(upTo(key, l, 1, 1, 11, 1000), 2*corecounter.Second))
		says("a lease", batch, 2*corecounter.Second)
		e.equal("what is leased", batch.Granted, 11)
		e.setClock(500 * corecounter.Millisecond)
		says("a shorter lease beside it", e.takeOne(asLeased(upTo(key, l, 1, 1, 3, 1000), corecounter.Second)), 1500*corecounter.Millisecond)
		says("a denial", e.mustDeny(take(key, l, 99)), 1500*corecounter.Millisecond)
		says("a look", e.takeOne(look(key, l, 1)), 1500*corecounter.Millisecond)
		says("a give-back", e.takeOne(asLeased(refund(key, l, 4, batch.Receipt), 2*corecounter.Second)), 1500*corecounter.Millisecond)
		says("a forced charge", e.takeOne(force(key, l, 1)), 1500*corecounter.Millisecond)
		r := e.take(asLeased(upTo(key, l, 1, 1, 9, 1000), corecounter.Minute), take("other "+key, l, 101))
		says("a lease in a call that is denied", r[0], 1500*corecounter.Millisecond)
		e.setClock(2*corecounter.Second - 1)
		says("a microsecond before its end", e.takeOne(look(key, l, 1)), 1)
		e.setClock(2 * corecounter.Second)
		says("its end", e.takeOne(take(key, l, 1)), 0)
		// Units that were leased at the end of a window are still leased in the next one.
		e.setClock(corecounter.Minute - corecounter.Second)
		e.takeOne(asLeased(upTo(key, l, 1, 0, 9, 1000), 5*corecounter.Second))
		e.setClock(corecounter.Minute + corecounter.Second)
		says("a charge in the next window", e.takeOne(take(key, l, 1)), 3*corecounter.Second)
		e.takeOne(reset(key, l))
		says("a reset counter", e.takeOne(look(key, l, 1)), 0)
	}
}

func askHeldBack(e *examiner) {
	l := limit(corecounter.TokenBucket, 60, corecounter.Minute)
	e.setClock(0)
	r := e.takeOne(asLeased(upTo("full", l, 1, 0, 60, 1000), 5*corecounter.Second))
	e.equal("what a full bucket leases for 5 s", r.Granted, 55)
	e.left("full", l, 0)
	e.setClock(5 * corecounter.Second) // the 55 units are used at the end of their lease
	e.left("full", l, 5)
	e.mustDeny(take("full", l, 6))

	e.mustAdmit(take("lacking", l, 5))
	e.equal("what one leases that lacks as much", e.takeOne(asLeased(upTo("lacking", l, 1, 0, 60, 1000), 5*corecounter.Second)).Granted, 55)
	e.equal("what is needed", e.takeOne(asLeased(upTo("needed", l, 1, 58, 60, 1000), 5*corecounter.Second)).Granted, 58)
	e.left("needed", l, 2)
	e.equal("half of what may be leased", e.takeOne(asLeased(upTo("half", l, 1, 0, 60, 500), 5*corecounter.Second)).Granted, 27)
	e.left("half", l, 28)
	e.equal("what is leased for as long as it fills", e.takeOne(asLeased(upTo("long", l, 1, 0, 60, 1000), corecounter.Minute)).Granted, 0)
	e.left("long", l, 60)
}

func askLeaseBack(e *examiner) {
	l := limit(corecounter.TokenBucket, 60, corecounter.Minute)
	e.setClock(0)
	batch := e.takeOne(asLeased(upTo("late", l, 1, 0, 40, 1000), 5*corecounter.Second))
	e.setClock(3*corecounter.Second + 1)
	e.equal("what is credited of 10", e.takeOne(asLeased(refund("late", l, 10, batch.Receipt), 5*corecounter.Second)).Granted, 6)
	e.left("late", l, 55-40+3+6)
	e.equal("what is credited of 3", e.takeOne(asLeased(refund("late", l, 3, batch.Receipt), 5*corecounter.Second)).Granted, 0)
	e.setClock(50 * corecounter.Second)
	e.equal("what is credited of 27 after 50 s", e.takeOne(asLeased(refund("late", l, 27, batch.Receipt), 5*corecounter.Second)).Granted, 0)

	// A lease of 4 s is refunded after 1 s. At that time, another lease of 20 s still lasts for 19
	// s.
	e.setClock(0)
	near := e.takeOne(asLeased(upTo("near", l, 1, 0, 40, 1000), 4*corecounter.Second))
	e.takeOne(asLeased(upTo("near", l, 1, 0, 8, 1000), 20*corecounter.Second))
	e.setClock(corecounter.Second)
	e.equal("what is credited of a short lease", e.takeOne(asLeased(refund("near", l, 40, near.Receipt), 4*corecounter.Second)).Granted, 24)
	e.left("near", l, 60-4-40-8+1+24)
	e.setClock(20 * corecounter.Second) // the 8 units are used at the end of their lease
	e.left("near", l, 52)
	e.mustDeny(take("near", l, 53))
}
