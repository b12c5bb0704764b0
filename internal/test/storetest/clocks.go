// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"fmt"

	corecounter "github.com/penstock/penstock/core/counter"
)

func askAt(e *examiner) {
	for _, a := range algorithms {
		l := limit(a, 2, corecounter.Minute)
		for _, span := range []corecounter.Micros{0, 1, 17*corecounter.Second + 3, -corecounter.Second, corecounter.Hour} {
			e.setClock(span)
			for _, c := range []corecounter.Check{take(a.Label(), l, 1), look(a.Label(), l, 1), force(a.Label(), l, 1)} {
				if r := e.takeOne(c); r.At != e.now {
					e.Fatalf("%s at %d: the answer is dated %d", name(&c), e.now, r.At)
				}
			}
		}
	}
}

func askAligned(e *examiner) {
	for _, a := range []corecounter.Algorithm{corecounter.FixedWindow, corecounter.SlidingWindow} {
		for _, window := range []corecounter.Micros{corecounter.WindowMin, 7 * corecounter.Millisecond, corecounter.Minute, corecounter.WindowMax} {
			l := limit(a, 5, window)
			key := a.Label() + window.String()
			e.at(start + 3*window/7)
			first := e.now - e.now%window
			r := e.mustAdmit(take(key, l, 5))
			e.equal("the receipt", int64(r.Receipt), int64(first))
			e.equal("the reset", int64(r.Reset), int64(first+window-e.now))
			e.at(first + window - 1)
			e.mustDeny(take(key, l, 1))
			if e.at(first + window); a == corecounter.SlidingWindow {
				e.at(first + window + window/5 + 1) // a fifth of the previous window has expired
			}
			r = e.mustAdmit(take(key, l, 1))
			e.equal("the receipt of the next window", int64(r.Receipt), int64(first+window))
		}
	}
}

func askClockBack(e *examiner) {
	for _, a := range algorithms {
		key, l := a.Label(), limit(a, 10, corecounter.Minute)
		e.setClock(30 * corecounter.Second)
		e.mustAdmit(take(key, l, 10))
		for _, span := range []corecounter.Micros{29 * corecounter.Second, 0, -15 * corecounter.Second, -29 * corecounter.Second} {
			e.setClock(span)
			e.mustDeny(take(key, l, 1))
		}
		// The wait begins at the counter's own instant, which may be ahead of the clock by a
		// window. So the wait is at most two windows.
		r := e.mustDeny(take(key, l, 1))
		if r.Wait > 2*corecounter.Minute {
			e.Fatalf("%s: the wait is %s, want at most two windows", a, r.Wait)
		}
		e.at(e.now + r.Wait)
		e.mustAdmit(take(key, l, 1))
	}
}

func askClockBackHour(e *examiner) {
	for _, a := range algorithms {
		key, l := a.Label(), limit(a, 10, corecounter.Minute)
		e.setClock(corecounter.Hour + 30*corecounter.Second)
		e.mustAdmit(take(key, l, 7))
		e.setClock(30 * corecounter.Second)
		if r := e.mustDeny(take(key, l, 4)); r.Wait > corecounter.Minute {
			e.Fatalf("%s: an hour back the wait is %s, want at most a window", a, r.Wait)
		}
		e.mustAdmit(take(key, l, 3)) // its count was kept
		e.mustDeny(take(key, l, 1))
		e.setClock(2*corecounter.Minute + 30*corecounter.Second)
		e.mustAdmit(take(key, l, 10)) // two windows later, the charge has expired
	}
}

func askClockForth(e *examiner) {
	for _, a := range algorithms {
		key, l := a.Label(), limit(a, 10, corecounter.Minute)
		e.setClock(0)
		e.mustAdmit(take(key, l, 10))
		e.mustDeny(take(key, l, 1))
		e.setClock(corecounter.Hour)
		r := e.mustAdmit(take(key, l, 10))
		if r.Reset > corecounter.Minute {
			e.Fatalf("%s: an hour forth the reset is %s, want at most a window", a, r.Reset)
		}
		e.setClock(corecounter.Second)
		if r := e.mustDeny(take(key, l, 1)); r.Wait > corecounter.Minute {
			e.Fatalf("%s: back again the wait is %s, want at most a window", a, r.Wait)
		}
		e.setClock(2*corecounter.Minute + corecounter.Second)
		e.mustAdmit(take(key, l, 10))
	}
}

