// SPDX-License-Identifier: Apache-2.0

// Package storetest is the exam that every [core.Store] passes.
//
// # Promise
//
// [Run] asks a store everything that the contract of [core.Store.Take] promises: each promise by name, with what is
// broken if it fails; the stories in core/testdata/vectors; and random traffic, compared with [Model] in its answers and
// in what it keeps. For every promise the package's own tests hold a broken store that the exam finds out.
//
// # Price
//
// Promises and vectors take well under a second on memory. A random step is one call of the store and one reading of
// each counter it touched.
//
// # When not to use it
//
// The exam pins the clock. What a store does when its server is slow, gone or full is for the store's own tests.
package storetest

import (
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/underrace"
)

// Subject is a store under exam.
type Subject struct {
	// Store is empty when the exam gets it, and used by nobody else.
	Store core.Store
	// Pin sets the store's clock, which then stands until the next Pin. It may go back. A store that forgets counters by
	// another clock than this one must hold that off: a counter is fresh by the pinned clock only.
	Pin func(now core.Micros)
	// Counter returns what the store keeps for a key as it stands, not brought forward to the pinned instant: for a
	// sliding log its marks, oldest first (the State is not looked at), otherwise its State. A counter that was never
	// charged, or was dropped because it was equal to a fresh one, is the zero State and no marks.
	Counter func(t testing.TB, key []byte, l *core.Limit) (core.State, []core.Mark)
	// Penalty returns what the store keeps for the key of a penalty as it stands: until when it is in force, 0 if none was
	// imposed or it was dropped since, and the violations that are remembered, in any order.
	Penalty func(t testing.TB, key []byte) (until core.Micros, violations []core.Violation)
}

// RandomSteps is how many steps of random traffic [Run] asks for, under the race detector a tenth. A nightly run asks
// [RunRandom] for more.
const RandomSteps = 20_000

// Run holds the whole exam. open returns an empty store each time it is called and closes it with t.Cleanup.
func Run(t *testing.T, open func(t testing.TB) Subject) {
	t.Run("promises", func(t *testing.T) { RunPromises(t, open) })
	t.Run("vectors", func(t *testing.T) { RunVectors(t, open) })
	t.Run("random", func(t *testing.T) { RunRandom(t, open, underrace.Fewer(RandomSteps)) })
	t.Run("oracle", func(t *testing.T) { RunOracle(t, open, OracleSteps) })
}

// RunPromises asks each promise of a store of its own.
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
