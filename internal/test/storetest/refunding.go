// SPDX-License-Identifier: Apache-2.0

package storetest

import corecounter "github.com/penstock/penstock/core/counter"

// refundPromises concern refundable charges of token buckets.
var refundPromises = []promise{
	{"a refund restores what the charge still lacks", "What a token bucket has lost by being full in the meantime is not given " +
		"back beside what flowed in; otherwise a refund makes tokens.", askRefund},
	{"refunds take from what others lack", "What a refund restores, a charge before it does not lack any more; otherwise two " +
		"refunds restore the same tokens.", askRefunds},
}

// asRefundable returns the check, changed so that its charge can be refunded.
func asRefundable(c corecounter.Check) corecounter.Check {
	c.Refundable = true
	return c
}

func askRefund(e *examiner) {
	l := burst(corecounter.TokenBucket, 60, corecounter.Minute, 100)
	e.setClock(0)
	first := e.mustAdmit(asRefundable(take("nearly full", l, 100)))
	half := e.mustAdmit(asRefundable(take("full", l, 50)))
	still := e.mustAdmit(asRefundable(take("lacking", l, 100)))
	e.setClock(20 * corecounter.Second)
	e.equal("what is restored at once", e.takeOne(asRefundable(refund("lacking", l, 30, still.Receipt))).Granted, 30)
	e.left("lacking", l, 50)
	e.setClock(51 * corecounter.Second)
	e.mustAdmit(asRefundable(take("full", l, 100)))
	e.equal("what is restored after it was full", e.takeOne(asRefundable(refund("full", l, 50, half.Receipt))).Granted, 0)
	e.left("full", l, 0)
	e.setClock(99 * corecounter.Second)
	e.mustAdmit(asRefundable(take("nearly full", l, 99)))
	e.equal("what is restored after one was missing", e.takeOne(asRefundable(refund("nearly full", l, 100, first.Receipt))).Granted, 1)
	e.left("nearly full", l, 1)
}

func askRefunds(e *examiner) {
	l := burst(corecounter.TokenBucket, 60, corecounter.Minute, 100)
	e.setClock(0)
	first := e.mustAdmit(asRefundable(take("k", l, 40)))
	e.setClock(10 * corecounter.Second)
	second := e.mustAdmit(asRefundable(take("k", l, 40)))
	e.setClock(40 * corecounter.Second)
	e.mustAdmit(asRefundable(take("k", l, 60)))
	e.equal("what is restored of the first", e.takeOne(asRefundable(refund("k", l, 40, first.Receipt))).Granted, 30)
	e.equal("what is then of the second", e.takeOne(asRefundable(refund("k", l, 40, second.Receipt))).Granted, 10)
	e.left("k", l, 40)
}