func askWaits(e *examiner) {
	for _, count := range []int64{1, 3, 100, 9_973} {
		for _, window := range []corecounter.Micros{corecounter.WindowMin, 999_983, corecounter.Minute, corecounter.WindowMax} {
			for _, a := range algorithms {
				l := limit(a, count, window)
				for i, cost := range []int64{1, (count + 1) / 2, count} {
					key := fmt.Sprint(a.Label(), i, "/", window, "/", count)
					e.at(start - start%window + window/3)
					e.mustAdmit(take(key, l, (count+1)/2))
					e.at(e.now + window/5)
					e.mustAdmit(take(key, l, e.takeOne(look(key, l, 0)).Remaining))
					e.waitIsTrue(key, l, cost)
				}
			}
		}
	}
}

// waitIsTrue fails the test unless the cost is admitted at the end of a denial's wait, but not just
// before.
func (e *examiner) waitIsTrue(key string, l corecounter.Limit, cost int64) {
	e.Helper()
	now := e.now
	r := e.mustDeny(take(key, l, cost))
	if r.Wait <= 0 || r.Wait == corecounter.Never {
		e.Fatalf("%s: denied, and the wait is %d", key, r.Wait)
	}
	before := corecounter.Micros(1)
	if _, _, tick := l.Arithmetic(); tick > 0 {
		before = tick
	}
	e.at(now + r.Wait - before)
	if early := e.takeOne(look(key, l, cost)); !early.Denied {
		e.Fatalf("%s: cost %d was told to wait %d µs, and passes %d µs before that", key, cost, r.Wait, before)
	}
	e.at(now + r.Wait)
	if then := e.takeOne(look(key, l, cost)); then.Denied || then.Wait != 0 {
		e.Fatalf("%s: cost %d waited %d µs as told, and is denied", key, cost, r.Wait)
	}
}

func askResets(e *examiner) {
	type spans struct{ reset, next corecounter.Micros }
	// The limit is 4 a minute. One unit is charged 10 s after the start of the window, and two more
	// 5 s later. The answers are those at 20 s.
	want := map[corecounter.Algorithm]spans{
		corecounter.FixedWindow:   {40 * corecounter.Second, 40 * corecounter.Second},
		corecounter.SlidingWindow: {40 * corecounter.Second, 40 * corecounter.Second},
		corecounter.SlidingLog:    {50 * corecounter.Second, 50 * corecounter.Second},
		// one token every 15 s, counted from 10 s on
		corecounter.TokenBucket: {35 * corecounter.Second, 5 * corecounter.Second},
	}
	for _, a := range algorithms {
		key, l := a.Label(), limit(a, 4, corecounter.Minute)
		e.setClock(10 * corecounter.Second)
		e.mustAdmit(take(key, l, 1))
		e.setClock(15 * corecounter.Second)
		e.mustAdmit(take(key, l, 2))
		e.setClock(20 * corecounter.Second)
		for _, c := range []corecounter.Check{look(key, l, 1), look(key, l, 4), take(key, l, 0)} {
			r := e.takeOne(c)
			e.equal(a.String()+": reset", int64(r.Reset), int64(want[a].reset))
			e.equal(a.String()+": next", int64(r.Next), int64(want[a].next))
			e.equal(a.String()+": leased in", int64(r.LeasedIn), 0)
		}
	}
	e.setClock(20 * corecounter.Second)
	for a, reset := range map[corecounter.Algorithm]corecounter.Micros{corecounter.FixedWindow: 40 * corecounter.Second,
		corecounter.SlidingWindow: 40 * corecounter.Second, corecounter.SlidingLog: 0, corecounter.TokenBucket: 0} {
		if r := e.takeOne(look("fresh "+a.Label(), limit(a, 4, corecounter.Minute), 1)); r.Reset != reset || r.Next != reset {
			e.Fatalf("%s: a fresh counter: %+v, want reset and next %s", a, r, reset)
		}
	}
}
