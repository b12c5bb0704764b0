// SPDX-License-Identifier: Apache-2.0

package settle

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core/counter"
)

// ends counts how often jobs ended in each way.
type ends struct {
	mu    sync.Mutex
	count map[End]int
}

func (e *ends) note(end End) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.count == nil {
		e.count = map[End]int{}
	}
	e.count[end]++
}

func (e *ends) of(end End) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.count[end]
}

// job has one check, and counts how often it was released.
type job struct{ released atomic.Int64 }

func (*job) Source() uint32       { return 0 }
func (*job) Due() []counter.Check { return make([]counter.Check, 1) }
func (j *job) Release()           { j.released.Add(1) }

// slowStore answers after a second, or not before a given time, or with an error.
type slowStore struct {
	takes atomic.Int64
	fails error
	until time.Time
}

func (s *slowStore) Take(context.Context, []counter.Check, []counter.Result) error {
	time.Sleep(max(time.Second, time.Until(s.until)))
	s.takes.Add(1)
	return s.fails
}

// sendJobs sends n jobs to a queue of the store.
func sendJobs(store counter.Store, n int) (*Queue, *ends) {
	e := new(ends)
	q := New(store, e.note)
	for range n {
		q.Send(new(job))
	}
	return q, e
}

func TestJobsAreDoneBeforeTheStoreCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowStore{}
		start := time.Now()
		q, e := sendJobs(store, 40)
		if !q.Stop(Deadline) {
			t.Error("not drained")
		}
		if e.of(Settled) != 40 || store.takes.Load() != 40 {
			t.Errorf("%v settled, and the store was asked %d times; want 40", e.of(Settled), store.takes.Load())
		}
		// there are 40 jobs for 16 workers, and each takes a second
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

func TestAHangingStoreDelaysNoStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		q, _ := sendJobs(&slowStore{until: start.Add(time.Hour)}, 1)
		if q.Stop(Deadline) {
			t.Error("drained")
		}
		if took := time.Since(start); took != Deadline {
			t.Errorf("stopped after %s, want %s", took, Deadline)
		}
		time.Sleep(2 * time.Hour) // the time until the store answers, in the bubble
	})
}

func TestTooManyJobsAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowStore{}
		q, e := sendJobs(store, workersCount)
		synctest.Wait() // each worker has one job
		for i := range jobsMax/2 + 5 {
			if sent := q.Send(new(job)); sent != (i < jobsMax/2) {
				t.Errorf("job %d is sent: %v", i, sent)
			}
		}
		if got := e.of(Dropped); got != 5 {
			t.Errorf("%v dropped, want 5", got)
		}
		if !q.Stop(time.Hour) || store.takes.Load() != workersCount+jobsMax/2 {
			t.Errorf("the store was asked %d times", store.takes.Load())
		}
		q.Send(new(job))
		if got := e.of(Dropped); got != 6 {
			t.Errorf("%v dropped, want one more after the stop", got)
		}
	})
}

func TestAFailedJobIsNotTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowStore{fails: errors.New("no answer")}
		q, e := sendJobs(store, 3)
		q.Stop(Deadline)
		if e.of(Failed) != 3 || store.takes.Load() != 3 {
			t.Errorf("%v failed and the store was asked %d times, want 3", e.of(Failed), store.takes.Load())
		}
	})
}

func TestNothingToDoStopsAtOnce(t *testing.T) {
	if q, _ := sendJobs(&slowStore{}, 0); !q.Stop(time.Nanosecond) && !q.Stop(time.Second) {
		t.Error("workers that never started are waited for")
	}
}

// TestNoJobIsLostWhenAStoreCloses: each job sent while a queue stops is settled or dropped, and
// released once.
func TestNoJobIsLostWhenAStoreCloses(t *testing.T) {
	const rounds, senders, each = 500, 4, 200
	e, one := new(ends), new(job)
	for range rounds {
		q := New(quickStore{}, e.note)
		var sending sync.WaitGroup
		halfway := make(chan struct{}, senders)
		for range senders {
			sending.Go(func() {
				for i := range each {
					if i == each/2 {
						halfway <- struct{}{}
					}
					q.Send(one)
				}
			})
		}
		<-halfway
		q.Stop(Deadline)
		sending.Wait()
	}
	if got := e.of(Settled) + e.of(Dropped); got != rounds*senders*each || one.released.Load() != int64(got) {
		t.Errorf("%v settled or dropped of %d, %d released", got, rounds*senders*each, one.released.Load())
	}
}

// quickStore answers at once.
type quickStore struct{}

func (quickStore) Take(context.Context, []counter.Check, []counter.Result) error { return nil }

// panickingStore is a store that panics at every other call.
type panickingStore struct{ takes atomic.Int64 }

func (s *panickingStore) Take(context.Context, []counter.Check, []counter.Result) error {
	if s.takes.Add(1)%2 == 0 {
		panic("provoked")
	}
	return nil
}

// TestAPanicEndsOneJob: a panic ends neither the process nor a worker.
func TestAPanicEndsOneJob(t *testing.T) {
	const n = 4 * workersCount
	e, told := new(ends), atomic.Int64{}
	q := New(new(panickingStore), e.note)
	q.Panic = func(reason any) {
		if reason == "provoked" {
			told.Add(1)
		}
	}
	for range n {
		if !q.Send(new(job)) {
			t.Fatal("dropped")
		}
	}
	if !q.Stop(Deadline) || e.of(Settled) != n/2 || e.of(Panicked) != n/2 || told.Load() != n/2 {
		t.Errorf("%v, %d are told of", e.count, told.Load())
	}
	quiet := New(new(panickingStore), e.note)
	quiet.Send(new(job))
	quiet.Send(new(job))
	if !quiet.Stop(Deadline) || e.of(Panicked) != n/2+1 {
		t.Error("without anybody who is told:", e.count)
	}
}

// conditionalJob is a job that is executed only under a condition.
type conditionalJob struct{ job }

func (*conditionalJob) Condition() []counter.Check { return make([]counter.Check, 2) }

// scriptedStore is a store that gives a certain answer to the second of a condition's two checks,
// and counts its other calls.
type scriptedStore struct {
	second counter.Result
	fails  error
	dues   int
}

func (s *scriptedStore) Take(_ context.Context, checks []counter.Check, results []counter.Result) error {
	if len(checks) == 1 {
		s.dues++
		return nil
	}
	results[1] = s.second
	return s.fails
}

// TestAConditionComesFirst: a job whose condition is denied, or could not be sent, is not settled.
func TestAConditionComesFirst(t *testing.T) {
	for want, store := range map[End]*scriptedStore{
		Settled:  {},
		Repeated: {second: counter.Result{Denied: true}},
		Failed:   {fails: errors.New("away")},
		"local":  {second: counter.Result{Local: true}}, // a failure, because other nodes do not know of this charge
	} {
		e := new(ends)
		q := New(store, e.note)
		asked := new(conditionalJob)
		q.Send(asked)
		q.Stop(Deadline)
		done := 0
		if want == Settled {
			done = 1
		}
		if want == "local" {
			want = Failed
		}
		if e.of(want) != 1 || store.dues != done || asked.released.Load() != 1 {
			t.Errorf("%s: %v, done %d times", want, e.count, store.dues)
		}
	}
}
