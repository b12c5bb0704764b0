// SPDX-License-Identifier: Apache-2.0

// Package storetest is the exam that every [counter.Store] must pass.
//
// # Promise
//
// [Run] checks the contract of [counter.Store.Take] in four ways: each promise by name, with the
// consequence of breaking it; the stories in core/testdata/vectors; random traffic, for which it
// compares the store's answers and state with [Model]; and random traffic for which it computes
// each answer from the history of the counters. For every promise, this package's own tests have a
// broken store that the exam detects.
//
// # Price
//
// Promises and vectors take well under a second with a store in memory. A random step is one call
// of the store and one reading of each counter it touched.
//
// # When not to use it
//
// The exam sets the clock. A store's own tests must cover its behavior when its server is slow,
// down or full.
package storetest

import (
	"testing"

	corecounter "github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/racescale"
)

// Subject is a store under exam.
type Subject struct {
	// Store must be empty and must not be used elsewhere.
	Store corecounter.Store
	// Pin sets the store's clock, which stands still until the next Pin. The clock can go back. A
	// store that expires counters by another clock must not do so during the exam, because only the
	// pinned clock determines whether a counter is new.
	Pin func(now corecounter.Micros)
	// Counter returns the store's state for a key as stored, not advanced to the pinned instant.
	// For a sliding log that is its marks, oldest first, and the State is ignored; otherwise its
	// State. A counter that was never charged, or was dropped because it equalled a new one, is the
	// zero State without marks.
	Counter func(t testing.TB, key []byte, l *corecounter.Limit) (corecounter.State, []corecounter.Mark)
	// Penalty returns the store's state for the key of a penalty as stored: the end of the penalty,
	// 0 if none was imposed or it was dropped, and the violations, in any order.
	Penalty func(t testing.TB, key []byte) (until corecounter.Micros, violations []corecounter.Violation)
}

// RandomSteps is the number of random steps in [Run], a tenth of it under the race detector. A
// nightly run calls [RunRandom] for more.
const RandomSteps = 20_000

// Run runs the whole exam. The function named open returns a new, empty store each time, and closes
// it with t.Cleanup.
func Run(t *testing.T, open func(t testing.TB) Subject) {
	t.Run("promises", func(t *testing.T) { RunPromises(t, open) })
	t.Run("vectors", func(t *testing.T) { RunVectors(t, open) })
	t.Run("random", func(t *testing.T) { RunRandom(t, open, racescale.Fewer(RandomSteps)) })
	t.Run("oracle", func(t *testing.T) { RunOracle(t, open, OracleSteps) })
}

// RunPromises checks each promise on a new store.
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
