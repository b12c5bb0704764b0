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

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/storetest"
	"github.com/penstock/penstock/internal/underrace"
)

// noon is an instant at the start of windows of every length the tests use.
const noon core.Micros = 1_700_049_600 * core.Second

// pinned is a store whose clock stands where the test puts it.
type pinned struct {
	*Store
	testing.TB
	clock atomic.Int64
}

func open(t testing.TB, countersMax int) *pinned {
	p := &pinned{TB: t}
	p.at(noon)
	s, err := New(Options{CountersMax: countersMax, Now: func() core.Micros { return core.Micros(p.clock.Load()) }})
	if err != nil {
		t.Fatal(err)
	}
	s.slack = 0 // the clock of these tests goes back only where they say so
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	p.Store = s
	return p
}

func (p *pinned) at(now core.Micros) { p.clock.Store(int64(now)) }

// ask answers checks and fails the test if the store cannot.
func (p *pinned) ask(checks ...core.Check) []core.Result {
	p.Helper()
	results := make([]core.Result, len(checks))
	if err := p.Take(context.Background(), checks, results); err != nil {
		p.Fatal(err)
	}
	return results
}

// collide makes the keys of the store collide but for the bits of mask.
func (p *pinned) collide(mask uint64) {
	p.overflow.mask = mask
	for i := range p.shards {
		p.shards[i].mask = mask
	}
}

func limitOf(t testing.TB, text string) *core.Limit {
	l, err := core.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	return &l
}

// scope is what the keys of the tests begin with, as those of a rule do.
const scope = "rl1:shop:api:"

// clientKey returns a key of a client as policies make them.
func clientKey(client string, l *core.Limit) []byte {
	return []byte(fmt.Sprintf("%s{user:%s}:%s:%s", scope, client, l.WindowLabel(), l.Algorithm().Label()))
}

func takeOf(client string, l *core.Limit, cost int64) core.Check {
	return core.Check{Key: clientKey(client, l), ScopeLen: len(scope), Limit: l, Op: core.OpTake, Cost: cost}
}

