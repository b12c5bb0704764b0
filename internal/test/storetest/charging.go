// SPDX-License-Identifier: Apache-2.0

package storetest

import corecounter "github.com/penstock/penstock/core/counter"

func askAllOrNothing(e *examiner) {
	roomy, tight := limit(corecounter.FixedWindow, 100, corecounter.Minute), limit(corecounter.TokenBucket, 2, corecounter.Minute)
	log, sliding := limit(corecounter.SlidingLog, 50, corecounter.Minute), limit(corecounter.SlidingWindow, 70, corecounter.Minute)
	all := func(cost int64) []corecounter.Check {
		return []corecounter.Check{take("fw", roomy, cost), take("sl", log, cost), take("tb", tight, cost),
			take("sw", sliding, cost)}
	}
	for i, r := range e.take(all(2)...) {
		if r.Denied || r.Granted != 2 || r.Receipt == 0 {
			e.Fatalf("check %d of an admitted call: %+v, want 2 granted and a receipt", i, r)
		}
	}
	for i, r := range e.take(all(1)...) {
		if r.Denied != (i == 2) || r.Granted != 0 || r.Receipt != 0 {
			e.Fatalf("check %d of a denied call: %+v, want denied only by the third and nothing granted", i, r)
		}
	}
	e.left("fw", roomy, 98)
	e.left("sl", log, 48)
	e.left("tb", tight, 0)
	e.left("sw", sliding, 68)
}

func askDeniedCostsNothing(e *examiner) {
	for _, a := range algorithms {
		l := limit(a, 3, corecounter.Minute)
		e.mustAdmit(take(a.Label(), l, 2))
		for range 5 {
			e.mustDeny(take(a.Label(), l, 2))
		}
		e.mustAdmit(take(a.Label(), l, 1))
		e.left(a.Label(), l, 0)
	}
}

func askShadow(e *examiner) {
	for _, a := range algorithms {
		l, wide := limit(a, 3, corecounter.Minute), limit(a, 10, corecounter.Minute)
		real, trial := a.Label()+" enforced", a.Label()+" tried"
		// If both checks are admitted, both are charged.
		e.take(take(real, wide, 3), shadow(take(trial, l, 3)))
		e.left(real, wide, 7)
		e.left(trial, l, 0)
		// If the shadow check is denied, its result reports this. The call is admitted
		// nevertheless, and the shadow check is not charged.
		r := e.take(shadow(take(trial, l, 1)), take(real, wide, 1))
		if !r[0].Denied || r[0].Granted != 0 || r[0].Wait == 0 || r[1].Denied || r[1].Granted != 1 {
			e.Fatalf("%s: a shadow over its limit: %+v, want it denied with a wait and the other granted", a, r)
		}
		e.left(trial, l, 0)
		// If another check denies the call, the shadow check is admitted but not charged.
		idle := a.Label() + " idle"
		r = e.take(shadow(take(idle, l, 1)), take(real, wide, 7))
		if r[0].Denied || r[0].Granted != 0 || r[0].Receipt != 0 || !r[1].Denied {
			e.Fatalf("%s: a shadow in a denied call: %+v, want it passed and not charged", a, r)
		}
		e.left(idle, l, 3)
		e.left(real, wide, 6)
	}
}

// upTo returns an OpUpTo check.
func upTo(key string, l corecounter.Limit, least, need, most, shareMille int64) corecounter.Check {
	c := check(corecounter.OpUpTo, key, l, need)
	c.Min, c.Max, c.ShareMille = least, most, shareMille
	return c
}

func askUpTo(e *examiner) {
	cases := []struct {
		used, least, need, most, shareMille int64
		want                                int64 // units granted; -1 means denied
	}{
		{least: 1, need: 10, most: 10, want: 10},
		// less than needed, but at least the minimum
		{used: 95, least: 1, need: 10, most: 10, want: 5},
		// exactly the minimum
		{used: 95, least: 5, need: 10, most: 10, want: 5},
		// less than the minimum, so nothing
		{used: 95, least: 6, need: 10, most: 10, want: -1},
		{used: 100, least: 1, need: 10, most: 10, shareMille: 1000, want: -1}, // no units are left
		// the 10 that are needed, and half of the 90 that remain
		{least: 1, need: 10, most: 100, shareMille: 500, want: 55},
		// no more than the maximum
		{least: 1, need: 10, most: 30, shareMille: 500, want: 30},
		{least: 1, need: 10, most: 100, shareMille: 1000, want: 100}, // everything that remains
		// ⌊41 × 333 / 1000⌋ = 13
		{used: 49, least: 1, need: 10, most: 100, shareMille: 333, want: 23},
		// nothing is needed, so a share of everything
		{least: 1, most: 100, shareMille: 250, want: 25},
		// nothing is needed and nothing is wanted: admitted
		{least: 1, shareMille: 1000},
		// everything that is left is needed, so there is no share
		{used: 90, least: 10, need: 10, most: 100, shareMille: 1000, want: 10},
		// the minimum exceeds the limit
		{least: 101, need: 101, most: 200, want: -1},
	}
	for i, c := range cases {
		for _, a := range algorithms {
			key, l := a.Label()+string(rune('a'+i)), limit(a, 100, corecounter.Minute)
			e.mustAdmit(take(key, l, c.used))
			r := e.takeOne(upTo(key, l, c.least, c.need, c.most, c.shareMille))
			if r.Denied != (c.want < 0) || r.Granted != max(0, c.want) || r.Denied != (r.Wait != 0) {
				e.Fatalf("%s: up to n %+v: %+v", a, c, r)
			}
			e.equal("what remains", r.Remaining, 100-c.used-max(0, c.want))
			e.left(key, l, 100-c.used-max(0, c.want))
		}
	}
	// If an up-to-n check is denied, the whole call is denied. If another check denies the call,
	// the up-to-n check is not charged.
	l := limit(corecounter.FixedWindow, 10, corecounter.Minute)
	r := e.take(take("other", l, 1), upTo("nothing", l, 11, 11, 11, 0))
	if r[0].Granted != 0 || r[0].Denied || !r[1].Denied || r[1].Wait != corecounter.Never {
		e.Fatalf("an up-to-n check that denies: %+v, want nothing charged", r)
	}
	r = e.take(upTo("kept", l, 1, 5, 10, 500), take("other", l, 11))
	if r[0].Granted != 0 || r[0].Receipt != 0 {
		e.Fatalf("an up-to-n check in a denied call: %+v, want nothing granted", r)
	}
	e.left("kept", l, 10)
}

