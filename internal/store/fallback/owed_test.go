// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/seed"
)

// TestTheStoreIsChargedOnce: after an outage, the first request charges the admitted units once,
// and the limit is not exceeded across the outage.
func TestTheStoreIsChargedOnce(t *testing.T) {
	w := newWorld(t, 1)
	w.options.Known = w.used
	check := limited(t, "x", 10, 1, counter.OnErrorAllow)
	admitted := w.admits(t, 3, check)
	for range 3 { // three outages
		w.inner.err = errAway
		admitted += w.admits(t, 2, check)
		w.inner.err = nil
		admitted += w.admits(t, 1, check)
	}
	admitted += w.admits(t, 20, check)
	if admitted != 10 || w.owed.count.Load() != 0 {
		t.Errorf("%d admitted, %d counters owe", admitted, w.owed.count.Load())
	}
}

// TestNothingIsChargedTwice: a request is charged at most once, although a failed call might have
// been executed. A call that was certainly not executed is charged after the outage.
func TestNothingIsChargedTwice(t *testing.T) {
	random := seed.Random(t)
	for range 200 {
		w := newWorld(t, 1)
		lossy := &lossy{Store: w.inner.Store}
		w.Store = New(lossy, Options{Counts: NewCounts(w.local)})
		const limit = 1000
		check, admitted := limited(t, "x", limit, 1, counter.OnErrorAllow), 0
		for range random.IntN(60) {
			lossy.fails = random.IntN(4)
			admitted += w.admits(t, 1+random.IntN(3), check)
		}
		lossy.fails = 0
		admitted += w.admits(t, 1, check)
		if used := int(w.used(&check)); used > admitted || used < admitted-lossy.lost {
			t.Fatalf("%d requests were let through, %d calls were lost: %d units are charged", admitted, lossy.lost, used)
		}
		if n := w.owed.count.Load(); n != 0 {
			t.Fatalf("%d counters owe", n)
		}
	}
}

// lossy is a store whose calls fail at a chosen point.
type lossy struct {
	counter.Store
	// the point of the failure: 0 for no failure, 1 before the call is sent, 2 after it is sent and
	// before it is executed, 3 after it is executed.
	fails int
	lost  int // units of calls that were sent and not executed
}

func (l *lossy) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	switch l.fails {
	case 1:
		return errAway
	case 2:
		l.lost += int(checks[0].Cost)
		return errLost
	case 3:
		if err := l.Store.Take(ctx, checks, results); err != nil {
			return err
		}
		return errLost
	}
	return l.Store.Take(ctx, checks, results)
}

// world.used returns the number of units of a counter that the inner store has counted.
func (w *world) used(c *counter.Check) int64 {
	look, result := *c, make([]counter.Result, 1)
	look.Op, look.Cost = counter.OpLook, 0
	if err := w.inner.Store.Take(context.Background(), []counter.Check{look}, result); err != nil {
		panic(err)
	}
	return c.Limit.Capacity() - result[0].Remaining
}

// TestEndedWindowsAreNotCharged: units of a window that has ended are not charged to the next one.
func TestEndedWindowsAreNotCharged(t *testing.T) {
	w := newWorld(t, 1)
	now := time.Now()
	w.options.Now = func() time.Time { return now }
	w.inner.err = errAway
	w.admits(t, 10, limited(t, "x", 10, 1, counter.OnErrorAllow))
	w.inner.err, now = nil, now.Add(32*24*time.Hour)
	if got := w.admits(t, 20, limited(t, "x", 10, 1, counter.OnErrorAllow)); got != 10 {
		t.Errorf("%d admitted in the next window", got)
	}
}

