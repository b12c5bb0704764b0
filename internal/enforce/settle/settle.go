// SPDX-License-Identifier: Apache-2.0

// Package settle corrects charges in a store as soon as the responses are known. The package has a
// bounded queue and workers.
//
// # Promise
//
// Only [Queue.Stop] waits for the queue. Each job is sent to the store at most once, so a refund
// whose outcome is unknown is never repeated. A job that does not fit into the queue is dropped,
// and its reservation remains as the charge. Every job has exactly one end, which is counted. A
// panic in a job ends only that job; a panic in the store ends the jobs of the call.
//
// # Price
//
// The caller performs one send on a channel. There are up to sixteen goroutines from the first job
// on. When more jobs wait than there are workers, each worker sends up to 32 jobs to a
// [counter.Batcher] together. Requests that are decided in memory produce settlements faster than a
// store answers single calls.
//
// # When not to use it
//
// Do not use it for charges that must not be lost, because the queue is in memory.
package settle

import (
	"sync"
	"time"

	"github.com/penstock/penstock/core/counter"
)

// The bounds of the queue and its workers. Workers mostly wait for the store, so their number does
// not depend on the machine's cores. A waiting job takes about 1 KB.
const (
	workersCount = 16
	batchMax     = 32 // jobs that one worker settles together
	jobsMax      = 8192
	// Deadline is how long a process that is stopping waits for its settlements. Each takes at most
	// the store's own deadline.
	Deadline = 5 * time.Second
)

// End is how a job ended, by its name in metrics. For all but Settled and Owed, the reservation
// remains as the charge, under at least one of the job's limits.
type End string

// The ends of a job.
const (
	Settled End = "settled"
	Owed    End = "owed" // the store did not answer; the charge is made when it answers again
	// the store did not answer; it might have executed the job, so the job is not tried again
	Failed   End = "failed"
	Dropped  End = "dropped"  // the queue is full or stopped
	Panicked End = "panic"    // a panic in the store or in the job
	Repeated End = "redeemed" // its condition was denied because the job was already settled elsewhere
)

// Job is the settlement of one request.
type Job interface {
	// Due returns the checks to send to the store: at most [counter.ChecksMax].
	Due() []counter.Check
	// Release is called once, when the job is no longer used.
	Release()
}

// Conditional is a job that is settled only if the store first admits a condition. The condition
// and the job are not one atomic step. If the process fails between the two, the job is never
// settled, because the store does not admit its condition again.
type Conditional interface {
	Job
	// Condition returns the checks that the store must admit: at most [counter.ChecksMax], and none
	// if there is no condition.
	Condition() []counter.Check
}

// Observer is a job that is told how it ended, unless it panicked.
type Observer interface {
	Job
	// Ended is called once, before Release.
	Ended(End)
}

// Queue sends jobs to a store. A Queue's workers start with the first job. A Queue is safe for
// concurrent use.
type Queue struct {
	// Panic is called with the reason of a panic, while it is being handled, from any goroutine.
	// Set it before the first job; it may be nil.
	Panic func(reason any)

	store   counter.Store
	ended   func(End)
	jobs    chan Job
	started sync.Once
	workers sync.WaitGroup
	mu      sync.RWMutex // read-locked while a job is queued, so that no job is queued after Stop
	stopped bool         // whether the queue is closed
}

// New returns an empty queue. The queue calls ended(...) with the end of every job, from any
// goroutine.
func New(store counter.Store, ended func(End)) *Queue {
	return &Queue{store: store, ended: ended, jobs: make(chan Job, jobsMax)}
}

// Send queues a job, and reports whether it will be sent to the store.
func (q *Queue) Send(job Job) bool {
	if q.enqueue(job) {
		return true
	}
	q.ended(Dropped)
	if o, ok := job.(Observer); ok {
		o.Ended(Dropped)
	}
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
	b.batcher, _ = q.store.(counter.Batcher)
	for job := range q.jobs {
		b.addJob(job)
		for b.batcher != nil && len(b.jobs) < batchMax && b.addWaiting() {
		}
		b.settle()
	}
}

// Stop settles the queued jobs. Stop waits until they are settled or the deadline has passed. The
// result is true if they are settled. The store must stay open until Stop returns.
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
