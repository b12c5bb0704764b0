// SPDX-License-Identifier: Apache-2.0

package settle

import (
	"context"

	"github.com/penstock/penstock/core"
)

// batch is what a worker has in hand.
type batch struct {
	queue   *Queue
	batcher core.Batcher // nil: the store is asked about one after the other
	jobs    []pending
	calls   []core.Call
	from    []int // the job of each call
	results []core.Result
}

// pending is a job and what became of it; none yet if that is empty.
type pending struct {
	job Job
	end End
}

func (b *batch) add(job Job) { b.jobs = append(b.jobs, pending{job: job}) }

// addWaiting adds a job if one waits.
func (b *batch) addWaiting() bool {
	select {
	case job, ok := <-b.queue.jobs:
		if ok {
			b.add(job)
		}
		return ok
	default:
		return false
	}
}

// settle ends the jobs: first what their conditions are is asked, then what is due.
func (b *batch) settle() {
	b.ask(condition)
	b.conclude(admitted)
	b.ask(Job.Due)
	b.conclude(func(c *core.Call) End {
		if c.Err != nil {
			return Failed
		}
		return Settled
	})
	for i := range b.jobs {
		b.end(&b.jobs[i])
	}
	clear(b.jobs)
	b.jobs = b.jobs[:0]
}

// condition returns what the store must admit for a job, nil for nothing.
func condition(job Job) []core.Check {
	if c, ok := job.(Conditional); ok {
		return c.Condition()
	}
	return nil
}

// admitted returns the end of a job by what the store said of its condition, none if that holds.
func admitted(c *core.Call) End {
	if c.Err != nil {
		return Failed
	}
	for i := range c.Checks {
		switch {
		case c.Results[i].Local:
			return Failed // the store was not asked, so that nobody else knows of it
		case c.Results[i].Refused:
			return Repeated
		}
	}
	return ""
}

// ask asks the store what each job without an end has to ask of it.
func (b *batch) ask(of func(Job) []core.Check) {
	b.calls, b.from = b.calls[:0], b.from[:0]
	total := 0
	for i := range b.jobs {
		p := &b.jobs[i]
		if p.end != "" {
			continue
		}
		if checks := b.checks(p, of); len(checks) > 0 {
			b.calls, b.from = append(b.calls, core.Call{Checks: checks}), append(b.from, i)
			total += len(checks)
		}
	}
	if cap(b.results) < total {
		b.results = make([]core.Result, total)
	}
	clear(b.results[:total])
	rest := b.results[:total]
	for i := range b.calls {
		n := len(b.calls[i].Checks)
		b.calls[i].Results, rest = rest[:n:n], rest[n:]
	}
	b.take()
}

// checks returns what a job has to ask. One that panics has ended, and others do not suffer from it.
func (b *batch) checks(p *pending, of func(Job) []core.Check) []core.Check {
	defer b.recovered(func() { p.end = Panicked })
	return of(p.job)
}

// take has the store answer the calls. After a panic of the store it is not known what it did for any of them.
func (b *batch) take() {
	defer b.recovered(func() {
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

// conclude notes what the answers make of the jobs that were asked about.
func (b *batch) conclude(of func(*core.Call) End) {
	for i := range b.calls {
		if p := &b.jobs[b.from[i]]; p.end == "" {
			p.end = of(&b.calls[i])
		}
	}
}

// end counts the end of a job. One that panicked is not released: whatever is wrong with it is not used again.
func (b *batch) end(p *pending) {
	if p.end == "" {
		p.end = Settled // nothing was due
	}
	b.queue.ended(p.end)
	if p.end != Panicked {
		defer b.recovered(func() {}) // it has had its end
		p.job.Release()
	}
}

// recovered ends a panic, which then does what it is told to. It is deferred.
func (b *batch) recovered(then func()) {
	if reason := recover(); reason != nil {
		then()
		if b.queue.Panic != nil {
			b.queue.Panic(reason)
		}
	}
}
