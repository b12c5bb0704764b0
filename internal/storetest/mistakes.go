// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock/penstock/core"
)

// invalid fails the test unless the call is answered with ErrInvalid.
func (e *examiner) invalid(what string, checks []core.Check, results []core.Result) {
	e.Helper()
	err := e.Store.Take(context.Background(), checks, results)
	if !errors.Is(err, core.ErrInvalid) {
		e.Fatalf("%s: the error is %v, want one that wraps ErrInvalid", what, err)
	}
	if errors.Is(err, core.ErrUnavailable) {
		e.Fatalf("%s: the error %v wraps ErrUnavailable too: the store is not at fault", what, err)
	}
}

func askDuplicateKeys(e *examiner) {
	l, other := limit(core.FixedWindow, 10, core.Minute), limit(core.FixedWindow, 20, core.Minute)
	e.invalid("a key twice", []core.Check{take("a", l, 1), take("b", l, 1), take("a", l, 1)}, make([]core.Result, 3))
	e.invalid("a key twice with two limits", []core.Check{take("a", l, 1), take("a", other, 1)}, make([]core.Result, 2))
	e.invalid("a key taken and looked at", []core.Check{take("a", l, 1), look("a", l, 1)}, make([]core.Result, 2))
	e.left("a", l, 10)
	e.left("b", l, 10)
}

func askTooManyChecks(e *examiner) {
	l := limit(core.SlidingWindow, 10, core.Minute)
	var checks []core.Check
	for i := range core.ChecksMax + 1 {
		checks = append(checks, take(fmt.Sprint("key ", i), l, 1))
	}
	e.invalid("a check too many", checks, make([]core.Result, len(checks)))
	e.left("key 0", l, 10)
	for i, r := range e.take(checks[:core.ChecksMax]...) {
		if r.Granted != 1 || r.Remaining != 9 {
			e.Fatalf("check %d of as many as there may be: %+v, want 1 granted", i, r)
		}
	}
}

func askOutOfBounds(e *examiner) {
	l := limit(core.TokenBucket, 10, core.Minute)
	none := take("k", l, 1)
	none.Limit = nil
	zero := take("k", core.Limit{}, 1)
	wrong := map[string]core.Check{
		"no limit":                    none,
		"the zero limit":              zero,
		"an unknown operation":        check(core.OpReset+1, "k", l, 1),
		"a negative cost":             take("k", l, -1),
		"a negative give back":        giveBack("k", l, -1, start),
		"a negative forced charge":    force("k", l, -1),
		"a cost beyond CountMax + 1":  take("k", l, core.CountMax+2),
		"a force beyond CountMax + 1": force("k", l, core.CountMax+2),
		"min 0":                       upTo("k", l, 0, 1, 1, 0),
		"min above the cost":          upTo("k", l, 3, 2, 5, 0),
		"min above 1 for cost 0":      upTo("k", l, 2, 0, 5, 0),
		"max below the cost":          upTo("k", l, 1, 3, 2, 0),
		"a share above 1000":          upTo("k", l, 1, 1, 5, 1001),
		"a negative share":            upTo("k", l, 1, 1, 5, -1),
	}
	for what, c := range wrong {
		e.invalid(what, []core.Check{take("beside", l, 1), c}, make([]core.Result, 2))
	}
	e.invalid("too few results", []core.Check{take("beside", l, 1), take("k", l, 1)}, make([]core.Result, 1))
	e.left("k", l, 10)
	e.left("beside", l, 10)
}
