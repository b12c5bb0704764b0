// SPDX-License-Identifier: Apache-2.0

// Package settle corrects charges in a store as soon as the responses are known. The package has a
// bounded queue and workers.
//
// # Promise
//
// Only [Queue.Stop] waits for the queue. Each job is sent to the store at most once, so a refund
// whose outcome is unknown is never repeated. The sources of the jobs, which are usually addresses
// of clients, take turns, and a source may take at most as many places
// as it leaves free. So a client that ends
// thousands of streams at once does not delay the settlements of others.
//
// If a job finds no place, its further charges are merged with those of other such jobs of the
// source, because a client must not be able to avoid them by a burst of its own. Its refunds are
// lost. A job without further charges is dropped, and its reservation remains as the charge. Every
// job has exactly one end, which is counted. A panic in a job ends only that job; a panic in the
// store ends the jobs of the call.
//
// # Price
//
// The caller takes a mutex, which is never held during a call to the store. There are up to sixteen
// goroutines from the first job on. When more jobs wait than there are workers, each worker sends
// up to 32 jobs to a [counter.Batcher] together. Requests that are decided in memory produce
// settlements faster than a store answers single calls.
//
// # When not to use it
//
// Do not use it for charges that must not be lost, because the queue is in memory.
package settle

import (
	"sync"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/sources"
)

// The bounds of the queue and its workers. Workers mostly wait for the store, so their number does
// not depend on the machine's cores. A waiting job takes about 1 KB.
const (
	workersCount = 16
	batchMax     = 32 // jobs that one worker settles together
	jobsMax      = 8192
	excessMax    = 256 // jobs with merged charges, each of at most 64 counters
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
	Dropped  End = "dropped"  // the queue has no place or is stopped
	Panicked End = "panic"    // a panic in the store or in the job
	Repeated End = "redeemed" // its condition was denied because the job was already settled elsewhere
)

// Job is the settlement of one request.
type Job interface {
	// Source returns the Source of the request's checks; see [counter.Check]. The source 0 means
	// unknown, and all its jobs share one line.
	Source() uint32
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

// Observer is a job that wants to know how it ended. It is notified unless it panicked. Its charges
// are not merged with those of other jobs. If there is no place for it, its sender can repeat it.
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
	workers sync.WaitGroup

	mu      sync.Mutex
	filled  sync.Cond // a job is added, or the queue is stopped
	started bool      // whether the workers run
	stopped bool
	jobs    sources.Lines[Job]
	excess  map[uint32]*excess // by source: the merged charges of the jobs that found no place
	merging int                // the number of queued jobs with merged charges
}

// New returns an empty queue. The queue calls ended(...) with the end of every job, from any
// goroutine.
func New(store counter.Store, ended func(End)) *Queue {
	q := &Queue{store: store, ended: ended, excess: make(map[uint32]*excess)}
	q.filled.L = &q.mu
	return q
}

// Send queues a job, and reports whether it will be sent to the store.
func (q *Queue) Send(job Job) bool {
	queued, merged := q.enqueue(job)
	if queued {
		return true
	}
	if !merged {
		q.ended(Dropped)
		if o, ok := job.(Observer); ok {
			o.Ended(Dropped)
		}
	}
	job.Release()
	return merged
}

// Queue.enqueue gives a job a place in the queue, or merges its further charges with those of its
// source.
func (q *Queue) enqueue(job Job) (queued, merged bool) {
	source := job.Source()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return false, false
	}
	if !q.started {
		q.started = true
		for range workersCount {
			q.workers.Go(q.work)
		}
	}
	if hasPlace(q.jobs.Of(source), q.jobs.Len()-q.merging, jobsMax) {
		q.push(source, job)
		return true, false
	}
	return false, q.merge(source, job)
}

// Queue.push adds a job to the line of its source. The caller holds the lock.
func (q *Queue) push(source uint32, job Job) {
	q.jobs.Push(source, job)
	q.filled.Signal()
}

// hasPlace reports whether a source that has some of the taken places may take a further one. So
// however many sources fill the queue, each leaves as many places free as it has.
func hasPlace(own, taken, most int) bool { return own < most-taken }

// Queue.merge adds the further charges of a job to the excess of its source. The result is false if
// the job has no further charges or must not be merged, or if there is no room for one of the
// charges. The caller holds the lock.
func (q *Queue) merge(source uint32, job Job) bool {
	switch job.(type) {
	case Conditional, Observer:
		return false
	}
	own := q.excess[source]
	if own == nil {
		own = &excess{known: make(map[string]*counter.Check)}
	}
	charged, lost := false, false
	due := job.Due()
	for i := range due {
		switch c := &due[i]; {
		case c.Op != counter.OpForce:
		case own.add(c), q.begin(source, own) && own.add(c):
			charged = true
		default:
			lost = true
		}
	}
	if !charged || lost {
		return false
	}
	own.latest.jobs++ // the latest of the source's jobs is also the last to leave the queue
	return true
}

// Queue.begin adds a job for further merged charges of a source. The result is false if there is no
// room for it. The caller holds the lock.
func (q *Queue) begin(source uint32, own *excess) bool {
	if !hasPlace(own.jobs, q.merging, excessMax) {
		return false
	}
	own.latest = &charges{source: source, checks: make([]counter.Check, 0, counter.ChecksMax)}
	own.jobs++
	q.merging++
	q.excess[source] = own
	q.push(source, own.latest)
	return true
}

// Queue.pop removes the job whose turn it is, or returns nil if none waits. The caller holds the
// lock.
func (q *Queue) pop() Job {
	job, _ := q.jobs.Pop()
	if merged, ok := job.(*charges); ok {
		q.merging--
		own := q.excess[merged.source]
		if own.remove(merged); own.jobs == 0 {
			delete(q.excess, merged.source)
		}
	}
	return job
}

// Queue.await adds jobs to a batch. It waits for the first one, and returns false if the queue is
// stopped and empty.
func (q *Queue) await(b *batch) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.jobs.Len() == 0 {
		if q.stopped {
			return false
		}
		q.filled.Wait()
	}
	b.addJob(q.pop())
	for b.batcher != nil && len(b.jobs) < batchMax && q.jobs.Len() > 0 {
		b.addJob(q.pop())
	}
	return true
}

func (q *Queue) work() {
	b := batch{queue: q}
	b.batcher, _ = q.store.(counter.Batcher)
	for q.await(&b) {
		b.settle()
	}
}

// Stop settles the queued jobs. Stop waits until they are settled or the deadline has passed. The
// result is true if they are settled. The store must stay open until Stop returns.
func (q *Queue) Stop(deadline time.Duration) (drained bool) {
	q.mu.Lock()
	q.stopped = true
	q.filled.Broadcast()
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
