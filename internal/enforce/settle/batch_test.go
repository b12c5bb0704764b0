// SPDX-License-Identifier: Apache-2.0

package settle

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
)

// slowBatcher is a store whose first call lasts until the test ends it. A slowBatcher denies
// conditions of cost 1, fails those of cost 2 and panics at those of cost 3.
type slowBatcher struct {
	hold chan struct{}

	mu    sync.Mutex
	asked int                    // number of calls
	dues  map[*counter.Check]int // how often each check was sent, by its address
}

func (s *slowBatcher) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	calls := []counter.Call{{Checks: checks, Results: results}}
	s.TakeAll(ctx, calls)
	return calls[0].Err
}

func (s *slowBatcher) TakeAll(_ context.Context, calls []counter.Call) {
	<-s.hold
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	for i := range calls {
		c := &calls[i]
		switch cost := c.Checks[0].Cost; {
		case cost == 3:
			panic("provoked")
		case cost == 2:
			c.Err = errors.New("away")
		case len(c.Checks) == 2:
			c.Results[1].Denied = cost == 1
		default:
			s.dues[&c.Checks[0]]++
		}
	}
}

// order is a job with a check of its own, and with a condition of the given cost, or without one if
// the cost is 0.
type order struct {
	job
	due, condition int64
	checks         [1]counter.Check
	ended          []End
}

// Ended implements [Observer].
func (o *order) Ended(end End) { o.ended = append(o.ended, end) }

func (o *order) Due() []counter.Check {
	if o.due == 4 {
		panic("the job's")
	}
	o.checks[0].Cost = o.due
	return o.checks[:]
}

func (o *order) Condition() []counter.Check {
	if o.condition == 0 {
		return nil
	}
	return []counter.Check{{Cost: o.condition}, {}}
}

// TestWaitingJobsAreSentTogether: jobs that arrive while the store is busy are sent in few calls,
// and each has its own end.
func TestWaitingJobsAreSentTogether(t *testing.T) {
	const each = 500
	type kind struct {
		due, condition int64
		want           End
	}
	kinds := []kind{{0, 0, Settled}, {0, 5, Settled}, {0, 1, Repeated}, {0, 2, Failed}, {2, 0, Failed}, {2, 5, Failed}, {4, 0, Panicked}}
	endOf := func(due, condition int64) End {
		return kinds[slices.IndexFunc(kinds, func(k kind) bool { return k.due == due && k.condition == condition })].want
	}
	store := &slowBatcher{hold: make(chan struct{}), dues: map[*counter.Check]int{}}
	e := new(ends)
	q := New(store, e.note)
	want := map[End]int{}
	var orders []*order
	for range each {
		for _, k := range kinds {
			o := &order{due: k.due, condition: k.condition}
			if !q.Send(o) {
				t.Fatal("dropped")
			}
			orders = append(orders, o)
			want[k.want]++
		}
	}
	close(store.hold)
	if !q.Stop(Deadline) {
		t.Fatal("not drained")
	}
	for end, n := range want {
		if e.of(end) != n {
			t.Errorf("%s: %d, want %d", end, e.of(end), n)
		}
	}
	for _, o := range orders {
		done := 0
		if o.due == 0 && (o.condition == 0 || o.condition == 5) {
			done = 1
		}
		if store.dues[&o.checks[0]] != done {
			t.Errorf("due %d on condition %d: done %d times, want %d", o.due, o.condition, store.dues[&o.checks[0]], done)
		}
		if want := endOf(o.due, o.condition); o.due != 4 && !slices.Equal(o.ended, []End{want}) {
			t.Errorf("due %d on condition %d: told %v, want %s", o.due, o.condition, o.ended, want)
		}
		if released := o.released.Load(); released != 1 && o.due != 4 {
			t.Errorf("due %d on condition %d: released %d times", o.due, o.condition, released)
		}
	}
	if store.asked > len(orders)/4 {
		t.Errorf("the store was asked %d times for %d jobs", store.asked, len(orders))
	}
}

