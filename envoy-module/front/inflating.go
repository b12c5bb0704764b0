// SPDX-License-Identifier: Apache-2.0

package front

import (
	"sync"
	"sync/atomic"
)

// inflatingMax is the number of compressed bodies that are kept for the background. A body takes at
// most 64 KiB there, or its share of what all compressed bodies of the process may take.
const inflatingMax = 256

// The type inflating decompresses bodies one after another, so that they take one processor at
// most. A body can become 16 MiB, and Envoy's worker serves other requests meanwhile. The zero
// value is ready to use.
type inflating struct {
	mu      sync.Mutex
	waiting atomic.Int32
}

// The method enter takes a place, and reports whether there is one. Without a place, the worker
// decompresses the body itself, which slows down the clients that cause so many.
func (i *inflating) enter() bool {
	if i.waiting.Add(1) <= inflatingMax {
		return true
	}
	i.waiting.Add(-1)
	return false
}

// The method run waits for the bodies before, calls work, and gives the place back.
func (i *inflating) run(work func()) {
	defer i.waiting.Add(-1)
	i.mu.Lock()
	defer i.mu.Unlock()
	work()
}
