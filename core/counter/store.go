// SPDX-License-Identifier: Apache-2.0

//go:build !penstock_filter

package counter

import (
	"context"
	"errors"
)

// Store keeps counters. Implementations are safe for concurrent use.
type Store interface {
	// Take answers checks[i] in results[i], for every i, in one atomic step and by the store's own
	// clock. Take returns at the latest when ctx is done.
	//
	// An error means that the store could not answer. The results are then undefined, and each
	// charge was made at most once. The error wraps [ErrUnavailable] if the store failed,
	// [ErrOverloaded] if it has too many calls to answer, and [ErrInvalid] if the call is not
	// valid. A denial is a Result, never an error.
	Take(ctx context.Context, checks []Check, results []Result) error
}

// Unsent reports whether a store has certainly not executed the call that failed with err, so that
// the caller may send it again. This is the case if err, or an error that it wraps, has a method
// Unsent that returns true.
func Unsent(err error) bool {
	failure, ok := errors.AsType[interface {
		error
		Unsent() bool
	}](err)
	return ok && failure.Unsent()
}

// Call is one call of [Store.Take] in a batch.
type Call struct {
	Checks  []Check
	Results []Result
	Err     error // the error that Take would have returned
}

// Batcher is a [Store] that can answer several calls together, at a lower cost than one at a time.
type Batcher interface {
	Store
	// TakeAll answers each call as Take would, independently of the others and in any order, and
	// sets its Err. TakeAll returns at the latest when ctx is done.
	TakeAll(ctx context.Context, calls []Call)
}
