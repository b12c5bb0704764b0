// SPDX-License-Identifier: Apache-2.0

package storetest

import "github.com/penstock/penstock/core"

// promise is one thing that every store keeps.
type promise struct {
	name   string
	broken string // what is broken if it fails, for whom
	ask    func(e *examiner)
}

var promises = []promise{
	{"all or nothing", "A request under several limits is charged on all of them or on none; otherwise a client pays " +
		"for requests that were refused.", askAllOrNothing},
	{"refused costs nothing", "A refused request charges nothing; otherwise a client that keeps trying never gets in " +
		"again.", askRefusedCostsNothing},
}

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