// counter returns a copy of what the store keeps for key.
func (s *Store) counter(_ testing.TB, key []byte, _ *core.Limit) (core.State, []core.Mark) {
	hash := s.shards[0].hash(key)
	sh := &s.shards[s.shardOf(hash)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r, ok := sh.find(hash, key)
	if !ok {
		return core.State{}, nil
	}
	var slot core.Slot
	sh.load(r, &slot)
	return slot.State, slices.Clone(slot.Marks)
}

// penalty returns a copy of what the store keeps of a client's violations.
func (s *Store) penalty(_ testing.TB, key []byte) (until core.Micros, violations []core.Violation) {
	hash := s.shards[0].hash(key)
	sh := &s.shards[s.shardOf(hash)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r, ok := sh.find(hash, key)
	if !ok {
		return 0, nil
	}
	var slot core.Slot
	sh.load(r, &slot)
	return slot.State.At, slices.Clone(slot.Violations)
}

func subject(t testing.TB) storetest.Subject {
	p := open(t, 0)
	p.slack = backwards
	return storetest.Subject{Store: p.Store, Pin: p.at, Counter: p.counter, Penalty: p.penalty}
}

func TestPassesTheExam(t *testing.T) { storetest.Run(t, subject) }

func TestAgreesWithTheModelOnLongTraffic(t *testing.T) {
	storetest.RunRandom(t, subject, underrace.Fewer(100_000))
}

func TestKeysThatCollideAreToldApart(t *testing.T) {
	storetest.RunRandom(t, func(t testing.TB) storetest.Subject {
		p := open(t, 0)
		p.slack = backwards
		p.collide(0b11 << 62)
		return storetest.Subject{Store: p.Store, Pin: p.at, Counter: p.counter, Penalty: p.penalty}
	}, underrace.Fewer(20_000))
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
	l := limitOf(t, "1/1m")
	c := core.Check{Key: []byte(strings.Repeat("k", KeyMax)), Limit: l, Cost: 1}
	if r := p.ask(c); r[0].Granted != 1 {
		t.Errorf("the longest key: %+v", r[0])
	}
	if r := p.ask(c); !r[0].Refused {
		t.Errorf("the longest key again: %+v", r[0])
	}
	c.Key = append(c.Key, 'k')
	if err := p.Take(context.Background(), []core.Check{c}, make([]core.Result, 1)); !errors.Is(err, core.ErrInvalid) {
		t.Errorf("a longer key: %v, want %v", err, core.ErrInvalid)
	}
}

func TestDoneContextChargesNothing(t *testing.T) {
	p := open(t, 10)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := p.Take(ctx, []core.Check{takeOf("ann", limitOf(t, "1/1m"), 1)}, make([]core.Result, 1))
	if !errors.Is(err, core.ErrUnavailable) || !errors.Is(err, context.Canceled) || p.Len() != 0 {
		t.Errorf("error %v and %d counters, want %v, %v and none", err, p.Len(), core.ErrUnavailable, context.Canceled)
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
	l := limitOf(t, "1000/1m token_bucket")
	for last, i := core.Micros(0), 0; i < 100; i++ {
		r := make([]core.Result, 1)
		if err := s.Take(context.Background(), []core.Check{takeOf("ann", l, 1)}, r); err != nil {
			t.Fatal(err)
		}
		if r[0].At < last || r[0].Granted != 1 {
			t.Fatalf("after %d: %+v", last, r[0])
		}
		last = r[0].At
	}
}

// TestOwnClockFollowsTheCalendar: a machine that has slept, or was started with a wrong clock, knows the day again.
func TestOwnClockFollowsTheCalendar(t *testing.T) {
	for _, wrong := range []time.Duration{-3 * 24 * time.Hour, 3 * 24 * time.Hour} {
		s, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		l, err := core.NewCalendarLimit(3, core.CalendarDay)
		if err != nil {
			t.Fatal(err)
		}
		checks, r := []core.Check{takeOf("ann", &l, 1)}, make([]core.Result, 1)
		b := core.CalendarDay.Bounds(core.Micros(time.Now().UnixMicro()), time.UTC)
		checks[0].Bounds = &b
		s.clock.base.Add(wrong.Microseconds())
		for i := range 3 {
			if err := s.Take(context.Background(), checks, r); err != nil || r[0].Remaining != int64(2-i) {
				t.Fatalf("a clock %s wrong: %+v (%v)", wrong, r[0], err)
			}
		}
		b = core.CalendarDay.Bounds(b[0]-core.Micros(9*core.Day), time.UTC) // here it is the caller that is wrong
		if err := s.Take(context.Background(), checks, r); !errors.Is(err, core.ErrStale) {
			t.Errorf("boundaries of another week: %v", err)
		}
	}
}

func TestTakeDoesNotAllocate(t *testing.T) {
	p := open(t, 0)
	now := noon
	for _, n := range []int{1, 3, smallCall, smallCall + 2} {
		for _, text := range []string{"100/1s fixed_window", "100/1s sliding_window", "100/1s token_bucket"} {
			l := limitOf(t, text)
			checks := make([]core.Check, n)
			for i := range checks {
				checks[i] = takeOf(fmt.Sprint("client", i), l, 1)
			}
			results := make([]core.Result, n)
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

// A lease and its return allocate nothing, and what is known of leases goes with the counters.
func TestLeasesDoNotAllocate(t *testing.T) {
	p := open(t, 0)
	now := noon
	for _, text := range []string{"100/1s fixed_window", "100/1s sliding_window", "100/1s token_bucket"} {
		l := limitOf(t, text)
		check := takeOf("ann", l, 0)
		checks, results := make([]core.Check, 1), make([]core.Result, 1)
		ask := func(c core.Check) core.Result {
			checks[0] = c
			if err := p.Take(context.Background(), checks, results); err != nil {
				t.Fatal(err)
			}
			return results[0]
		}
		got := testing.AllocsPerRun(2000, func() {
			now += 200 * core.Millisecond
			p.at(now)
			lease := check
			lease.Op, lease.Min, lease.Max, lease.ShareMille, lease.Age = core.OpUpTo, 1, 5, 1000, 50*core.Millisecond
			r := ask(lease)
			if r.Granted != 5 || r.LeasedIn != lease.Age {
				t.Fatalf("%s: a lease of 5: %+v", text, r)
			}
			back := check
			back.Op, back.Cost, back.Receipt, back.Age = core.OpGiveBack, 5, r.Receipt, lease.Age
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
		now += core.Second
		p.at(now)
		if ask(takeOf("ann", l, 1)); known() != 0 {
			t.Errorf("%s: a lease is known after its end", text)
		}
	}
}

// A sliding log allocates when its slice grows, and never again once it has held as much as it may.
func TestSlidingLogAllocatesNoMoreOnceFull(t *testing.T) {
	p := open(t, 0)
	now := noon
	checks := []core.Check{takeOf("ann", limitOf(t, "100/1s sliding_log"), 1)}
	results := make([]core.Result, 1)
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
	l := limitOf(t, "100/1m")
	for i := range 10 {
		p.ask(takeOf(fmt.Sprint("held", i), l, 1))
	}
	checks := []core.Check{takeOf("newcomer", l, 1)}
	results := make([]core.Result, 1)
	got := testing.AllocsPerRun(2000, func() {
		if err := p.Take(context.Background(), checks, results); err != nil || !results[0].Overflow {
			t.Fatal(err, results)
		}
	})
	if got != 0 {
		t.Errorf("%v allocations, want 0", got)
	}
}

// The lock, the directory and the pages' addresses share one cache line.
func TestShardIsLaidOutInCacheLines(t *testing.T) {
	var s shard
	const address = 2 * unsafe.Sizeof(uintptr(0)) // of data: its capacity is not read
	size, end := unsafe.Sizeof(s), unsafe.Offsetof(s.data)+address
	if size%64 != 0 || end > 64 {
		t.Errorf("a shard has %d bytes, want whole cache lines; what is read first ends at %d, want 64", size, end)
	}
}

func random(t testing.TB) *rand.Rand { return rand.New(rand.NewPCG(storetest.Seed(t), 1)) }

// TestAPanicLeavesNothingLocked: it is one request's affair. Here the clock panics, the first time that it is read, or the second,
// which is when the shared counters of a full store are locked too.
func TestAPanicLeavesNothingLocked(t *testing.T) {
	for _, c := range []struct {
		name   string
		checks []core.Check
		reads  int
	}{
		{"one check", []core.Check{takeOf("ann", limitOf(t, "5/1m"), 1)}, 1},
		{"two checks", []core.Check{takeOf("ann", limitOf(t, "5/1m"), 1), takeOf("bob", limitOf(t, "5/1m"), 1)}, 1},
		{"a full store", []core.Check{takeOf("bob", limitOf(t, "5/1m"), 1)}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			fuse := 0
			s, err := New(Options{CountersMax: 1, Now: func() core.Micros {
				if fuse--; fuse == 0 {
					panic("provoked")
				}
				return core.Micros(time.Now().UnixMicro())
			}})
			if err != nil {
				t.Fatal(err)
			}
			take := func(checks []core.Check) (reason any) {
				defer func() { reason = recover() }()
				if err := s.Take(context.Background(), checks, make([]core.Result, len(checks))); err != nil {
					t.Error(err)
				}
				return nil
			}
			take([]core.Check{takeOf("ann", limitOf(t, "5/1m"), 1)})
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
