// SPDX-License-Identifier: Apache-2.0

package storetest

import "github.com/penstock/penstock/core"

func askAllOrNothing(e *examiner) {
	roomy, tight := limit(core.FixedWindow, 100, core.Minute), limit(core.TokenBucket, 2, core.Minute)
	log, sliding := limit(core.SlidingLog, 50, core.Minute), limit(core.SlidingWindow, 70, core.Minute)
	all := func(cost int64) []core.Check {
		return []core.Check{take("fw", roomy, cost), take("sl", log, cost), take("tb", tight, cost),
			take("sw", sliding, cost)}
	}
	for i, r := range e.take(all(2)...) {
		if r.Refused || r.Granted != 2 || r.Receipt == 0 {
			e.Fatalf("check %d of an admitted call: %+v, want 2 granted and a receipt", i, r)
		}
	}
	for i, r := range e.take(all(1)...) {
		if r.Refused != (i == 2) || r.Granted != 0 || r.Receipt != 0 {
			e.Fatalf("check %d of a refused call: %+v, want refused only by the third and nothing granted", i, r)
		}
	}
	e.left("fw", roomy, 98)
	e.left("sl", log, 48)
	e.left("tb", tight, 0)
	e.left("sw", sliding, 68)
}

func askRefusedCostsNothing(e *examiner) {
	for _, a := range algorithms {
		l := limit(a, 3, core.Minute)
		e.admitted(take(a.Label(), l, 2))
		for range 5 {
			e.refused(take(a.Label(), l, 2))
		}
		e.admitted(take(a.Label(), l, 1))
		e.left(a.Label(), l, 0)
	}
}

func askShadow(e *examiner) {
	for _, a := range algorithms {
		l, wide := limit(a, 3, core.Minute), limit(a, 10, core.Minute)
		real, trial := a.Label()+" enforced", a.Label()+" tried"
		// Both pass: both are charged.
		e.take(take(real, wide, 3), shadow(take(trial, l, 3)))
		e.left(real, wide, 7)
		e.left(trial, l, 0)
		// The shadow would refuse: it says so, refuses nothing, and is not charged.
		r := e.take(shadow(take(trial, l, 1)), take(real, wide, 1))
		if !r[0].Refused || r[0].Granted != 0 || r[0].Wait == 0 || r[1].Refused || r[1].Granted != 1 {
			e.Fatalf("%s: a shadow over its limit: %+v, want it refused with a wait and the other granted", a, r)
		}
		e.left(trial, l, 0)
		// The call is refused by another check: the shadow passes and is not charged.
		idle := a.Label() + " idle"
		r = e.take(shadow(take(idle, l, 1)), take(real, wide, 7))
		if r[0].Refused || r[0].Granted != 0 || r[0].Receipt != 0 || !r[1].Refused {
			e.Fatalf("%s: a shadow in a refused call: %+v, want it passed and not charged", a, r)
		}
		e.left(idle, l, 3)
		e.left(real, wide, 6)
	}
}

// upTo is an OpUpTo check.
func upTo(key string, l core.Limit, least, need, most, shareMille int64) core.Check {
	c := check(core.OpUpTo, key, l, need)
	c.Min, c.Max, c.ShareMille = least, most, shareMille
	return c
}

func askUpTo(e *examiner) {
	cases := []struct {
		used, least, need, most, shareMille int64
		want                                int64 // granted; -1: refused
	}{
		{0, 1, 10, 10, 0, 10},
		{95, 1, 10, 10, 0, 5},       // less than needed, more than the least
		{95, 5, 10, 10, 0, 5},       // exactly the least
		{95, 6, 10, 10, 0, -1},      // less than the least: nothing
		{100, 1, 10, 10, 1000, -1},  // nothing left
		{0, 1, 10, 100, 500, 55},    // half of the 90 that remain
		{0, 1, 10, 30, 500, 30},     // no more than the most
		{0, 1, 10, 100, 1000, 100},  // all of it
		{49, 1, 10, 100, 333, 23},   // ⌊41 × 333 / 1000⌋ = 13
		{0, 1, 0, 100, 250, 25},     // nothing needed, a share of everything
		{0, 1, 0, 0, 1000, 0},       // nothing needed, nothing wanted: admitted
		{90, 10, 10, 100, 1000, 10}, // all that there is, and no share of nothing
		{0, 101, 101, 200, 0, -1},   // more than the limit at the least
	}
	for i, c := range cases {
		for _, a := range algorithms {
			key, l := a.Label()+string(rune('a'+i)), limit(a, 100, core.Minute)
			e.admitted(take(key, l, c.used))
			r := e.one(upTo(key, l, c.least, c.need, c.most, c.shareMille))
			if r.Refused != (c.want < 0) || r.Granted != max(0, c.want) || r.Refused != (r.Wait != 0) {
				e.Fatalf("%s: up to n %+v: %+v", a, c, r)
			}
			e.equal("what remains", r.Remaining, 100-c.used-max(0, c.want))
			e.left(key, l, 100-c.used-max(0, c.want))
		}
	}
	// It refuses the whole call, and is not charged when another check does.
	l := limit(core.FixedWindow, 10, core.Minute)
	r := e.take(take("other", l, 1), upTo("nothing", l, 11, 11, 11, 0))
	if r[0].Granted != 0 || r[0].Refused || !r[1].Refused || r[1].Wait != core.Never {
		e.Fatalf("an up-to-n check that refuses: %+v, want nothing charged", r)
	}
	r = e.take(upTo("kept", l, 1, 5, 10, 500), take("other", l, 11))
	if r[0].Granted != 0 || r[0].Receipt != 0 {
		e.Fatalf("an up-to-n check in a refused call: %+v, want nothing granted", r)
	}
	e.left("kept", l, 10)
}

