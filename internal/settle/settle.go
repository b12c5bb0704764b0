// SPDX-License-Identifier: Apache-2.0

// Package settle sends what remains to be done about charges to a store, once the responses are known: a bounded queue and
// its workers.
//
// # Promise
//
// Nobody waits for it but [Queue.Stop]. Each job is asked of the store once at most: a charge whose outcome is not known is
// never given back a second time. What does not fit into the queue is dropped; then what was reserved stands as the charge.
// Every job has one end, which is counted. One that panics ends alone; a store that does ends those it was asked about.
//
// # Price
//
// A channel's send for whoever hands over, and up to sixteen goroutines from the first job on. Where more waits than they
// have in hand, each takes up to 32 jobs and a [core.Batcher] is asked about them together: what requests that were decided
// in memory leave to be settled arrives faster than a store answers one by one.
//
// # When not to use it
//
// For charges that must not be lost: the queue is memory.
package settle

import (
	"sync"
	"time"

	"github.com/penstock/penstock/core"
)

// The bounds of what settles. Settlements wait for the store, not for the machine. What waits is some 1 KB each.
const (
	workersCount = 16
	batchMax     = 32 // jobs that a worker has in hand
	jobsMax      = 8192
	// Deadline is how long a process that stops waits for settlements: each takes at most the store's own deadline.
	Deadline = 5 * time.Second
)

// End says what became of a job, as metrics name it. Unless it was settled, the reservation stands as the charge.
type End string

// The ends of a job.
const (
	Settled  End = "settled"
	Failed   End = "failed"   // the store did not answer: it may have been settled, so it is not tried again
	Dropped  End = "dropped"  // too many wait already, or the queue has ended
	Panicked End = "panic"    // in the store or in the job, which others do not suffer from
	Repeated End = "redeemed" // its condition does not hold: it was settled before, elsewhere
)

// Job is the settlement of one request.
type Job interface {
	// Due returns what to ask the store: [core.ChecksMax] checks at most.
	Due() []core.Check
	// Release is called once, when nobody uses the job any more.
	Release()
}

// Conditional is a job that is only done if the store admits something else first. The two are not one step: after a
// failure between them the job is not done, and its condition holds no more.
type Conditional interface {
	Job
	// Condition returns what the store must admit: [core.ChecksMax] checks at most, none for no condition.
	Condition() []core.Check
}

// Queue sends jobs to a store. Its workers start with the first job. Safe for concurrent use.
type Queue struct {
	// Panic is told of panics, while they are under way, from any goroutine. It is set before the first job, or nil.
	Panic func(reason any)

	store   core.Store
	ended   func(End)
	jobs    chan Job
	started sync.Once
	workers sync.WaitGroup
	mu      sync.RWMutex // held while something is put into the queue, so that nothing comes behind its end
	stopped bool         // the queue is closed
}

// New returns an empty queue. ended is called with the end of every job, from any goroutine.
func New(store core.Store, ended func(End)) *Queue {
	return &Queue{store: store, ended: ended, jobs: make(chan Job, jobsMax)}
}

// Send takes over a job, and reports whether it will be asked of the store.
func (q *Queue) Send(job Job) bool {
	if q.enqueue(job) {
		return true
	}
	q.ended(Dropped)
	job.Release()
	return false
}

func (q *Queue) enqueue(job Job) bool {
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.stopped {
		return false
	}
	q.started.Do(func() {
		for range workersCount {
			q.workers.Go(q.work)
		}
	})
	select {
	case q.jobs <- job:
		return true
	default:
		return false
	}
}

func (q *Queue) work() {
	b := batch{queue: q}
	b.batcher, _ = q.store.(core.Batcher)
	for job := range q.jobs {
		b.add(job)
		for b.batcher != nil && len(b.jobs) < batchMax && b.addWaiting() {
		}
		b.settle()
	}
}

// Stop sends what waits, and returns when that is done or the deadline is over; it reports which. The store is open until
// then.
func (q *Queue) Stop(deadline time.Duration) (drained bool) {
	q.mu.Lock()
	if !q.stopped {
		q.stopped = true
		close(q.jobs)
	}
	q.mu.Unlock()
	finished := make(chan struct{})
	go func() {
		q.workers.Wait()
		close(finished)
	}()
	select {
	case <-finished:
		return true
	case <-time.After(deadline):
		return false
	}
}
