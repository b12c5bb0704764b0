// SPDX-License-Identifier: Apache-2.0

package counter

import "context"

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
	// sets its Err. It returns at the latest when ctx is done.
	TakeAll(ctx context.Context, calls []Call)
}
