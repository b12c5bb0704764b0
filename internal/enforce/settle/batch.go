// SPDX-License-Identifier: Apache-2.0

package settle

import (
	"context"
	"time"

	"github.com/penstock/penstock/core/counter"
)

// batch holds the jobs that a worker settles together.
type batch struct {
	queue   *Queue
	batcher counter.Batcher // nil if the store receives one job after the other
	jobs    []pendingJob
	calls   []counter.Call
	from    []int // the job of each call
	results []counter.Result
}

// pendingJob is a job and its end, which is empty until the job has ended.
type pendingJob struct {
	job Job
	end End
}

func (b *batch) addJob(job Job) { b.jobs = append(b.jobs, pendingJob{job: job}) }

// batch.settle ends the jobs: it sends their conditions to the store, and then the checks that are
// due.
func (b *batch) settle() {
	b.sendChecks(condition, false)
	b.conclude(conditionEnd)
	b.sendChecks(Job.Due, true)
	b.conclude(correctionEnd)
	for i := range b.jobs {
		b.end(&b.jobs[i])
	}
	clear(b.jobs)
	b.jobs = b.jobs[:0]
}

// condition returns the checks that the store must admit before the job is settled, or nil.
func condition(job Job) []counter.Check {
	if c, ok := job.(Conditional); ok {
		return c.Condition()
	}
	return nil
}

// conditionEnd returns the end of a job whose condition the store did not admit, or "" if the store
// admitted it.
func conditionEnd(c *counter.Call) End {
	if c.Err != nil {
		return Failed
	}
	for i := range c.Checks {
		switch {
		case c.Results[i].Local:
			// the store did not record the condition, so other nodes could settle the job again
			return Failed
		case c.Results[i].Denied:
			return Repeated
		}
	}
	return ""
}

// correctionEnd returns the end of a job whose corrections were sent to the store.
func correctionEnd(c *counter.Call) End {
	if c.Err != nil {
		return Failed
	}
	for i := range c.Checks {
		if c.Results[i].Local {
			return Owed
		}
	}
	return Settled
}

// sendChecks sends the checks of the unfinished jobs to the store. The parameter named of is the
// function that returns a job's checks. The parameter named apart reports whether a job's checks
// may be divided among several calls.
func (b *batch) sendChecks(of func(Job) []counter.Check, apart bool) {
	b.calls, b.from = b.calls[:0], b.from[:0]
	total := 0
	for i := range b.jobs {
		p := &b.jobs[i]
		if p.end != "" {
			continue
		}
		checks := b.checks(p, of)
		total += len(checks)
		for len(checks) > 0 {
			n := len(checks)
			if apart {
				n = timelyFirst(checks)
			}
			b.calls, b.from = append(b.calls, counter.Call{Checks: checks[:n:n]}), append(b.from, i)
			checks = checks[n:]
		}
	}
	if cap(b.results) < total {
		b.results = make([]counter.Result, total)
	}
	clear(b.results[:total])
	rest := b.results[:total]
	for i := range b.calls {
		n := len(b.calls[i].Checks)
		b.calls[i].Results, rest = rest[:n:n], rest[n:]
	}
	b.callStore()
}

// timelyFirst moves the checks whose calendar period is not over to the front, and returns how many
// checks can be sent in the first call. Each other check is sent alone, because the store may
// answer it with [counter.ErrStale], and then executes no check of its call. If no period is over,
// timelyFirst does not change the order.
func timelyFirst(checks []counter.Check) int {
	timely, now := 0, counter.Micros(0)
	for i := range checks {
		if bounds := checks[i].Bounds; bounds != nil {
			if now == 0 {
				now = counter.Micros(time.Now().UnixMicro())
			}
			if now >= bounds[2] { // the end of the period of the request
				continue
			}
		}
		checks[timely], checks[i] = checks[i], checks[timely]
		timely++
	}
	return max(timely, 1)
}

// batch.checks returns a job's checks. If the job panics, only that job ends.
func (b *batch) checks(p *pendingJob, of func(Job) []counter.Check) []counter.Check {
	defer b.recoverThen(func() { p.end = Panicked })
	return of(p.job)
}

// callStore sends the calls to the store. If the store panics, the outcome of every call is
// unknown.
func (b *batch) callStore() {
	defer b.recoverThen(func() {
		for _, i := range b.from {
			b.jobs[i].end = Panicked
		}
	})
	if b.batcher != nil && len(b.calls) > 1 {
		b.batcher.TakeAll(context.Background(), b.calls)
		return
	}
	for i := range b.calls {
		c := &b.calls[i]
		c.Err = b.queue.store.Take(context.Background(), c.Checks, c.Results)
	}
}

// batch.conclude converts the answers into the ends of the jobs that were sent. If a job was sent
// in several calls, it has failed if one of them failed.
func (b *batch) conclude(of func(*counter.Call) End) {
	for i := range b.calls {
		switch p, end := &b.jobs[b.from[i]], of(&b.calls[i]); {
		case p.end == "", p.end == Settled, p.end == Owed && end == Failed:
			p.end = end
		}
	}
}

// batch.end counts the end of a job. A job that panicked is not released: a broken value must not
// be reused.
func (b *batch) end(p *pendingJob) {
	if p.end == "" {
		p.end = Settled // here nothing was due
	}
	for range jobsIn(p.job) {
		b.queue.ended(p.end)
	}
	if p.end != Panicked {
		defer b.recoverThen(func() {}) // the end of this job has already been counted
		if o, ok := p.job.(Observer); ok {
			o.Ended(p.end)
		}
		p.job.Release()
	}
}

// batch.recoverThen recovers from a panic, reports it, and calls then(). It must be deferred.
func (b *batch) recoverThen(then func()) {
	if reason := recover(); reason != nil {
		then()
		if b.queue.Panic != nil {
			b.queue.Panic(reason)
		}
	}
}
