// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/racescale"
	"github.com/penstock/penstock/internal/test/seed"
	"github.com/penstock/penstock/internal/test/storetest"
)

// noon is an instant at which windows of every length in the tests begin.
const noon counter.Micros = 1_700_049_600 * counter.Second

// pinnedStore is a store whose clock the test sets.
type pinnedStore struct {
	*Store
	testing.TB
	clock atomic.Int64
}

func open(t testing.TB, countersMax int) *pinnedStore {
	p := &pinnedStore{TB: t}
	p.at(noon)
	s, err := New(Options{CountersMax: countersMax, Now: func() counter.Micros { return counter.Micros(p.clock.Load()) }})
	if err != nil {
		t.Fatal(err)
	}
	s.slack = 0 // tests of a clock that goes back set their own slack
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	p.Store = s
	return p
}

func (p *pinnedStore) at(now counter.Micros) { p.clock.Store(int64(now)) }

// pinnedStore.ask makes checks and returns the results. An error fails the test.
func (p *pinnedStore) ask(checks ...counter.Check) []counter.Result {
	p.Helper()
	results := make([]counter.Result, len(checks))
	if err := p.Take(context.Background(), checks, results); err != nil {
		p.Fatal(err)
	}
	return results
}

// pinnedStore.collide makes the hashes of all keys equal, except in the bits of mask.
func (p *pinnedStore) collide(mask uint64) {
	p.overflow.mask = mask
	for i := range p.shards {
		p.shards[i].mask = mask
	}
}

// scope is the prefix of the tests' keys, like that of a rule.
const scope = "rl1:shop:api:"

// clientKey returns the key of a client's counter in the form that policies use.
func clientKey(client string, l *counter.Limit) []byte {
	return []byte(fmt.Sprintf("%s{user:%s}:%s:%s", scope, client, l.WindowLabel(), l.Algorithm().Label()))
}

func takeOf(client string, l *counter.Limit, cost int64) counter.Check {
	return counter.Check{Key: clientKey(client, l), ScopeLen: len(scope), Limit: l, Op: counter.OpTake, Cost: cost}
}

