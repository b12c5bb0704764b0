// SPDX-License-Identifier: Apache-2.0

package storetest

import corecounter "github.com/penstock/penstock/core/counter"

func askRefundToWindow(e *examiner) {
	for _, a := range algorithms {
		key, l := a.Label(), limit(a, 10, corecounter.Minute)
		e.setClock(corecounter.Second)
		charge := e.mustAdmit(take(key, l, 6))
		e.setClock(2 * corecounter.Second)
		e.mustAdmit(take(key, l, 4))
		r := e.takeOne(refund(key, l, 5, charge.Receipt))
		if r.Granted != 5 || r.Denied || r.Wait != 0 || r.Receipt != 0 {
			e.Fatalf("%s: giving 5 of 6 back: %+v, want 5 granted", a, r)
		}
		if r.Remaining != 5 {
			e.Fatalf("%s: %d left after giving 5 of 10 back, want 5", a, r.Remaining)
		}
		e.mustAdmit(take(key, l, 5))
	}
	// In a sliding window, a refund credits the window that was charged, even if that is the
	// previous one. In a sliding log, a refund credits the mark that was charged.
	sliding, log := limit(corecounter.SlidingWindow, 100, corecounter.Minute), limit(corecounter.SlidingLog, 100, corecounter.Minute)
	e.setClock(0)
	receipts := []corecounter.Result{e.mustAdmit(take("prev", sliding, 100)), e.mustAdmit(take("marks", log, 60))}
	e.setClock(30 * corecounter.Second)
	e.mustAdmit(take("marks", log, 40))
	e.takeOne(refund("marks", log, 20, receipts[1].Receipt))
	e.setClock(60 * corecounter.Second)
	e.left("marks", log, 60) // the first mark has expired, the second has not
	e.setClock(90 * corecounter.Second)
	e.mustAdmit(take("prev", sliding, 10))
	e.left("prev", sliding, 40) // used: half of the 100 units of the previous window, and 10 units of this one
	e.equal("what the window before takes back", e.takeOne(refund("prev", sliding, 40, receipts[0].Receipt)).Granted, 40)
	e.left("prev", sliding, 60) // used: half of the 60 units of the previous window, and 10 units of this one
	e.setClock(120 * corecounter.Second)
	e.left("prev", sliding, 90) // the 10 units still count
}

func askLateRefund(e *examiner) {
	for _, a := range algorithms {
		key, l := a.Label(), limit(a, 10, corecounter.Minute)
		e.setClock(0)
		charge := e.mustAdmit(take(key, l, 10))
		e.setClock(2 * corecounter.Minute)
		e.mustAdmit(take(key, l, 10))
		receipts := []corecounter.Micros{charge.Receipt, 0, -1}
		if a != corecounter.TokenBucket { // a bucket cannot detect a receipt that names no charge
			receipts = append(receipts, e.now-7, e.now+corecounter.Hour)
		}
		for _, receipt := range receipts {
			if r := e.takeOne(refund(key, l, 3, receipt)); r.Granted != 0 || r.Denied {
				e.Fatalf("%s: a receipt of %d, now %d, gives %d back, want 0", a, receipt, e.now, r.Granted)
			}
		}
		e.left(key, l, 0)
		e.mustDeny(take(key, l, 1))
	}
	// In a fixed window, a refund is too late after one window. In a bucket, a refund is in time up
	// to a microsecond before the bucket would have been full.
	fixed, bucket := limit(corecounter.FixedWindow, 10, corecounter.Minute), burst(corecounter.TokenBucket, 10, corecounter.Minute, 20)
	e.setClock(0)
	charges := e.take(take("fixed", fixed, 10), take("bucket", bucket, 20))
	e.setClock(corecounter.Minute)
	e.take(take("fixed", fixed, 10), take("bucket", bucket, 10))
	e.equal("what a fixed window takes back a window later", e.takeOne(refund("fixed", fixed, 10, charges[0].Receipt)).Granted, 0)
	e.setClock(2*corecounter.Minute - 1)
	e.equal("what a bucket takes back before it filled", e.takeOne(refund("bucket", bucket, 1, charges[1].Receipt)).Granted, 1)
	e.setClock(2 * corecounter.Minute)
	e.equal("what a bucket takes back once it filled", e.takeOne(refund("bucket", bucket, 1, charges[1].Receipt)).Granted, 0)
}

func askNeverBelowZero(e *examiner) {
	for _, a := range algorithms {
		key, l := a.Label(), limit(a, 10, corecounter.Minute)
		charge := e.mustAdmit(take(key, l, 3))
		e.equal("what is given back of 3 by 5", e.takeOne(refund(key, l, 5, charge.Receipt)).Granted, 3)
		e.equal("what is given back of nothing", e.takeOne(refund(key, l, 5, charge.Receipt)).Granted, 0)
		e.left(key, l, 10)
		e.mustDeny(take(key, l, 11))
		e.mustAdmit(take(key, l, 10))
		e.left(key, l, 0)
	}
}

func askDebt(e *examiner) {
	for _, a := range algorithms {
		key, l := a.Label(), limit(a, 10, corecounter.Minute)
		e.mustAdmit(take(key, l, 8))
		r := e.takeOne(force(key, l, 5))
		if r.Granted != 5 || r.Denied || r.Wait != 0 || r.Remaining != 0 || r.Receipt == 0 {
			e.Fatalf("%s: forcing 5 where 2 are left: %+v, want 5 recorded and 0 left", a, r)
		}
		e.equal("what is recorded of 100", e.takeOne(force(key, l, 100)).Granted, 7)
		r = e.takeOne(force(key, l, 1))
		if r.Granted != 0 || r.Receipt != 0 || r.Remaining != 0 {
			e.Fatalf("%s: forcing beyond a window of debt: %+v, want nothing recorded", a, r)
		}
		e.mustDeny(take(key, l, 1))
		// Forced charges are made even if the call is denied.
		if r := e.take(take(key, l, 1), force(key+" other", l, 4)); !r[0].Denied || r[1].Granted != 4 {
			e.Fatalf("%s: forcing beside a denied check: %+v, want 4 recorded", a, r)
		}
	}
	// After two windows, no debt is left.
	e.setClock(2 * corecounter.Minute)
	for _, a := range algorithms {
		e.mustAdmit(take(a.Label(), limit(a, 10, corecounter.Minute), 10))
	}
	// A debt can be refunded.
	for _, a := range algorithms {
		key, l := a.Label()+" settled", limit(a, 10, corecounter.Minute)
		r := e.takeOne(force(key, l, 20))
		e.equal("what is given back of a debt", e.takeOne(refund(key, l, 15, r.Receipt)).Granted, 15)
		e.left(key, l, 5)
	}
}
