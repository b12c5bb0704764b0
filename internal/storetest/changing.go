// SPDX-License-Identifier: Apache-2.0

package storetest

import "github.com/penstock/penstock/core"

func askChangedLimit(e *examiner) {
	for _, a := range algorithms {
		key := a.Label()
		ten, twenty, five := limit(a, 10, core.Minute), limit(a, 20, core.Minute), limit(a, 5, core.Minute)
		e.after(0)
		e.admitted(take(key, ten, 8))
		e.left(key, twenty, 12)
		e.admitted(take(key, twenty, 2))
		e.left(key, ten, 0)
		e.left(key, five, 0)
		e.refused(take(key, five, 1))
		e.refused(take(key, ten, 1))
		e.admitted(take(key, twenty, 10))
		e.refused(take(key, twenty, 1))
	}
	// A burst that changes keeps what is missing from the full bucket.
	small, large := burst(core.TokenBucket, 6, core.Minute, 6), burst(core.TokenBucket, 6, core.Minute, 30)
	e.admitted(take("burst", small, 4))
	e.left("burst", large, 26)
	e.admitted(take("burst", large, 16))
	e.left("burst", small, 0)
	if r := e.refused(take("burst", small, 1)); r.Wait <= core.Minute {
		e.Fatalf("20 are missing from a burst of 6 at 6 a minute: the wait is %s, want well over a minute", r.Wait)
	}
}

func askChangedUnit(e *examiner) {
	// The parts of one do not go into the parts of the other.
	pairs := [][2]core.Limit{
		{burst(core.TokenBucket, 7, 11*core.Millisecond, 100), burst(core.TokenBucket, 3, 13*core.Millisecond, 100)},
		{burst(core.TokenBucket, 999_983, core.Minute, 999_983), burst(core.TokenBucket, 999_979, core.Minute, 999_979)},
		{burst(core.TokenBucket, 1, core.Hour, 100), burst(core.TokenBucket, 1_000_000, core.Millisecond, 1_000_000)},
	}
	for i, pair := range pairs {
		key, from, to := string(rune('a'+i)), pair[0], pair[1]
		e.after(0)
		e.admitted(take(key, from, 50))
		e.at(e.now + from.Window()/7 + 1)
		e.refilled(key, &from, &to)
	}
}

// refilled fails the test if a bucket read under another limit has more than under the one that wrote it.
func (e *examiner) refilled(key string, from, to *core.Limit) {
	e.Helper()
	// A bucket is brought forward and converted when it is written.
	e.take(take(key, *from, 1))
	before, _ := e.Counter(e, []byte(key), from)
	e.take(take(key, *to, 1))
	after, _ := e.Counter(e, []byte(key), to)
	// A token more is missing, and no time has passed.
	had := fraction(before.Used+before.Aux, before.Aux)
	has := fraction(after.Used, after.Aux)
	if has.Cmp(had) < 0 {
		e.Fatalf("%q: %d/%d tokens are missing after a conversion, want at least %d/%d", key, after.Used, after.Aux,
			before.Used+before.Aux, before.Aux)
	}
}