// Store.counter returns a copy of the stored counter of a key.
func (s *Store) counter(_ testing.TB, key []byte, _ *counter.Limit) (counter.State, []counter.Mark) {
	hash := s.shards[0].hash(key)
	sh := &s.shards[s.shardOf(hash)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r, ok := sh.find(hash, key)
	if !ok {
		return counter.State{}, nil
	}
	var slot counter.Slot
	sh.load(r, &slot)
	return slot.State, slices.Clone(slot.Marks)
}

// Store.penalty returns a copy of the stored violations of a client.
func (s *Store) penalty(_ testing.TB, key []byte) (until counter.Micros, violations []counter.Violation) {
	hash := s.shards[0].hash(key)
	sh := &s.shards[s.shardOf(hash)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r, ok := sh.find(hash, key)
	if !ok {
		return 0, nil
	}
	var slot counter.Slot
	sh.load(r, &slot)
	return slot.State.At, slices.Clone(slot.Violations)
}

func newSubject(t testing.TB) storetest.Subject {
	p := open(t, 0)
	p.slack = backwards
	return storetest.Subject{Store: p.Store, Pin: p.at, Counter: p.counter, Penalty: p.penalty}
}

func TestPassesTheExam(t *testing.T) { storetest.Run(t, newSubject) }

func TestAgreesWithTheModelOnLongTraffic(t *testing.T) {
	storetest.RunRandom(t, newSubject, racescale.Long(100_000))
}

func TestCollidingKeysStayDistinct(t *testing.T) {
	storetest.RunRandom(t, func(t testing.TB) storetest.Subject {
		p := open(t, 0)
		p.slack = backwards
		p.collide(0b11 << 62)
		return storetest.Subject{Store: p.Store, Pin: p.at, Counter: p.counter, Penalty: p.penalty}
	}, racescale.Fewer(20_000))
}

func TestOptionsOutOfBounds(t *testing.T) {
	for _, n := range []int{-1, CountersMaxBound + 1} {
		if _, err := New(Options{CountersMax: n}); err == nil {
			t.Errorf("New with %d counters: no error", n)
		}
	}
	s, err := New(Options{})
	if err != nil || s.max != CountersMaxDefault {
		t.Errorf("New with no options: bound %d, error %v", s.max, err)
	}
}

func TestKeyTooLongToHold(t *testing.T) {
	p := open(t, 10)
	l := limittest.New(t, "1/1m")
	c := counter.Check{Key: []byte(strings.Repeat("k", KeyMax)), Limit: l, Cost: 1}
	if r := p.ask(c); r[0].Granted != 1 {
		t.Errorf("the longest key: %+v", r[0])
	}
	if r := p.ask(c); !r[0].Denied {
		t.Errorf("the longest key again: %+v", r[0])
	}
	c.Key = append(c.Key, 'k')
	if err := p.Take(context.Background(), []counter.Check{c}, make([]counter.Result, 1)); !errors.Is(err, counter.ErrInvalid) {
		t.Errorf("a longer key: %v, want %v", err, counter.ErrInvalid)
	}
}

func TestDoneContextChargesNothing(t *testing.T) {
	p := open(t, 10)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := p.Take(ctx, []counter.Check{takeOf("ann", limittest.New(t, "1/1m"), 1)}, make([]counter.Result, 1))
	if !errors.Is(err, counter.ErrUnavailable) || !errors.Is(err, context.Canceled) || p.Len() != 0 {
		t.Errorf("error %v and %d counters, want %v, %v and none", err, p.Len(), counter.ErrUnavailable, context.Canceled)
	}
}

func TestOwnClockNeverGoesBack(t *testing.T) {
	s, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if s.slack != 0 {
		t.Errorf("a store on its own clock keeps fresh counters for %s", s.slack)
	}
	l := limittest.New(t, "1000/1m token_bucket")
	for last, i := counter.Micros(0), 0; i < 100; i++ {
		r := make([]counter.Result, 1)
		if err := s.Take(context.Background(), []counter.Check{takeOf("ann", l, 1)}, r); err != nil {
			t.Fatal(err)
		}
		if r[0].At < last || r[0].Granted != 1 {
			t.Fatalf("after %d: %+v", last, r[0])
		}
		last = r[0].At
	}
}

// TestOwnClockFollowsTheCalendar: after a machine has slept, or was started with a wrong clock, the
// store's clock returns to the right day.
func TestOwnClockFollowsTheCalendar(t *testing.T) {
	for _, wrong := range []time.Duration{-3 * 24 * time.Hour, 3 * 24 * time.Hour} {
		s, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		l, err := counter.NewCalendarLimit(3, counter.CalendarDay)
		if err != nil {
			t.Fatal(err)
		}
		checks, r := []counter.Check{takeOf("ann", &l, 1)}, make([]counter.Result, 1)
		b := counter.CalendarDay.Bounds(counter.Micros(time.Now().UnixMicro()), time.UTC)
		checks[0].Bounds = &b
		s.clock.base.Add(wrong.Microseconds())
		for i := range 3 {
			if err := s.Take(context.Background(), checks, r); err != nil || r[0].Remaining != int64(2-i) {
				t.Fatalf("a clock %s wrong: %+v (%v)", wrong, r[0], err)
			}
		}
		// The caller's clock is wrong.
		b = counter.CalendarDay.Bounds(b[0]-counter.Micros(9*counter.Day), time.UTC)
		if err := s.Take(context.Background(), checks, r); !errors.Is(err, counter.ErrStale) {
			t.Errorf("boundaries of another week: %v", err)
		}
	}
}

func TestTakeDoesNotAllocate(t *testing.T) {
	p := open(t, 0)
	now := noon
	for _, n := range []int{1, 3, smallCall, smallCall + 2} {
		for _, text := range []string{"100/1s fixed_window", "100/1s sliding_window", "100/1s token_bucket"} {
			l := limittest.New(t, text)
			checks := make([]counter.Check, n)
			for i := range checks {
				checks[i] = takeOf(fmt.Sprint("client", i), l, 1)
			}
			results := make([]counter.Result, n)
			got := testing.AllocsPerRun(2000, func() {
				now += 1000
				p.at(now)
				if err := p.Take(context.Background(), checks, results); err != nil {
					t.Fatal(err)
				}
			})
			if got != 0 {
				t.Errorf("%d checks of %s: %v allocations, want 0", n, text, got)
			}
		}
	}
}

// TestLeasesDoNotAllocate: leasing and returning units allocates nothing, and the record of a lease
// is dropped with its counter.
func TestLeasesDoNotAllocate(t *testing.T) {
	p := open(t, 0)
	now := noon
	for _, text := range []string{"100/1s fixed_window", "100/1s sliding_window", "100/1s token_bucket"} {
		l := limittest.New(t, text)
		check := takeOf("ann", l, 0)
		checks, results := make([]counter.Check, 1), make([]counter.Result, 1)
		ask := func(c counter.Check) counter.Result {
			checks[0] = c
			if err := p.Take(context.Background(), checks, results); err != nil {
				t.Fatal(err)
			}
			return results[0]
		}
		got := testing.AllocsPerRun(2000, func() {
			now += 200 * counter.Millisecond
			p.at(now)
			lease := check
			lease.Op, lease.Min, lease.Max, lease.ShareMille, lease.Age = counter.OpUpTo, 1, 5, 1000, 50*counter.Millisecond
			r := ask(lease)
			if r.Granted != 5 || r.LeasedIn != lease.Age {
				t.Fatalf("%s: a lease of 5: %+v", text, r)
			}
			back := check
			back.Op, back.Cost, back.Receipt, back.Age = counter.OpRefund, 5, r.Receipt, lease.Age
			if r := ask(back); r.Granted != 5 {
				t.Fatalf("%s: 5 given back at once: %+v", text, r)
			}
		})
		if got != 0 {
			t.Errorf("%s: %v allocations, want 0", text, got)
		}
		known := func() (n int) {
			for i := range p.shards {
				n += len(p.shards[i].leases)
			}
			return n
		}
		if n := known(); n != 1 {
			t.Errorf("%s: %d leases are known, want 1", text, n)
		}
		now += counter.Second
		p.at(now)
		if ask(takeOf("ann", l, 1)); known() != 0 {
			t.Errorf("%s: a lease is known after its end", text)
		}
	}
}

// TestSlidingLogAllocatesNoMoreOnceFull: a sliding log allocates only while its slice grows to its
// maximum size.
func TestSlidingLogAllocatesNoMoreOnceFull(t *testing.T) {
	p := open(t, 0)
	now := noon
	checks := []counter.Check{takeOf("ann", limittest.New(t, "100/1s sliding_log"), 1)}
	results := make([]counter.Result, 1)
	ask := func() {
		now += 5000
		p.at(now)
		if err := p.Take(context.Background(), checks, results); err != nil {
			t.Fatal(err)
		}
	}
	for range 1000 {
		ask()
	}
	if got := testing.AllocsPerRun(2000, ask); got != 0 {
		t.Errorf("%v allocations, want 0", got)
	}
}

func TestOverflowDoesNotAllocate(t *testing.T) {
	p := open(t, 10)
	l := limittest.New(t, "100/1m")
	for i := range 10 {
		p.ask(takeOf(fmt.Sprint("held", i), l, 1))
	}
	checks := []counter.Check{takeOf("newcomer", l, 1)}
	results := make([]counter.Result, 1)
	got := testing.AllocsPerRun(2000, func() {
		if err := p.Take(context.Background(), checks, results); err != nil || !results[0].Overflow {
			t.Fatal(err, results)
		}
	})
	if got != 0 {
		t.Errorf("%v allocations, want 0", got)
	}
}

// TestShardIsLaidOutInCacheLines: the lock, the directory and the pages' addresses share one cache
// line.
func TestShardIsLaidOutInCacheLines(t *testing.T) {
	var s shard
	const address = 2 * unsafe.Sizeof(uintptr(0)) // the end of the field data, whose capacity is not read
	size, end := unsafe.Sizeof(s), unsafe.Offsetof(s.data)+address
	if size%64 != 0 || end > 64 {
		t.Errorf("a shard has %d bytes, want whole cache lines; what is read first ends at %d, want 64", size, end)
	}
}

func random(t testing.TB) *rand.Rand { return rand.New(rand.NewPCG(seed.First(t), 1)) }

// TestAPanicLeavesNothingLocked: a panic affects only one request. The clock panics when it is read
// for the first or the second time. At the second time, the shared counters of a full store are
// locked too.
func TestAPanicLeavesNothingLocked(t *testing.T) {
	for _, c := range []struct {
		name   string
		checks []counter.Check
		reads  int
	}{
		{"one check", []counter.Check{takeOf("ann", limittest.New(t, "5/1m"), 1)}, 1},
		{"two checks", []counter.Check{takeOf("ann", limittest.New(t, "5/1m"), 1), takeOf("bob", limittest.New(t, "5/1m"), 1)}, 1},
		{"a full store", []counter.Check{takeOf("bob", limittest.New(t, "5/1m"), 1)}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			fuse := 0
			s, err := New(Options{CountersMax: 1, Now: func() counter.Micros {
				if fuse--; fuse == 0 {
					panic("provoked")
				}
				return counter.Micros(time.Now().UnixMicro())
			}})
			if err != nil {
				t.Fatal(err)
			}
			take := func(checks []counter.Check) (reason any) {
				defer func() { reason = recover() }()
				if err := s.Take(context.Background(), checks, make([]counter.Result, len(checks))); err != nil {
					t.Error(err)
				}
				return nil
			}
			take([]counter.Check{takeOf("ann", limittest.New(t, "5/1m"), 1)})
			fuse = c.reads
			if reason := take(c.checks); reason != "provoked" {
				t.Fatalf("the panic is %v: the clock was not read that often", reason)
			}
			again := make(chan any, 1)
			go func() { again <- take(c.checks) }()
			select {
			case reason := <-again:
				if reason != nil {
					t.Errorf("the next call panics: %v", reason)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("the next call waits for a lock")
			}
		})
	}
}
