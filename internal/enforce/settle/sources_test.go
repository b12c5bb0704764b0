// SPDX-License-Identifier: Apache-2.0

package settle

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core/counter"
)

// sourced is a job that belongs to a source.
type sourced struct {
	job
	source uint32
	checks []counter.Check
}

func (s *sourced) Source() uint32       { return s.source }
func (s *sourced) Due() []counter.Check { return s.checks }

// charge returns a job of a source that charges one unit to the counter with the given key.
func charge(source uint32, key string) *sourced {
	return &sourced{source: source, checks: []counter.Check{{Key: []byte(key), Op: counter.OpForce, Cost: 1}}}
}

// refund returns a job that refunds a unit.
func refund(source uint32, key string) *sourced {
	return &sourced{source: source, checks: []counter.Check{{Key: []byte(key), Op: counter.OpRefund, Cost: 1}}}
}

// recordingStore is a store that takes a second for each call, and records the keys and costs of
// the checks.
type recordingStore struct {
	mu    sync.Mutex
	calls int
	order []string
	costs map[string]int64
}

func (s *recordingStore) Take(_ context.Context, checks []counter.Check, _ []counter.Result) error {
	time.Sleep(time.Second)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	for i := range checks {
		c := &checks[i]
		s.order = append(s.order, string(c.Key))
		s.costs[string(c.Key)] += c.Cost
	}
	return nil
}

// TestABurstDelaysNoOtherSource: a source sends more jobs than the queue holds. A job that another
// source sends afterwards is settled in the next calls to the store.
func TestABurstDelaysNoOtherSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &recordingStore{costs: map[string]int64{}}
		q := New(store, new(ends).note)
		for range jobsMax + workersCount {
			q.Send(refund(1, "burst"))
		}
		if !q.Send(refund(2, "other")) {
			t.Fatal("the job of another source is dropped")
		}
		time.Sleep(2500 * time.Millisecond) // each worker ends two calls
		store.mu.Lock()
		if !strings.Contains(strings.Join(store.order, " "), "other") {
			t.Errorf("the job of another source is not among the first %d", len(store.order))
		}
		store.mu.Unlock()
		q.Stop(time.Hour)
	})
}

// TestABurstAvoidsNoCharge: a source sends three times as many further charges as the queue holds.
// All of them are made, in few calls to the store, and each job has an end.
func TestABurstAvoidsNoCharge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, e := &recordingStore{costs: map[string]int64{}}, new(ends)
		q := New(store, e.note)
		const n = 3 * jobsMax
		for i := range n {
			if !q.Send(charge(1, []string{"a", "b"}[i%2])) {
				t.Fatalf("charge %d is dropped", i)
			}
			if i == workersCount-1 {
				synctest.Wait() // each worker has a job, so none frees a place later
			}
		}
		if q.Send(refund(1, "a")) {
			t.Error("a refund without a place is not dropped")
		}
		if !q.Stop(time.Hour) {
			t.Error("not drained")
		}
		if store.costs["a"] != n/2 || store.costs["b"] != n/2 || store.calls > jobsMax/2+workersCount+1 {
			t.Errorf("charged %v in %d calls, want %d for each counter", store.costs, store.calls, n/2)
		}
		if e.of(Settled) != n || e.of(Dropped) != 1 {
			t.Errorf("%d settled and %d dropped, want %d and 1", e.of(Settled), e.of(Dropped), n)
		}
	})
}

// TestSourcesLeavePlaces: four sources send more jobs than the queue holds. The job of a fifth
// source has a place.
func TestSourcesLeavePlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(&recordingStore{costs: map[string]int64{}}, new(ends).note)
		for i := range 4 * jobsMax {
			q.Send(refund(uint32(i%4+1), "burst"))
		}
		if !q.Send(refund(5, "other")) {
			t.Error("the job of a fifth source is dropped")
		}
		q.Stop(time.Hour)
	})
}