// TestOwedIsBounded: beyond OwedMax counters, a new debt displaces a debt whose window has ended,
// or else a small debt. Debts of made-up clients displace each other. They do not displace the debt
// of a client that owes many units, or that sends requests meanwhile.
func TestOwedIsBounded(t *testing.T) {
	w := newWorld(t, 1)
	o, now := &w.owed, time.Now()
	month := due{units: 1, until: now.Add(31 * 24 * time.Hour)}
	invent := func(from, n int, u due) {
		for i := range n {
			if !w.addDebt(fmt.Append(nil, from+i), now, u) {
				t.Fatalf("no room for debt %d", from+i)
			}
		}
	}
	big := month
	big.units = 50
	for i := range 100 {
		w.addDebt(fmt.Append(nil, "client ", i), now, big)
	}
	invent(0, OwedMax+1000, month)
	w.addDebt([]byte("a newcomer"), now, big)
	invent(OwedMax+1000, OwedMax, month)
	if count, kept := o.count.Load(), o.kept.Load(); count != OwedMax || kept != OwedMax {
		t.Errorf("%d debts, %d entries", count, kept)
	}
	for i := range 100 {
		if n := o.uncharged(fmt.Append(nil, "client ", i)); n != 50 {
			t.Errorf("client %d owes %d units, want 50", i, n)
		}
	}
	if n := o.uncharged([]byte("a newcomer")); n != 50 {
		t.Errorf("the newcomer owes %d units, want 50", n)
	}
	now = now.Add(32 * 24 * time.Hour)
	w.addDebt([]byte("another"), now, due{units: 1, until: now.Add(time.Hour)})
	if got := o.count.Load(); got >= OwedMax {
		t.Errorf("%d counters, and none of those that are over was dropped", got)
	}
}

// TestDisplacedUnitsAreInDoubt: units whose debt was displaced still count in the tally of this
// process.
func TestDisplacedUnitsAreInDoubt(t *testing.T) {
	w := newWorld(t, 1)
	check := limited(t, "x", 10, 1, counter.OnErrorAllow)
	w.inner.err = errAway
	w.admits(t, 3, check)
	w.owed.kept.Store(OwedMax)
	other := []byte("0")
	for i := 1; w.owed.shard(other) != w.owed.shard(check.Key); i++ {
		other = fmt.Append(nil, i)
	}
	now := time.Now()
	if !w.addDebt(other, now, due{units: 1, until: now.Add(time.Hour)}) || w.owed.uncharged(check.Key) != 0 {
		t.Fatalf("%d units are still owed", w.owed.uncharged(check.Key))
	}
	if tally, found := w.findTally(&check); !found || tally.doubt != 3 {
		t.Errorf("%+v, %v: want the 3 units in doubt", tally, found)
	}
}

// TestManyTellTheStore: many concurrent requests use a store that fails one call in four. The
// admitted requests are at most twice the limit, and no debt is counted twice.
func TestManyTellTheStore(t *testing.T) {
	w := newWorld(t, 1)
	flaky := &unsteady{Store: w.inner.Store}
	w.Store = New(flaky, Options{Counts: NewCounts(w.local)})
	var admitted atomic.Int64
	var running sync.WaitGroup
	for range 32 {
		running.Go(func() {
			check, results := []counter.Check{limited(t, "x", 500, 1, counter.OnErrorAllow)}, make([]counter.Result, 1)
			for range 200 {
				if err := w.Take(context.Background(), check, results); err == nil && !results[0].Denied {
					admitted.Add(1)
				}
			}
		})
	}
	running.Wait()
	// The bound is loose, because the store and this process decide requests at the same time.
	if got := admitted.Load(); got > 2*500 {
		t.Errorf("%d admitted of 500", got)
	}
	if w.owed.count.Load() > 1 {
		t.Errorf("%d counters owe", w.owed.count.Load())
	}
}

// unsteady is a store that answers three out of four calls.
type unsteady struct {
	counter.Store
	calls atomic.Int64
}

func (u *unsteady) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	if u.calls.Add(1)%4 == 0 {
		return errAway
	}
	return u.Store.Take(ctx, checks, results)
}

// batching is a store that answers batches, and counts how often it is called.
type batching struct {
	*shared
	calls int
}

func (b *batching) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	b.calls++
	return b.shared.Take(ctx, checks, results)
}

func (b *batching) TakeAll(ctx context.Context, calls []counter.Call) {
	b.calls++
	for i := range calls {
		calls[i].Err = b.shared.Take(ctx, calls[i].Checks, calls[i].Results)
	}
}

