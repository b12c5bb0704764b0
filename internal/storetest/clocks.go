// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"fmt"

	"github.com/penstock/penstock/core"
)

func askAt(e *examiner) {
	for _, a := range algorithms {
		l := limit(a, 2, core.Minute)
		for _, span := range []core.Micros{0, 1, 17*core.Second + 3, -core.Second, core.Hour} {
			e.after(span)
			for _, c := range []core.Check{take(a.Label(), l, 1), look(a.Label(), l, 1), force(a.Label(), l, 1)} {
				if r := e.one(c); r.At != e.now {
					e.Fatalf("%s at %d: the answer is dated %d", name(&c), e.now, r.At)
				}
			}
		}
	}
}

func askAligned(e *examiner) {
	for _, a := range []core.Algorithm{core.FixedWindow, core.SlidingWindow} {
		for _, window := range []core.Micros{core.WindowMin, 7 * core.Millisecond, core.Minute, core.WindowMax} {
			l := limit(a, 5, window)
			key := a.Label() + window.String()
			e.at(start + 3*window/7)
			first := e.now - e.now%window
			r := e.admitted(take(key, l, 5))
			e.equal("the receipt", int64(r.Receipt), int64(first))
			e.equal("the reset", int64(r.Reset), int64(first+window-e.now))
			e.at(first + window - 1)
			e.refused(take(key, l, 1))
			if e.at(first + window); a == core.SlidingWindow {
				e.at(first + window + window/5 + 1) // a fifth of the window before has left
			}
			r = e.admitted(take(key, l, 1))
			e.equal("the receipt of the next window", int64(r.Receipt), int64(first+window))
		}
	}
}

func askClockBack(e *examiner) {
	for _, a := range algorithms {
		key, l := a.Label(), limit(a, 10, core.Minute)
		e.after(30 * core.Second)
		e.admitted(take(key, l, 10))
		for _, span := range []core.Micros{29 * core.Second, 0, -15 * core.Second, -29 * core.Second} {
			e.after(span)
			e.refused(take(key, l, 1))
		}
		// What it waits for is on the counter's own clock: no more than two windows.
		r := e.refused(take(key, l, 1))
		if r.Wait > 2*core.Minute {
			e.Fatalf("%s: the wait is %s, want at most two windows", a, r.Wait)
		}
		e.at(e.now + r.Wait)
		e.admitted(take(key, l, 1))
	}
}

func askClockBackHour(e *examiner) {
	for _, a := range algorithms {
		key, l := a.Label(), limit(a, 10, core.Minute)
		e.after(core.Hour + 30*core.Second)
		e.admitted(take(key, l, 7))
		e.after(30 * core.Second)
		if r := e.refused(take(key, l, 4)); r.Wait > core.Minute {
			e.Fatalf("%s: an hour back the wait is %s, want at most a window", a, r.Wait)
		}
		e.admitted(take(key, l, 3)) // its count was kept
		e.refused(take(key, l, 1))
		e.after(2*core.Minute + 30*core.Second)
		e.admitted(take(key, l, 10)) // and has left two windows later
	}
}

func askClockForth(e *examiner) {
	for _, a := range algorithms {
		key, l := a.Label(), limit(a, 10, core.Minute)
		e.after(0)
		e.admitted(take(key, l, 10))
		e.refused(take(key, l, 1))
		e.after(core.Hour)
		r := e.admitted(take(key, l, 10))
		if r.Reset > core.Minute {
			e.Fatalf("%s: an hour forth the reset is %s, want at most a window", a, r.Reset)
		}
		e.after(core.Second)
		if r := e.refused(take(key, l, 1)); r.Wait > core.Minute {
			e.Fatalf("%s: back again the wait is %s, want at most a window", a, r.Wait)
		}
		e.after(2*core.Minute + core.Second)
		e.admitted(take(key, l, 10))
	}
}

func askWaits(e *examiner) {
	for _, count := range []int64{1, 3, 100, 9_973} {
		for _, window := range []core.Micros{core.WindowMin, 999_983, core.Minute, core.WindowMax} {
			for _, a := range algorithms {
				l := limit(a, count, window)
				for i, cost := range []int64{1, (count + 1) / 2, count} {
					key := fmt.Sprint(a.Label(), i, "/", window, "/", count)
					e.at(start - start%window + window/3)
					e.admitted(take(key, l, (count+1)/2))
					e.at(e.now + window/5)
					e.admitted(take(key, l, e.one(look(key, l, 0)).Remaining))
					e.waitIsTrue(key, l, cost)
				}
			}
		}
	}
}

// waitIsTrue looks at a counter at the instant that a refusal names, and just before.
func (e *examiner) waitIsTrue(key string, l core.Limit, cost int64) {
	e.Helper()
	now := e.now
	r := e.refused(take(key, l, cost))
	if r.Wait <= 0 || r.Wait == core.Never {
		e.Fatalf("%s: refused, and the wait is %d", key, r.Wait)
	}
	before := core.Micros(1)
	if _, _, tick := l.Arithmetic(); tick > 0 {
		before = tick
	}
	e.at(now + r.Wait - before)
	if early := e.one(look(key, l, cost)); !early.Refused {
		e.Fatalf("%s: cost %d was told to wait %d µs, and passes %d µs before that", key, cost, r.Wait, before)
	}
	e.at(now + r.Wait)
	if then := e.one(look(key, l, cost)); then.Refused || then.Wait != 0 {
		e.Fatalf("%s: cost %d waited %d µs as told, and is refused", key, cost, r.Wait)
	}
}

func askResets(e *examiner) {
	type spans struct{ reset, next core.Micros }
	// 4 a minute, 1 charged 10 s into the window and 2 more 5 s later; asked at 20 s.
	want := map[core.Algorithm]spans{
		core.FixedWindow:   {40 * core.Second, 40 * core.Second},
		core.SlidingWindow: {40 * core.Second, 40 * core.Second},
		core.SlidingLog:    {50 * core.Second, 50 * core.Second},
		core.TokenBucket:   {35 * core.Second, 5 * core.Second}, // a token each 15 s from 10 s on
	}
	for _, a := range algorithms {
		key, l := a.Label(), limit(a, 4, core.Minute)
		e.after(10 * core.Second)
		e.admitted(take(key, l, 1))
		e.after(15 * core.Second)
		e.admitted(take(key, l, 2))
		e.after(20 * core.Second)
		for _, c := range []core.Check{look(key, l, 1), look(key, l, 4), take(key, l, 0)} {
			r := e.one(c)
			e.equal(a.String()+": reset", int64(r.Reset), int64(want[a].reset))
			e.equal(a.String()+": next", int64(r.Next), int64(want[a].next))
			e.equal(a.String()+": leased in", int64(r.LeasedIn), 0)
		}
	}
	e.after(20 * core.Second)
	for a, reset := range map[core.Algorithm]core.Micros{core.FixedWindow: 40 * core.Second,
		core.SlidingWindow: 40 * core.Second, core.SlidingLog: 0, core.TokenBucket: 0} {
		if r := e.one(look("fresh "+a.Label(), limit(a, 4, core.Minute), 1)); r.Reset != reset || r.Next != reset {
			e.Fatalf("%s: a fresh counter: %+v, want reset and next %s", a, r, reset)
		}
	}
}