func askLook(e *examiner) {
	for _, a := range algorithms {
		key, l := a.Label(), limit(a, 5, core.Minute)
		e.after(0)
		e.admitted(take(key, l, 4))
		before, marks := e.Counter(e, []byte(key), &l)
		r := e.take(look(key, l, 2), take(key+" other", l, 1))
		if !r[0].Refused || r[0].Granted != 0 || r[0].Wait == 0 || r[1].Granted != 1 {
			e.Fatalf("%s: looking at more than there is: %+v, want refused, and the other check granted", a, r)
		}
		if r := e.one(look(key, l, 1)); r.Refused || r.Wait != 0 || r.Granted != 0 || r.Receipt != 0 {
			e.Fatalf("%s: looking at what there is: %+v, want passed and nothing granted", a, r)
		}
		// A look from a wrong clock brings nothing forward: back at the right time all is as it was.
		ahead := 40 * core.Second
		if a == core.SlidingWindow {
			ahead = 70 * core.Second
		}
		e.after(ahead)
		e.one(look(key, l, 1))
		e.after(10 * core.Second)
		e.same(key, &l, before, marks)
	}
}

func askCostZero(e *examiner) {
	for _, a := range algorithms {
		key, l := a.Label(), limit(a, 2, core.Minute)
		r := e.admitted(take(key, l, 0))
		if r.Granted != 0 || r.Wait != 0 || r.Receipt != 0 || r.Remaining != 2 {
			e.Fatalf("%s: cost 0 on a fresh counter: %+v, want nothing granted and no wait", a, r)
		}
		e.admitted(take(key, l, 2))
		one := e.refused(take(key, l, 1))
		r = e.admitted(take(key, l, 0))
		if r.Wait == 0 || r.Wait != one.Wait {
			e.Fatalf("%s: cost 0 on a full counter waits %s, want the %s that 1 waits", a, r.Wait, one.Wait)
		}
		if r := e.one(look(key, l, 0)); r.Refused || r.Wait != one.Wait {
			e.Fatalf("%s: a look of cost 0: %+v, want granted and the wait of 1", a, r)
		}
	}
}

func askWholeLimit(e *examiner) {
	for _, a := range algorithms {
		for _, count := range []int64{1, 7, 1000, core.LogCountMax, 1 << 20, core.CountMax} {
			if a == core.SlidingLog && count > core.LogCountMax {
				continue
			}
			l := limit(a, count, core.Hour)
			key := a.Label() + "-" + clockTime(core.Micros(count))
			for left := count; left > 0; {
				part := (left + 2) / 3
				left -= part
				r := e.admitted(take(key, l, part))
				e.equal("what is granted", r.Granted, part)
				e.equal("what remains", r.Remaining, left)
			}
			e.refused(take(key, l, 1))
		}
	}
}

func askNever(e *examiner) {
	for _, a := range algorithms {
		l := limit(a, 10, core.Minute)
		if r := e.refused(take(a.Label(), l, 11)); r.Wait != core.Never {
			e.Fatalf("%s: cost 11 of a capacity of 10 waits %s, want Never", a, r.Wait)
		}
		if r := e.refused(take(a.Label(), l, core.CountMax+1)); r.Wait != core.Never {
			e.Fatalf("%s: the greatest cost waits %s, want Never", a, r.Wait)
		}
		e.admitted(take(a.Label(), l, 10))
	}
	large, small := burst(core.TokenBucket, 10, core.Minute, 20), burst(core.TokenBucket, 10, core.Minute, 5)
	e.admitted(take("large", large, 20))
	if r := e.refused(take("small", small, 6)); r.Wait != core.Never {
		e.Fatalf("cost 6 of a burst of 5 waits %s, want Never", r.Wait)
	}
}
