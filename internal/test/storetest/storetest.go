// SPDX-License-Identifier: Apache-2.0

// Package storetest is the exam that every [counter.Store] must pass.
//
// # Promise
//
// [Run] checks the contract of [counter.Store.Take] in four ways. It tests each promise by name,
// and reports what happens if the promise is broken. It runs the stories in core/testdata/vectors.
// It sends random traffic, and compares the store's answers and state with those of [Model]. It
// sends more random traffic, and computes each answer from the history of the counters. For every
// promise, this package's own tests have a broken store that the exam detects.
//
// # Price
//
// Promises and vectors take well under a second with a store in memory. A random step is one call
// of the store, and one read of each counter in the call.
//
// # When not to use it
//
// The exam does not test a store whose server is slow, down or full. The store's own tests must do
// that.
package storetest

import (
	"testing"

	corecounter "github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/racescale"
)

// Subject is a store under exam.
type Subject struct {
	// Store must be empty, and must not be used by anything else.
	Store corecounter.Store
	// Pin sets the store's clock, which stands still until the next Pin. The clock can go back. A
	// store that expires counters by another clock must not do so during the exam, because only the
	// pinned clock determines whether a counter is new.
	Pin func(now corecounter.Micros)
	// Counter returns the store's state for a key as stored, without advancing it to the pinned
	// instant. For a sliding log, the state is its marks, oldest first, and the returned State is
	// ignored. For other algorithms it is the State. If the counter was never charged, or was
	// dropped because it equalled a new one, Counter returns the zero State and no marks.
	Counter func(t testing.TB, key []byte, l *corecounter.Limit) (corecounter.State, []corecounter.Mark)
	// Penalty returns the store's state for the key of a penalty as stored: the end of the penalty,
	// and the violations in any order. The end is 0 if no penalty was imposed, or if the penalty
	// was dropped.
	Penalty func(t testing.TB, key []byte) (until corecounter.Micros, violations []corecounter.Violation)
}

// RandomSteps is the number of random steps in [Run]. Under the race detector, Run takes a tenth of
// them. Longer tests call [RunRandom] with more steps.
const RandomSteps = 20_000

// Run runs the whole exam. Each call of open() must return a new, empty store, and register its
// closing with t.Cleanup.
func Run(t *testing.T, open func(t testing.TB) Subject) {
	t.Run("promises", func(t *testing.T) { RunPromises(t, open) })
	t.Run("vectors", func(t *testing.T) { RunVectors(t, open) })
	t.Run("random", func(t *testing.T) { RunRandom(t, open, racescale.Fewer(RandomSteps)) })
	t.Run("oracle", func(t *testing.T) { RunOracle(t, open, OracleSteps) })
}

// RunPromises checks each promise with a new store.
func RunPromises(t *testing.T, open func(t testing.TB) Subject) {
	for _, p := range promises {
		t.Run(p.name, func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("the promise: %s", p.broken)
				}
			}()
			p.ask(newExaminer(t, open(t)))
		})
	}
}
