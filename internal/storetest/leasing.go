// SPDX-License-Identifier: Apache-2.0

package storetest

import "github.com/penstock/penstock/core"

// leasePromises are about units that are charged now and used later.
var leasePromises = []promise{
	{"how long units may be out is known", "Every answer of a counter says for how long units may still be out on lease, " +
		"to the microsecond and of the longest lease, and none are of what was needed at once; otherwise a refusal is " +
		"remembered when it is over, or not at all.", askLeasedIn},
	{"a bucket holds back what a lease's time brings", "What a token bucket leases may be used when it has refilled for as " +
		"long, so it leases only what it has beyond that; otherwise more than the burst is used at once.", askHeldBack},
	{"a lease comes back without what was refilled", "A token bucket credits a lease only what it has not refilled since, " +
		"or will have at as long before the end of the longest lease as this one lasted; otherwise a unit is counted twice.",
		askLeaseBack},
}

// leased makes an up-to-n or give-back check one of a lease.
func leased(c core.Check, age core.Micros) core.Check {
	c.Age = age
	return c
}

// leasing are limits of 100 a minute of all algorithms that lease, by their keys.
func leasing() map[string]core.Limit {
	limits := map[string]core.Limit{}
	for _, a := range algorithms {
		if a != core.SlidingLog {
			limits[a.Label()] = limit(a, 100, core.Minute)
		}
	}
	return limits
}

func askLeasedIn(e *examiner) {
	for key, l := range leasing() {
		says := func(when string, r core.Result, want core.Micros) {
			e.Helper()
			if r.LeasedIn != want {
				e.Fatalf("%s: %s: units are out for %s, want %s; the answer is %+v", key, when, r.LeasedIn, want, r)
			}
		}
		e.after(0)
		says("a fresh counter", e.one(take(key, l, 1)), 0)
		says("what is needed", e.one(leased(upTo(key, l, 1, 10, 10, 1000), core.Second)), 0)
		says("after it", e.one(look(key, l, 1)), 0)
		batch := e.one(leased(upTo(key, l, 1, 1, 11, 1000), 2*core.Second))
		says("a lease", batch, 2*core.Second)
		e.equal("what is leased", batch.Granted, 11)
		e.after(500 * core.Millisecond)
		says("a shorter lease beside it", e.one(leased(upTo(key, l, 1, 1, 3, 1000), core.Second)), 1500*core.Millisecond)
		says("a refusal", e.refused(take(key, l, 99)), 1500*core.Millisecond)
		says("a look", e.one(look(key, l, 1)), 1500*core.Millisecond)
		says("a give-back", e.one(leased(giveBack(key, l, 4, batch.Receipt), 2*core.Second)), 1500*core.Millisecond)
		says("a forced charge", e.one(force(key, l, 1)), 1500*core.Millisecond)
		r := e.take(leased(upTo(key, l, 1, 1, 9, 1000), core.Minute), take("other "+key, l, 101))
		says("a lease in a call that is refused", r[0], 1500*core.Millisecond)
		e.after(2*core.Second - 1)
		says("a microsecond before its end", e.one(look(key, l, 1)), 1)
		e.after(2 * core.Second)
		says("its end", e.one(take(key, l, 1)), 0)
		// A lease of the end of a window is still out in the next.
		e.after(core.Minute - core.Second)
		e.one(leased(upTo(key, l, 1, 0, 9, 1000), 5*core.Second))
		e.after(core.Minute + core.Second)
		says("a charge in the next window", e.one(take(key, l, 1)), 3*core.Second)
		e.one(reset(key, l))
		says("a reset counter", e.one(look(key, l, 1)), 0)
	}
}

func askHeldBack(e *examiner) {
	l := limit(core.TokenBucket, 60, core.Minute)
	e.after(0)
	r := e.one(leased(upTo("full", l, 1, 0, 60, 1000), 5*core.Second))
	e.equal("what a full bucket leases for 5 s", r.Granted, 55)
	e.left("full", l, 0)
	e.after(5 * core.Second) // the 55 are used at their end
	e.left("full", l, 5)
	e.refused(take("full", l, 6))

	e.admitted(take("lacking", l, 5))
	e.equal("what one leases that lacks as much", e.one(leased(upTo("lacking", l, 1, 0, 60, 1000), 5*core.Second)).Granted, 55)
	e.equal("what is needed", e.one(leased(upTo("needed", l, 1, 58, 60, 1000), 5*core.Second)).Granted, 58)
	e.left("needed", l, 2)
	e.equal("half of what may be leased", e.one(leased(upTo("half", l, 1, 0, 60, 500), 5*core.Second)).Granted, 27)
	e.left("half", l, 28)
	e.equal("what is leased for as long as it fills", e.one(leased(upTo("long", l, 1, 0, 60, 1000), core.Minute)).Granted, 0)
	e.left("long", l, 60)
}

func askLeaseBack(e *examiner) {
	l := limit(core.TokenBucket, 60, core.Minute)
	e.after(0)
	batch := e.one(leased(upTo("late", l, 1, 0, 40, 1000), 5*core.Second))
	e.after(3*core.Second + 1)
	e.equal("what is credited of 10", e.one(leased(giveBack("late", l, 10, batch.Receipt), 5*core.Second)).Granted, 6)
	e.left("late", l, 55-40+3+6)
	e.equal("what is credited of 3", e.one(leased(giveBack("late", l, 3, batch.Receipt), 5*core.Second)).Granted, 0)
	e.after(50 * core.Second)
	e.equal("what is credited of 27 after 50 s", e.one(leased(giveBack("late", l, 27, batch.Receipt), 5*core.Second)).Granted, 0)

	// A lease of 4 s that comes back 1 s later, while one of 20 s is out for 19 s more.
	e.after(0)
	near := e.one(leased(upTo("near", l, 1, 0, 40, 1000), 4*core.Second))
	e.one(leased(upTo("near", l, 1, 0, 8, 1000), 20*core.Second))
	e.after(core.Second)
	e.equal("what is credited of a short lease", e.one(leased(giveBack("near", l, 40, near.Receipt), 4*core.Second)).Granted, 24)
	e.left("near", l, 60-4-40-8+1+24)
	e.after(20 * core.Second) // the 8 are used at their end
	e.left("near", l, 52)
	e.refused(take("near", l, 53))
}
