// SPDX-License-Identifier: Apache-2.0

package inflate

import (
	"runtime"
	"sync"
	"time"

	"github.com/penstock/penstock/internal/sources"
)

// Bounds of a queue.
const (
	// PlacesMax is the greatest number of bodies that wait in a queue. Each takes at most 64 KiB,
	// or its share of what all compressed bodies of the process may take.
	PlacesMax = 512
	// SourceMax is how many of these bodies one source, usually a client's address, can have.
	SourceMax = PlacesMax / 2
)

// Queue decompresses bodies in the background. A compressed body of a few KB can expand to 16 MiB,
// which takes tens of milliseconds. So at most half of the processors, but at least one, decompress
// bodies, and the sources of the waiting bodies take turns. A Queue is safe for concurrent use. The
// zero Queue is empty.
type Queue struct {
	mu      sync.Mutex
	waiting sources.Lines[func()]
	active  int           // the number of goroutines
	idle    chan struct{} // closed when the last goroutine ends; nil unless a call of Wait waits
}

// Add makes a goroutine call work at the turn of the source, which is the Source of a
// counter.Check. It returns false if there is no room for the work. The function work must recover
// from its own panics.
func (q *Queue) Add(source uint32, work func()) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting.Len() >= PlacesMax || q.waiting.Of(source) >= SourceMax && source != 0 { // 0: the source is unknown
		return false
	}
	q.waiting.Push(source, work)
	if q.active < max(1, runtime.GOMAXPROCS(0)/2) {
		q.active++
		go q.work()
	}
	return true
}

// Queue.work does the waiting work until there is none.
func (q *Queue) work() {
	for work := q.next(); work != nil; work = q.next() {
		work()
	}
}

// Queue.next removes and returns the work whose turn it is. If no work waits, next returns nil and
// the goroutine must end.
func (q *Queue) next() (work func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	work, ok := q.waiting.Pop()
	if ok {
		return work
	}
	if q.active--; q.active == 0 && q.idle != nil {
		close(q.idle)
		q.idle = nil
	}
	return nil
}

// Wait waits until all work is done, including work that is added meanwhile, or the deadline has
// passed. The result named done reports whether all work is done.
func (q *Queue) Wait(deadline time.Duration) (done bool) {
	q.mu.Lock()
	if q.active == 0 {
		q.mu.Unlock()
		return true
	}
	if q.idle == nil {
		q.idle = make(chan struct{})
	}
	idle := q.idle
	q.mu.Unlock()
	select {
	case <-idle:
		return true
	case <-time.After(deadline):
		return false
	}
}