func askLook(e *examiner) {
	for _, a := range algorithms {
		key, l := a.Label(), limit(a, 5, corecounter.Minute)
		e.setClock(0)
		e.mustAdmit(take(key, l, 4))
		before, marks := e.Counter(e, []byte(key), &l)
		r := e.take(look(key, l, 2), take(key+" other", l, 1))
		if !r[0].Denied || r[0].Granted != 0 || r[0].Wait == 0 || r[1].Granted != 1 {
			e.Fatalf("%s: looking at more than there is: %+v, want denied, and the other check granted", a, r)
		}
		if r := e.takeOne(look(key, l, 1)); r.Denied || r.Wait != 0 || r.Granted != 0 || r.Receipt != 0 {
			e.Fatalf("%s: looking at what there is: %+v, want passed and nothing granted", a, r)
		}
		// A look while the clock is ahead does not advance the counter. When the clock is right
		// again, the counter is unchanged.
		ahead := 40 * corecounter.Second
		if a == corecounter.SlidingWindow {
			ahead = 70 * corecounter.Second
		}
		e.setClock(ahead)
		e.takeOne(look(key, l, 1))
		e.setClock(10 * corecounter.Second)
		e.checkUnchanged(key, &l, before, marks)
	}
}

func askCostZero(e *examiner) {
	for _, a := range algorithms {
		key, l := a.Label(), limit(a, 2, corecounter.Minute)
		r := e.mustAdmit(take(key, l, 0))
		if r.Granted != 0 || r.Wait != 0 || r.Receipt != 0 || r.Remaining != 2 {
			e.Fatalf("%s: cost 0 on a fresh counter: %+v, want nothing granted and no wait", a, r)
		}
		e.mustAdmit(take(key, l, 2))
		one := e.mustDeny(take(key, l, 1))
		r = e.mustAdmit(take(key, l, 0))
		if r.Wait == 0 || r.Wait != one.Wait {
			e.Fatalf("%s: cost 0 on a full counter waits %s, want the %s that 1 waits", a, r.Wait, one.Wait)
		}
		if r := e.takeOne(look(key, l, 0)); r.Denied || r.Wait != one.Wait {
			e.Fatalf("%s: a look of cost 0: %+v, want granted and the wait of 1", a, r)
		}
	}
}

func askWholeLimit(e *examiner) {
	for _, a := range algorithms {
		for _, count := range []int64{1, 7, 1000, corecounter.LogCountMax, 1 << 20, corecounter.CountMax} {
			if a == corecounter.SlidingLog && count > corecounter.LogCountMax {
				continue
			}
			l := limit(a, count, corecounter.Hour)
			key := a.Label() + "-" + clockTime(corecounter.Micros(count))
			for left := count; left > 0; {
				part := (left + 2) / 3
				left -= part
				r := e.mustAdmit(take(key, l, part))
				e.equal("what is granted", r.Granted, part)
				e.equal("what remains", r.Remaining, left)
			}
			e.mustDeny(take(key, l, 1))
		}
	}
}

func askNever(e *examiner) {
	for _, a := range algorithms {
		l := limit(a, 10, corecounter.Minute)
		if r := e.mustDeny(take(a.Label(), l, 11)); r.Wait != corecounter.Never {
			e.Fatalf("%s: cost 11 of a capacity of 10 waits %s, want Never", a, r.Wait)
		}
		if r := e.mustDeny(take(a.Label(), l, corecounter.CountMax+1)); r.Wait != corecounter.Never {
			e.Fatalf("%s: the greatest cost waits %s, want Never", a, r.Wait)
		}
		e.mustAdmit(take(a.Label(), l, 10))
	}
	large, small := burst(corecounter.TokenBucket, 10, corecounter.Minute, 20), burst(corecounter.TokenBucket, 10, corecounter.Minute, 5)
	e.mustAdmit(take("large", large, 20))
	if r := e.mustDeny(take("small", small, 6)); r.Wait != corecounter.Never {
		e.Fatalf("cost 6 of a burst of 5 waits %s, want Never", r.Wait)
	}
}