// TestExcessIsBounded: a source can have merged charges of half of excessMax calls. If there is no
// room for a further counter, the charges of known counters are still made.
func TestExcessIsBounded(t *testing.T) {
	const counters = excessMax / 2 * counter.ChecksMax
	synctest.Test(t, func(t *testing.T) {
		store, e := &recordingStore{costs: map[string]int64{}}, new(ends)
		q := New(store, e.note)
		for i := range jobsMax + workersCount {
			q.Send(refund(uint32(1000+i), "other")) // all places are taken
			if i == workersCount-1 {
				synctest.Wait() // each worker has a job, so none frees a place later
			}
		}
		for i := range counters + 1 {
			if sent := q.Send(charge(1, strconv.Itoa(i))); sent != (i < counters) {
				t.Fatalf("charge of counter %d is sent: %v", i, sent)
			}
		}
		last, further := charge(1, strconv.Itoa(counters-1)), charge(1, "further")
		if q.Send(&sourced{source: 1, checks: append(further.checks, last.checks...)}) {
			t.Error("a job that lost a charge is not dropped")
		}
		if !q.Send(charge(2, "another source")) {
			t.Error("another source has no room")
		}
		q.Stop(time.Hour)
		if got := store.costs[strconv.Itoa(counters-1)]; got != 2 || store.costs["further"] != 0 || store.costs["another source"] != 1 {
			t.Errorf("%d charged to the known counter, want 2; further: %d", got, store.costs["further"])
		}
		if want := jobsMax + workersCount + counters + 1; e.of(Settled) != want || e.of(Dropped) != 2 {
			t.Errorf("%d settled and %d dropped, want %d and 2", e.of(Settled), e.of(Dropped), want)
		}
	})
}

// TestManyCountersAreMerged: the jobs of a source alternate between more counters than one call can
// have. All their charges are made.
func TestManyCountersAreMerged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, counters = 3 * jobsMax, 2*counter.ChecksMax + 1
		store, e := &recordingStore{costs: map[string]int64{}}, new(ends)
		q := New(store, e.note)
		for i := range n {
			job := charge(1, strconv.Itoa(i%counters))
			job.checks = append(job.checks, charge(1, "shared").checks...)
			q.Send(job)
		}
		q.Stop(time.Hour)
		total := int64(0)
		for _, cost := range store.costs {
			total += cost
		}
		if store.costs["shared"] != n || total != 2*n || e.of(Settled) != n {
			t.Errorf("%d charged in all and %d to the shared counter by %d jobs, %d settled", total, store.costs["shared"], n, e.of(Settled))
		}
	})
}

// TestMergedChargesKeepTheLatestPeriod: charges of one counter in two periods of a calendar are
// made in the later one.
func TestMergedChargesKeepTheLatestPeriod(t *testing.T) {
	limit := new(counter.Limit)
	check := func(start counter.Micros, cost int64) counter.Check {
		return counter.Check{Key: []byte("k"), Op: counter.OpForce, Cost: cost, Limit: limit, Bounds: &counter.Bounds{start}}
	}
	m := &charges{checks: make([]counter.Check, 0, counter.ChecksMax)}
	e := excess{known: map[string]*counter.Check{}, latest: m}
	for _, c := range []counter.Check{check(10, 3), check(20, 4), check(10, 5), check(20, counter.CountMax)} {
		if !e.add(&c) {
			t.Fatal("not added")
		}
	}
	if c := m.checks[0]; len(m.checks) != 1 || c.Bounds[0] != 20 || c.Cost != counter.CountMax+1 {
		t.Errorf("%+v, want one charge in the period that begins at 20", m.checks)
	}
}

// TestTheSourceIsTheJobsOwn: Copy returns a job of the source of its checks, which shares no memory
// with them.
func TestTheSourceIsTheJobsOwn(t *testing.T) {
	limit, key := new(counter.Limit), []byte("k")
	job := Copy([]counter.Check{{Key: key, Limit: limit, Source: 7}})
	key[0] = 'x'
	if due := job.Due(); job.Source() != 7 || string(due[0].Key) != "k" || due[0].Limit == limit {
		t.Errorf("source %d, checks %+v", job.Source(), due)
	}
	if Copy(nil).Source() != 0 {
		t.Error("a job without checks has a source")
	}
}
