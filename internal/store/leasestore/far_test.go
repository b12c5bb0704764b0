// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/test/limittest"
)

// remoteStore is a store in memory behind a simulated network, with simulated time. Calls take
// time, get lost, or are answered too late. A remoteStore records every charge.
type remoteStore struct {
	testing.TB
	of  counter.Store
	rtt time.Duration

	mu       sync.Mutex
	random   *rand.Rand
	lose     float64 // the fraction of calls that fail; half of these are executed
	asked    int     // the number of calls that charge
	under    map[string]int
	most     int // the maximum number of concurrent calls for one counter
	backs    map[string]int64
	charged  map[string]int64 // the charged units, including those of lost answers
	returned map[string]int64
	hang     bool // whether charges are not answered until their context is done
	hangs    float64
	hung     int
	panics   bool
}

const farTimeout = 50 * time.Millisecond

func newFar(t testing.TB, rtt time.Duration) *remoteStore {
	f := &remoteStore{TB: t, rtt: rtt, random: rand.New(rand.NewPCG(1, 2)), under: map[string]int{}, backs: map[string]int64{},
		charged: map[string]int64{}, returned: map[string]int64{}}
	of, err := memstore.New(memstore.Options{Now: func() counter.Micros { return counter.Micros(time.Now().UnixMicro()) }})
	if err != nil {
		t.Fatal(err)
	}
	f.of = of
	return f
}

func (f *remoteStore) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	lost, executed, hang, way := f.begin(checks)
	defer f.end(checks)
	if hang {
		ctx, cancel := context.WithTimeout(ctx, farTimeout)
		defer cancel()
		<-ctx.Done()
		return fmt.Errorf("%w: %w", counter.ErrUnavailable, ctx.Err())
	}
	time.Sleep(way)
	if lost && !executed {
		time.Sleep(farTimeout - way)
		return counter.ErrUnavailable
	}
	if err := f.of.Take(context.Background(), checks, results); err != nil {
		return err
	}
	f.book(checks, results)
	if lost {
		time.Sleep(farTimeout - way)
		clear(results)
		return counter.ErrUnavailable
	}
	time.Sleep(way)
	return nil
}

// remoteStore.begin records a call and returns its delays and whether it fails.
func (f *remoteStore) begin(checks []counter.Check) (lost, executed, hang bool, way time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	charges := false
	for i := range checks {
		switch c := &checks[i]; c.Op {
		case counter.OpTake, counter.OpUpTo:
			charges = true
			f.under[string(c.Key)]++
			f.most = max(f.most, f.under[string(c.Key)])
		case counter.OpRefund:
			f.backs[fmt.Sprintf("%s of %d", c.Key, c.Receipt)] += c.Cost
		}
	}
	if charges {
		f.asked++
		if f.panics {
			panic("as the test wants it")
		}
	}
	lost = f.random.Float64() < f.lose
	way = time.Duration(float64(f.rtt) / 2 * (0.9 + 0.2*f.random.Float64()))
	executed, hang = f.random.IntN(2) == 0, charges && (f.hang || f.hangs > 0 && f.random.Float64() < f.hangs)
	if hang {
		f.hung++
	}
	return lost, executed, hang, way
}

func (f *remoteStore) end(checks []counter.Check) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range checks {
		if op := checks[i].Op; op == counter.OpTake || op == counter.OpUpTo {
			f.under[string(checks[i].Key)]--
		}
	}
}

func (f *remoteStore) book(checks []counter.Check, results []counter.Result) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range checks {
		switch checks[i].Op {
		case counter.OpTake, counter.OpUpTo:
			f.charged[string(checks[i].Key)] += results[i].Granted
		case counter.OpRefund:
			f.returned[string(checks[i].Key)] += results[i].Granted
		}
	}
}

// remoteStore.calls returns the number of calls that charged since it was last invoked, and the
// maximum number of concurrent calls for one counter.
func (f *remoteStore) calls() (calls, atOnce int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls, atOnce = f.asked, f.most
	f.asked, f.most = 0, 0
	return calls, atOnce
}

// remoteStore.readUsed returns the number of units of a counter that are charged and not refunded,
// and the number refunded.
func (f *remoteStore) readUsed(key string) (used, returned int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.charged[key] - f.returned[key], f.returned[key]
}