// TestDebtsAreChargedTogether: the debts of all requests of a batch are charged in one call of the
// store, each once, and stay owed if the store does not answer.
func TestDebtsAreChargedTogether(t *testing.T) {
	w := newWorld(t, 1)
	inner := &batching{shared: w.inner}
	w.Store = New(inner, Options{Counts: NewCounts(w.local)})
	const clients = 50
	var calls []counter.Call
	for i := range clients {
		check := limited(t, fmt.Sprint(i%(clients-1)), 10, 1, counter.OnErrorAllow) // the last client is the first one again
		calls = append(calls, counter.Call{Checks: []counter.Check{check}, Results: make([]counter.Result, 1)})
	}
	round := func(wantCalls, wantUsed, wantOwed int64) {
		t.Helper()
		inner.calls = 0
		w.TakeAll(context.Background(), calls)
		for i := range calls {
			if c := &calls[i]; c.Err != nil || c.Results[0].Denied {
				t.Fatalf("request %d: %+v, error %v", i, c.Results[0], c.Err)
			}
		}
		check := &calls[1].Checks[0]
		if used, owed := w.used(check), w.owed.uncharged(check.Key); int64(inner.calls) != wantCalls || used != wantUsed || owed != wantOwed {
			t.Errorf("%d calls, %d units are used and %d owed, want %d, %d and %d", inner.calls, used, owed, wantCalls, wantUsed, wantOwed)
		}
	}
	w.inner.err = errAway
	round(1, 0, 1)
	round(2, 0, 2)
	w.inner.err = nil
	round(2, 3, 0)
	round(1, 4, 0)
	if used := w.used(&calls[0].Checks[0]); used != 8 {
		t.Errorf("a client with two requests in each batch has used %d units, want 8", used)
	}
}

// TestADebtDelaysOnlyItsCounter: while a counter has a debt, requests for other counters are still
// answered at once.
func TestADebtDelaysOnlyItsCounter(t *testing.T) {
	w := newWorld(t, 1)
	w.options.AtOnce = func([]counter.Check, []counter.Result) bool { return true }
	owing, other := limited(t, "x", 10, 1, counter.OnErrorAllow), limited(t, "y", 10, 1, counter.OnErrorAllow)
	atOnce := func(c counter.Check) bool { return w.TakeNow([]counter.Check{c}, make([]counter.Result, 1)) }
	w.inner.err = errAway
	w.admits(t, 1, owing)
	if w.inner.err = nil; atOnce(owing) || !atOnce(other) {
		t.Errorf("at once: %v with a debt, %v without", atOnce(owing), atOnce(other))
	}
	if w.admits(t, 1, owing); !atOnce(owing) {
		t.Error("not at once although the debt is charged")
	}
}

// chargingStore is a store whose charges of debts wait until the channel released is closed.
type chargingStore struct {
	*shared
	released chan struct{}
}

func (s *chargingStore) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	if checks[0].Op == counter.OpForce {
		<-s.released
	}
	return s.shared.Take(ctx, checks, results)
}

// TestTheWaitForADebtEndsWithTheContext: a request that waits while another one charges the
// counter's debt waits only until its context ends. Then the request fails with the error of an
// overload, and is not charged.
func TestTheWaitForADebtEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		inner := &chargingStore{shared: w.inner, released: make(chan struct{})}
		w.Store = New(inner, Options{Counts: NewCounts(w.local)})
		check := limited(t, "x", 10, 1, counter.OnErrorAllow)
		w.inner.err = errAway
		w.admits(t, 1, check)
		w.inner.err = nil
		first := make(chan error)
		go func() {
			first <- w.Take(context.Background(), []counter.Check{check}, make([]counter.Result, 1))
		}()
		synctest.Wait()
		const patience = 50 * time.Millisecond
		calls := []counter.Call{{Checks: []counter.Check{check}, Results: make([]counter.Result, 1)}}
		for _, take := range []func(context.Context) error{
			func(ctx context.Context) error { return w.Take(ctx, calls[0].Checks, calls[0].Results) },
			func(ctx context.Context) error { w.TakeAll(ctx, calls); return calls[0].Err },
		} {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			begun := time.Now()
			if err := take(ctx); !errors.Is(err, counter.ErrOverloaded) || errors.Is(err, counter.ErrUnavailable) || time.Since(begun) != patience {
				t.Errorf("after %v: %v", time.Since(begun), err)
			}
			cancel()
		}
		close(inner.released)
		if err := <-first; err != nil || w.used(&check) != 2 {
			t.Errorf("%d units are used, error %v", w.used(&check), err)
		}
	})
}
