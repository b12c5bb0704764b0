// SPDX-License-Identifier: Apache-2.0

package front

import (
	"sync"
	"sync/atomic"
)

// inflatingMax is the greatest number of compressed bodies that wait for the background. Each takes
// at most 64 KiB, or its share of what all compressed bodies of the process may take.
const inflatingMax = 256

// The type inflating decompresses bodies in the background, while Envoy's worker serves other
// requests. A decompressed body can have 16 MiB. Bodies are decompressed one after another, so they
// use at most one processor. The zero value is ready to use.
type inflating struct {
	mu      sync.Mutex
	waiting atomic.Int32
}

// The method enter takes one of the places, and reports whether one was free. If none was free,
// Envoy's worker must decompress the body itself. Responses that need much decompression then delay
// the next requests of this worker.
func (i *inflating) enter() bool {
	if i.waiting.Add(1) <= inflatingMax {
		return true
	}
	i.waiting.Add(-1)
	return false
}

// The method run calls work() as soon as no other call of run is at work, and then frees the place
// that enter has taken.
func (i *inflating) run(work func()) {
	defer i.waiting.Add(-1)
	i.mu.Lock()
	defer i.mu.Unlock()
	work()
}