// remoteStore.set changes the network's behavior.
func (f *remoteStore) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// remoteStore.node returns the store of one process, over the remote store.
func (f *remoteStore) node(o Options) *Store {
	s, err := New(f, o)
	if err != nil {
		f.Fatal(err)
	}
	return s
}

// remoteStore.close closes a node and fails the test if that takes too long.
func (f *remoteStore) close(s *Store) {
	f.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		f.Errorf("Close: %v", err)
	}
	if n := s.Stats().InHand; n != 0 {
		f.Errorf("%d units are in hand after Close", n)
	}
}

// ledger records the admitted units of a test.
type ledger struct {
	mu                       sync.Mutex
	admitted                 map[string]int64 // units
	requests, denied, failed int
	slowest                  time.Duration
}

// ledger.ask makes one request and records it.
func (l *ledger) ask(s *Store, checks ...counter.Check) error {
	start, results := time.Now(), make([]counter.Result, len(checks))
	err := s.Take(context.Background(), checks, results)
	l.enter(time.Since(start), checks, results, err)
	return err
}

func (l *ledger) enter(took time.Duration, checks []counter.Check, results []counter.Result, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slowest = max(l.slowest, took)
	l.requests++
	switch {
	case err != nil:
		l.failed++
	case anyDenied(checks, results):
		l.denied++
	default:
		if l.admitted == nil {
			l.admitted = map[string]int64{}
		}
		for i := range checks {
			l.admitted[string(checks[i].Key)] += checks[i].Cost
		}
	}
}

func leasedOf(key string, l *counter.Limit, cost int64) counter.Check {
	c := takeOf(key, l, cost)
	c.Lease = true
	return c
}

func TestAThousandMissesAreTwoCalls(t *testing.T) {
	for _, text := range []string{"600/1h fixed_window", "600/1h", "600/1h burst 600"} {
		t.Run(text, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, l, books := newFar(t, time.Millisecond), limittest.New(t, text), &ledger{}
				s := f.node(Options{})
				var all sync.WaitGroup
				for range 1000 {
					all.Go(func() { _ = books.ask(s, leasedOf("a", l, 1)) })
				}
				all.Wait()
				if calls, atOnce := f.calls(); calls > 2 || atOnce != 1 {
					t.Errorf("%d calls, %d at once, want at most 2, one after the other", calls, atOnce)
				}
				if books.admitted["a"] != 600 || books.denied != 400 {
					t.Errorf("%d admitted and %d denied, want 600 and 400", books.admitted["a"], books.denied)
				}
				f.close(s)
			})
		})
	}
}

// strict is a remote store whose calls end at their deadline, as those of a real client do.
type strict struct{ *remoteStore }

func (s strict) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	ctx, cancel := context.WithTimeout(ctx, farTimeout)
	defer cancel()
	asked, answers, done := append([]counter.Check(nil), checks...), make([]counter.Result, len(results)), make(chan error, 1)
	go func() { done <- s.remoteStore.Take(context.Background(), asked, answers) }()
	select {
	case err := <-done:
		copy(results, answers)
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", counter.ErrUnavailable, ctx.Err())
	}
}

// TestAStoreThatIsFarAway: a store is slow, or becomes slow, but answers in time. Requests can be
// late only until the delay has been measured. No request takes units for others and then gives up,
// because the units would be lost.
func TestAStoreThatIsFarAway(t *testing.T) {
	for _, before := range []time.Duration{time.Millisecond, 30 * time.Millisecond} {
		t.Run(before.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, books, l := newFar(t, before), &ledger{}, limittest.New(t, "1000000/1h")
				s, err := New(strict{f}, Options{})
				if err != nil {
					t.Fatal(err)
				}
				var all sync.WaitGroup
				for i := range 4000 {
					if i == 1000 {
						f.set(func() { f.rtt = 40 * time.Millisecond })
					}
					for range 1 + i%2*3 {
						all.Go(func() { _ = books.ask(s, leasedOf("a", l, 1)) })
					}
					time.Sleep(500 * time.Microsecond)
				}
				all.Wait()
				time.Sleep(time.Second) // the test waits until all abandoned calls have ended
				f.close(s)
				used, _ := f.readUsed("a")
				if books.failed > 300 || books.denied > 0 {
					t.Errorf("%d of %d requests failed, %d were denied", books.failed, books.requests, books.denied)
				}
				if lost := used - books.admitted["a"]; lost > 1000 {
					t.Errorf("%d units are lost, %d were admitted", lost, books.admitted["a"])
				}
			})
		})
	}
}
