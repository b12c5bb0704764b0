// SPDX-License-Identifier: Apache-2.0

package storetest

import corecounter "github.com/penstock/penstock/core/counter"

func askChangedLimit(e *examiner) {
	for _, a := range algorithms {
		key := a.Label()
		ten, twenty, five := limit(a, 10, corecounter.Minute), limit(a, 20, corecounter.Minute), limit(a, 5, corecounter.Minute)
		e.setClock(0)
		e.mustAdmit(take(key, ten, 8))
		e.left(key, twenty, 12)
		e.mustAdmit(take(key, twenty, 2))
		e.left(key, ten, 0)
		e.left(key, five, 0)
		e.mustDeny(take(key, five, 1))
		e.mustDeny(take(key, ten, 1))
		e.mustAdmit(take(key, twenty, 10))
		e.mustDeny(take(key, twenty, 1))
	}
	// If the burst changes, the number of tokens that the bucket lacks stays the same.
	small, large := burst(corecounter.TokenBucket, 6, corecounter.Minute, 6), burst(corecounter.TokenBucket, 6, corecounter.Minute, 30)
	e.mustAdmit(take("burst", small, 4))
	e.left("burst", large, 26)
	e.mustAdmit(take("burst", large, 16))
	e.left("burst", small, 0)
	if r := e.mustDeny(take("burst", small, 1)); r.Wait <= corecounter.Minute {
		e.Fatalf("20 are missing from a burst of 6 at 6 a minute: the wait is %s, want well over a minute", r.Wait)
	}
}

func askChangedUnit(e *examiner) {
	// The two limits of a pair divide a token into different numbers of parts, and neither number
	// is a multiple of the other.
	pairs := [][2]corecounter.Limit{
		{burst(corecounter.TokenBucket, 7, 11*corecounter.Millisecond, 100), burst(corecounter.TokenBucket, 3, 13*corecounter.Millisecond, 100)},
		{burst(corecounter.TokenBucket, 999_983, corecounter.Minute, 999_983), burst(corecounter.TokenBucket, 999_979, corecounter.Minute, 999_979)},
		{burst(corecounter.TokenBucket, 1, corecounter.Hour, 100), burst(corecounter.TokenBucket, 1_000_000, corecounter.Millisecond, 1_000_000)},
	}
	for i, pair := range pairs {
		key, from, to := string(rune('a'+i)), pair[0], pair[1]
		e.setClock(0)
		e.mustAdmit(take(key, from, 50))
		e.at(e.now + from.Window()/7 + 1)
		e.refilled(key, &from, &to)
	}
}

// examiner.refilled takes a token from a bucket under one limit, and then another token under
// another limit. It fails the test if the change of the limit has added tokens.
func (e *examiner) refilled(key string, from, to *corecounter.Limit) {
	e.Helper()
	// A bucket is refilled and converted only when it is written.
	e.take(take(key, *from, 1))
	before, _ := e.Counter(e, []byte(key), from)
	e.take(take(key, *to, 1))
	after, _ := e.Counter(e, []byte(key), to)
	// Now the bucket lacks one token more, because no time has passed.
	had := fraction(before.Used+before.Aux, before.Aux)
	has := fraction(after.Used, after.Aux)
	if has.Cmp(had) < 0 {
		e.Fatalf("%q: %d/%d tokens are missing after a conversion, want at least %d/%d", key, after.Used, after.Aux,
			before.Used+before.Aux, before.Aux)
	}
}
