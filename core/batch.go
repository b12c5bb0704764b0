// SPDX-License-Identifier: Apache-2.0

package core

import "context"

// Call is one call of [Store.Take] among several that are made together.
type Call struct {
	Checks  []Check
	Results []Result
	Err     error // what Take would have returned
}

// Batcher is a [Store] that answers several calls at once for less than one after the other.
type Batcher interface {
	Store
	// TakeAll answers each call as Take would, one independent of the other, in any order, and sets its Err. It returns
	// when ctx is done at the latest.
	TakeAll(ctx context.Context, calls []Call)
}