// TestAPanicOfTheStoreEndsItsJobs: after a panic of the store, the outcome of each job in the call
// is unknown, but no worker ends.
func TestAPanicOfTheStoreEndsItsJobs(t *testing.T) {
	store := &slowBatcher{hold: make(chan struct{}), dues: map[*counter.Check]int{}}
	close(store.hold)
	e := new(ends)
	q := New(store, e.note)
	for range 10 * workersCount * batchMax {
		q.Send(&order{due: 3})
	}
	if !q.Stop(Deadline) || e.of(Panicked)+e.of(Dropped) != 10*workersCount*batchMax || e.of(Panicked) == 0 {
		t.Error(e.count)
	}
}

// calendarStore is a store that rejects a call with stale boundaries, and executes none of its
// checks.
type calendarStore struct {
	mu   sync.Mutex
	done map[string]int64 // the corrected units, by key
}

func (s *calendarStore) Take(_ context.Context, checks []counter.Check, _ []counter.Result) error {
	if err := counter.Stale(counter.Micros(time.Now().UnixMicro()), checks); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range checks {
		s.done[string(checks[i].Key)] += checks[i].Cost
	}
	return nil
}

func (s *calendarStore) TakeAll(ctx context.Context, calls []counter.Call) {
	for i := range calls {
		calls[i].Err = s.Take(ctx, calls[i].Checks, calls[i].Results)
	}
}

// correction is a job with several checks.
type correction struct {
	job
	checks []counter.Check
}

func (c *correction) Due() []counter.Check { return c.checks }

// daysAgo returns the boundaries of the window in which a request arrived n days ago, under a limit
// by day.
func daysAgo(n int) *counter.Bounds {
	var b counter.Bounds
	for i := range b {
		b[i] = counter.Micros(time.Now().AddDate(0, 0, i-1-n).Add(-12 * time.Hour).UnixMicro())
	}
	return &b
}

// TestALateResponseSettlesTheOtherLimits: a response that arrives more than a period late does not
// change the counter of that period, and the counters of the other limits are corrected.
func TestALateResponseSettlesTheOtherLimits(t *testing.T) {
	for name, store := range map[string]func(*calendarStore) counter.Store{
		"one call after the other": func(s *calendarStore) counter.Store { return struct{ counter.Store }{s} },
		"calls together":           func(s *calendarStore) counter.Store { return s },
	} {
		s, e := &calendarStore{done: map[string]int64{}}, new(ends)
		q := New(store(s), e.note)
		const each = 50
		for range each {
			q.Send(&correction{checks: []counter.Check{{Key: []byte("two days ago"), Bounds: daysAgo(2), Cost: 1},
				{Key: []byte("no calendar"), Cost: 1}, {Key: []byte("today"), Bounds: daysAgo(0), Cost: 1},
				{Key: []byte("four days ago"), Bounds: daysAgo(4), Cost: 1}, {Key: []byte("yesterday"), Bounds: daysAgo(1), Cost: 1}}})
			q.Send(&correction{checks: []counter.Check{{Key: []byte("alone"), Bounds: daysAgo(3), Cost: 1}}})
			q.Send(&correction{checks: []counter.Check{{Key: []byte("late"), Bounds: daysAgo(1), Cost: 1}, {Key: []byte("later"), Bounds: daysAgo(1), Cost: 1}}})
		}
		if !q.Stop(Deadline) {
			t.Fatal("not drained")
		}
		if want := map[string]int64{"no calendar": each, "today": each, "yesterday": each, "late": each, "later": each}; !maps.Equal(s.done, want) {
			t.Errorf("%s: corrected are %v, want %v", name, s.done, want)
		}
		if e.of(Failed) != 2*each || e.of(Settled) != each {
			t.Errorf("%s: the ends are %v", name, e.count)
		}
	}
}
