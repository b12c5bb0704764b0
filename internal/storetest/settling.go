// SPDX-License-Identifier: Apache-2.0

package storetest

import "github.com/penstock/penstock/core"

func askGiveBack(e *examiner) {
	for _, a := range algorithms {
		key, l := a.Label(), limit(a, 10, core.Minute)
		e.after(core.Second)
		charge := e.admitted(take(key, l, 6))
		e.after(2 * core.Second)
		e.admitted(take(key, l, 4))
		r := e.one(giveBack(key, l, 5, charge.Receipt))
		if r.Granted != 5 || r.Refused || r.Wait != 0 || r.Receipt != 0 {
			e.Fatalf("%s: giving 5 of 6 back: %+v, want 5 granted", a, r)
		}
		if r.Remaining != 5 {
			e.Fatalf("%s: %d left after giving 5 of 10 back, want 5", a, r.Remaining)
		}
		e.admitted(take(key, l, 5))
	}
	// Of a sliding window the one before is credited, and of a log the mark that was charged.
	sliding, log := limit(core.SlidingWindow, 100, core.Minute), limit(core.SlidingLog, 100, core.Minute)
	e.after(0)
	receipts := []core.Result{e.admitted(take("prev", sliding, 100)), e.admitted(take("marks", log, 60))}
	e.after(30 * core.Second)
	e.admitted(take("marks", log, 40))
	e.one(giveBack("marks", log, 20, receipts[1].Receipt))
	e.after(60 * core.Second)
	e.left("marks", log, 60) // the first mark left, the second did not
	e.after(90 * core.Second)
	e.admitted(take("prev", sliding, 10))
	e.left("prev", sliding, 40) // half of 100, and 10
	e.equal("what the window before takes back", e.one(giveBack("prev", sliding, 40, receipts[0].Receipt)).Granted, 40)
	e.left("prev", sliding, 60) // half of 60, and 10
	e.after(120 * core.Second)
	e.left("prev", sliding, 90) // the 10 are still there
}

func askLateGiveBack(e *examiner) {
	for _, a := range algorithms {
		key, l := a.Label(), limit(a, 10, core.Minute)
		e.after(0)
		charge := e.admitted(take(key, l, 10))
		e.after(2 * core.Minute)
		e.admitted(take(key, l, 10))
		receipts := []core.Micros{charge.Receipt, 0, -1}
		if a != core.TokenBucket { // a bucket keeps no charges to tell a receipt by
			receipts = append(receipts, e.now-7, e.now+core.Hour)
		}
		for _, receipt := range receipts {
			if r := e.one(giveBack(key, l, 3, receipt)); r.Granted != 0 || r.Refused {
				e.Fatalf("%s: a receipt of %d, now %d, gives %d back, want 0", a, receipt, e.now, r.Granted)
			}
		}
		e.left(key, l, 0)
		e.refused(take(key, l, 1))
	}
	// A fixed window later is late enough, a microsecond before the bucket would have filled is not.
	fixed, bucket := limit(core.FixedWindow, 10, core.Minute), burst(core.TokenBucket, 10, core.Minute, 20)
	e.after(0)
	charges := e.take(take("fixed", fixed, 10), take("bucket", bucket, 20))
	e.after(core.Minute)
	e.take(take("fixed", fixed, 10), take("bucket", bucket, 10))
	e.equal("what a fixed window takes back a window later", e.one(giveBack("fixed", fixed, 10, charges[0].Receipt)).Granted, 0)
	e.after(2*core.Minute - 1)
	e.equal("what a bucket takes back before it filled", e.one(giveBack("bucket", bucket, 1, charges[1].Receipt)).Granted, 1)
	e.after(2 * core.Minute)
	e.equal("what a bucket takes back once it filled", e.one(giveBack("bucket", bucket, 1, charges[1].Receipt)).Granted, 0)
}

func askNeverBelowZero(e *examiner) {
	for _, a := range algorithms {
		key, l := a.Label(), limit(a, 10, core.Minute)
		charge := e.admitted(take(key, l, 3))
		e.equal("what is given back of 3 by 5", e.one(giveBack(key, l, 5, charge.Receipt)).Granted, 3)
		e.equal("what is given back of nothing", e.one(giveBack(key, l, 5, charge.Receipt)).Granted, 0)
		e.left(key, l, 10)
		e.refused(take(key, l, 11))
		e.admitted(take(key, l, 10))
		e.left(key, l, 0)
	}
}

func askDebt(e *examiner) {
	for _, a := range algorithms {
		key, l := a.Label(), limit(a, 10, core.Minute)
		e.admitted(take(key, l, 8))
		r := e.one(force(key, l, 5))
		if r.Granted != 5 || r.Refused || r.Wait != 0 || r.Remaining != 0 || r.Receipt == 0 {
			e.Fatalf("%s: forcing 5 where 2 are left: %+v, want 5 recorded and 0 left", a, r)
		}
		e.equal("what is recorded of 100", e.one(force(key, l, 100)).Granted, 7)
		r = e.one(force(key, l, 1))
		if r.Granted != 0 || r.Receipt != 0 || r.Remaining != 0 {
			e.Fatalf("%s: forcing beyond a window of debt: %+v, want nothing recorded", a, r)
		}
		e.refused(take(key, l, 1))
		// Forced even if the call is refused.
		if r := e.take(take(key, l, 1), force(key+" other", l, 4)); !r[0].Refused || r[1].Granted != 4 {
			e.Fatalf("%s: forcing beside a refused check: %+v, want 4 recorded", a, r)
		}
	}
	// Two windows later every debt is paid.
	e.after(2 * core.Minute)
	for _, a := range algorithms {
		e.admitted(take(a.Label(), limit(a, 10, core.Minute), 10))
	}
	// A debt can be given back.
	for _, a := range algorithms {
		key, l := a.Label()+" settled", limit(a, 10, core.Minute)
		r := e.one(force(key, l, 20))
		e.equal("what is given back of a debt", e.one(giveBack(key, l, 15, r.Receipt)).Granted, 15)
		e.left(key, l, 5)
	}
}
