// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/memstore"
)

// shared is a store that may be away.
type shared struct {
	core.Store
	err error
}

func (s *shared) Take(ctx context.Context, checks []core.Check, results []core.Result) error {
	if s.err != nil {
		return s.err
	}
	return s.Store.Take(ctx, checks, results)
}

var errAway = fmt.Errorf("a reason: %w", core.ErrUnavailable)

// world is a store with what stands in for it.
type world struct {
	*Store
	inner  *shared
	local  *memstore.Store
	nodes  int
	failed []error
}

func newWorld(t *testing.T, nodes int) *world {
	t.Helper()
	w := &world{inner: &shared{Store: memory(t)}, local: memory(t), nodes: nodes}
	w.Store = New(w.inner, Options{Local: w.local, Nodes: func() int { return w.nodes },
		Failed: func(err error) { w.failed = append(w.failed, err) }})
	return w
}

func memory(t *testing.T) *memstore.Store {
	t.Helper()
	s, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // never fails
	return s
}

// limited is a check of a limit of so many in a month.
func limited(t *testing.T, key string, count, cost int64, word core.OnError) core.Check {
	t.Helper()
	l, err := core.NewLimit(core.FixedWindow, count, 31*24*core.Hour, 0)
	if err != nil {
		t.Fatal(err)
	}
	return core.Check{Key: []byte("rl1:a:r:{" + key + "}:1m:fw"), Limit: &l, Op: core.OpTake, Cost: cost, OnError: word}
}

// admits returns how many of so many calls are admitted.
func (w *world) admits(t *testing.T, calls int, checks ...core.Check) (admitted int) {
	t.Helper()
	results := make([]core.Result, len(checks))
	for range calls {
		if err := w.Take(context.Background(), checks, results); err != nil {
			t.Fatal(err)
		}
		refused := false
		for i := range results {
			refused = refused || results[i].Refused && !checks[i].Shadow
		}
		if !refused {
			admitted++
		}
	}
	return admitted
}

// TestShares: while the store is away a node lets its share through: the count over the nodes, and at least one request.
func TestShares(t *testing.T) {
	for _, c := range []struct {
		count, cost int64
		nodes, want int
	}{
		{100, 1, 1, 100}, {100, 1, 0, 100}, {100, 1, -4, 100}, {100, 1, 3, 33}, {100, 3, 3, 11}, {100, 7, 1, 14}, {2, 1, 5, 1},
		{100, 100, 5, 1}, {100, 101, 1, 0}, {100, 1, 1 << 40, 1}, {core.CountMax, core.CountMax, NodesMax + 1, 1},
	} {
		w := newWorld(t, c.nodes)
		w.inner.err = errAway
		if got := w.admits(t, 150, limited(t, "x", c.count, c.cost, core.OnErrorLocal)); got != c.want {
			t.Errorf("%+v: %d admitted", c, got)
		}
		if len(w.failed) != 150 || !errors.Is(w.failed[0], core.ErrUnavailable) {
			t.Errorf("%d failures told of", len(w.failed))
		}
	}
}

// TestSharesOfShards: the share is of the whole limit and of each shard, whichever of them the requests meet.
func TestSharesOfShards(t *testing.T) {
	for nodes, want := range map[int]int{1: 64, 2: 32, 3: 16, 100: 1} {
		w := newWorld(t, nodes)
		w.inner.err = errAway
		whole, admitted := limited(t, "x", 64, 1, core.OnErrorLocal), 0
		for turn := range 150 {
			part := limited(t, fmt.Sprintf("~%d:x", turn%16), 4, 1, core.OnErrorLocal)
			part.Whole = whole.Limit
			admitted += w.admits(t, 1, part, limited(t, "y", 1000, 1, core.OnErrorLocal))
		}
		if admitted != want {
			t.Errorf("%d nodes: %d admitted, want %d", nodes, admitted, want)
		}
	}
}

// TestSharesOfSomeShards: while the store counts most shards, the shares of the others are no more than their parts, so that all
// together let the limit through.
func TestSharesOfSomeShards(t *testing.T) {
	w := newWorld(t, 1)
	whole, admitted := limited(t, "x", 64, 1, core.OnErrorLocal), 0
	for turn := range 320 {
		shard := turn % 16
		if w.inner.err = nil; shard%3 == 0 {
			w.inner.err = errAway
		}
		part := limited(t, fmt.Sprintf("~%d:x", shard), 4, 1, core.OnErrorLocal)
		part.Whole = whole.Limit
		admitted += w.admits(t, 1, part)
	}
	if admitted != 64 {
		t.Errorf("%d admitted of 64", admitted)
	}
}

// TestStoreComesFirst: while the store answers, nothing is counted here; when it is back, it is told what
// was let through meanwhile before it decides.
func TestStoreComesFirst(t *testing.T) {
	w := newWorld(t, 1)
	check := limited(t, "x", 10, 1, core.OnErrorLocal)
	if got := w.admits(t, 7, check); got != 7 || w.local.Len() != 0 {
		t.Fatalf("%d admitted, %d counters in memory", got, w.local.Len())
	}
	w.inner.err = errAway
	if got := w.admits(t, 20, check); got != 10 {
		t.Errorf("%d admitted without the store, want the whole share", got)
	}
	w.inner.err = nil
	if got := w.admits(t, 20, check); got != 0 {
		t.Errorf("%d admitted when the store is back, of a limit that was used up without it", got)
	}
	if len(w.failed) != 20 {
		t.Errorf("%d failures told of, want 20", len(w.failed))
	}
}

// TestPreparedOnce: what may be needed is made ready at the first call that may need it, and not for others.
func TestPreparedOnce(t *testing.T) {
	w, prepared := newWorld(t, 1), 0
	w.options.Prepare = func() { prepared++ }
	w.admits(t, 3, limited(t, "a", 10, 1, core.OnErrorAllow), limited(t, "d", 10, 1, core.OnErrorDeny))
	if prepared != 0 {
		t.Error("made ready for nobody")
	}
	for range 2 {
		w.TakeAll(context.Background(), []core.Call{{Checks: []core.Check{limited(t, "l", 10, 1, core.OnErrorLocal)},
			Results: make([]core.Result, 1)}})
		w.admits(t, 3, limited(t, "l", 10, 1, core.OnErrorLocal))
	}
	if prepared != 1 {
		t.Errorf("made ready %d times", prepared)
	}
}

// TestStricterWords: a rule with deny makes the call fail; one that refuses nothing lets it pass.
func TestStricterWords(t *testing.T) {
	w := newWorld(t, 1)
	w.inner.err = errAway
	local, results := limited(t, "l", 1, 1, core.OnErrorLocal), make([]core.Result, 2)
	with := func(other core.Check) error {
		return w.Take(context.Background(), []core.Check{local, other}, results)
	}
	shadow := limited(t, "s", 1, 1, core.OnErrorInherit) // of a log_only rule, which has no other
	shadow.Shadow = true
	if err := with(limited(t, "d", 1, 1, core.OnErrorDeny)); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("beside a rule with deny: %v", err)
	}
	if err := with(limited(t, "a", 1, 1, core.OnErrorAllow)); err != nil || results[0].Refused || results[1].Refused {
		t.Errorf("beside a rule with allow: %v, %+v", err, results)
	}
	if err := with(shadow); err != nil || !results[0].Refused || results[1].Refused {
		t.Errorf("the share is used up: %v, %+v", err, results)
	}
	quota := limited(t, "q", 1, 1, core.OnErrorDeny) // one of several with quota, which has its rule's
	quota.Shadow = true
	if err := with(quota); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("beside one of several with deny: %v", err)
	}
	quota.OnError = core.OnErrorLocal
	for _, refused := range []bool{false, true} {
		err := w.Take(context.Background(), []core.Check{quota}, results[:1])
		if err != nil || results[0].Refused != refused || !results[0].Local {
			t.Errorf("one of several with local: %v, %+v, want refused %t", err, results[0], refused)
		}
	}
	for i, word := range []core.OnError{core.OnErrorInherit, core.OnErrorDeny} {
		check := limited(t, "o", 1, 1, word)
		if err := w.Take(context.Background(), []core.Check{check}, results[:1]); !errors.Is(err, core.ErrUnavailable) {
			t.Errorf("%d: without a rule that says so: %v", i, err)
		}
	}
}

// TestWhatIsNotStoodInFor: give-backs and records are of charges that the store made; a wrong call is the caller's.
func TestWhatIsNotStoodInFor(t *testing.T) {
	w := newWorld(t, 1)
	w.inner.err = errAway
	for _, op := range []core.Op{core.OpLook, core.OpGiveBack, core.OpForce, core.OpReset} {
		check := limited(t, "x", 10, 1, core.OnErrorLocal)
		check.Op, check.Min, check.Max = op, 1, 1
		if err := w.Take(context.Background(), []core.Check{check}, make([]core.Result, 1)); !errors.Is(err, core.ErrUnavailable) {
			t.Errorf("op %d: %v", op, err)
		}
	}
	w.inner.err = fmt.Errorf("wrong: %w", core.ErrInvalid)
	check := limited(t, "x", 10, 1, core.OnErrorLocal)
	if err := w.Take(context.Background(), []core.Check{check}, make([]core.Result, 1)); !errors.Is(err, core.ErrInvalid) {
		t.Error(err)
	}
	if w.local.Len() != 0 || len(w.failed) != 0 {
		t.Errorf("%d counters in memory, %d failures", w.local.Len(), len(w.failed))
	}
}

// TestNothingInAdvance: a check that would take more than it needs has what it needs of the share, and no more.
func TestNothingInAdvance(t *testing.T) {
	w := newWorld(t, 2)
	w.inner.err = errAway
	check := limited(t, "x", 100, 7, core.OnErrorLocal)
	check.Op, check.Min, check.Max, check.ShareMille, check.Age = core.OpUpTo, 5, 60, 1000, core.Second
	if got := w.admits(t, 20, check); got != 10 {
		t.Errorf("%d calls for five units are admitted, want the ten of this node's share", got)
	}
}

// TestAProbeTakesNothing: a check that asks whether there is a unit left, and takes none, leaves the share as it is.
func TestAProbeTakesNothing(t *testing.T) {
	w := newWorld(t, 2)
	w.inner.err = errAway
	probe, take := limited(t, "x", 11, 0, core.OnErrorLocal), limited(t, "x", 11, 1, core.OnErrorLocal)
	probe.Op, probe.Min = core.OpUpTo, 1
	if got := w.admits(t, 20, probe); got != 20 {
		t.Errorf("%d of 20 probes are admitted where nothing was taken", got)
	}
	if got := w.admits(t, 20, take); got != 5 {
		t.Errorf("%d calls are admitted after them, want the five of this node's share", got)
	}
	if got := w.admits(t, 3, probe); got != 0 {
		t.Errorf("%d of 3 probes are admitted where what is left is nobody's share", got)
	}
}

// TestAnswersSayThatTheyAreLocal: there are no numbers to show, no receipt to give back, and the calls of a batch are answered each.
func TestAnswersSayThatTheyAreLocal(t *testing.T) {
	w := newWorld(t, 1)
	w.inner.err = errAway
	calls := make([]core.Call, 3)
	for i, word := range []core.OnError{core.OnErrorLocal, core.OnErrorDeny, core.OnErrorLocal} {
		calls[i] = core.Call{Checks: []core.Check{limited(t, "x", 1, 1, word)}, Results: make([]core.Result, 1)}
	}
	w.TakeAll(context.Background(), calls)
	if calls[0].Err != nil || calls[1].Err == nil || calls[2].Err != nil {
		t.Fatal(calls[0].Err, calls[1].Err, calls[2].Err)
	}
	first, second := calls[0].Results[0], calls[2].Results[0]
	if diff := cmp.Diff(core.Result{At: first.At, Local: true}, first); diff != "" || first.At == 0 {
		t.Error(diff)
	}
	if !second.Refused || second.Wait <= 0 || !second.Local {
		t.Errorf("%+v", second)
	}
}

// TestPenaltiesStand: violations and penalties are counted here where the policy says local, and nowhere otherwise.
func TestPenaltiesStand(t *testing.T) {
	for word, want := range map[core.OnError]bool{core.OnErrorLocal: true, core.OnErrorAllow: false} {
		w := newWorld(t, 1)
		w.inner.err = errAway
		penalty := core.Check{Key: []byte("rl1:a:~penalty:{x}"), Op: core.OpTake, OnError: word,
			Penalty: &core.Penalty{Window: core.Hour, Threshold: 1, Multipliers: []int64{2}, Max: core.Hour}}
		limit := limited(t, "x", 1, 1, core.OnErrorLocal)
		limit.Guard, limit.Violation = 1, 7
		results := make([]core.Result, 2)
		for range 3 {
			if err := w.Take(context.Background(), []core.Check{penalty, limit}, results); err != nil {
				t.Fatal(err)
			}
		}
		if results[0].Refused != want || !results[1].Refused {
			t.Errorf("%d: %+v", word, results)
		}
	}
}

// TestStandingInAllocatesNothing, and neither does a store that answers.
func TestStandingInAllocatesNothing(t *testing.T) {
	w := newWorld(t, 2)
	w.options.Failed = nil
	checks, results := []core.Check{limited(t, "x", core.CountMax, 1, core.OnErrorLocal)}, make([]core.Result, 1)
	for _, w.inner.err = range []error{nil, errAway} {
		if n := testing.AllocsPerRun(100, func() { _ = w.Take(context.Background(), checks, results) }); n != 0 {
			t.Errorf("%v: %v allocations", w.inner.err, n)
		}
	}
}

// TestAllowIsBounded: under on_error: allow a process lets through the limit itself, whatever the number of
// nodes, of each counter and window.
func TestAllowIsBounded(t *testing.T) {
	w := newWorld(t, 5)
	w.inner.err = errAway
	for _, key := range []string{"x", "y"} {
		if got := w.admits(t, 500, limited(t, key, 100, 1, core.OnErrorAllow)); got != 100 {
			t.Errorf("%s: %d admitted", key, got)
		}
	}
	two := []core.Check{limited(t, "a", 7, 1, core.OnErrorAllow), limited(t, "b", 100, 3, core.OnErrorAllow)}
	if got := w.admits(t, 50, two...); got != 7 {
		t.Errorf("%d admitted under two limits, want what the smaller one lets through", got)
	}
	if got := w.admits(t, 50, two[1]); got != 26 {
		t.Errorf("%d admitted, want what is left of the larger one", got)
	}
}

// TestWhatTheStoreSaidLatelyCounts: what is known to be used is not let through a second time.
func TestWhatTheStoreSaidLatelyCounts(t *testing.T) {
	w, used := newWorld(t, 1), int64(60)
	w.options.Known = func(*core.Check) int64 { return used }
	w.inner.err = errAway
	if got := w.admits(t, 30, limited(t, "x", 100, 1, core.OnErrorAllow)); got != 30 {
		t.Errorf("%d admitted", got)
	}
	if got := w.admits(t, 30, limited(t, "x", 100, 1, core.OnErrorAllow)); got != 10 {
		t.Errorf("%d admitted, want what is left", got)
	}
}

// TestTheStoreIsToldOnce: when the store is back, the first request charges what was let through without
// it, once, and the limit holds over the outage.
func TestTheStoreIsToldOnce(t *testing.T) {
	w := newWorld(t, 1)
	w.options.Known = w.used
	check := limited(t, "x", 10, 1, core.OnErrorAllow)
	admitted := w.admits(t, 3, check)
	for range 3 { // outages
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

// used returns how many units of a counter the store beneath has counted.
func (w *world) used(c *core.Check) int64 {
	look, result := *c, make([]core.Result, 1)
	look.Op, look.Cost = core.OpLook, 0
	if err := w.inner.Store.Take(context.Background(), []core.Check{look}, result); err != nil {
		panic(err)
	}
	return c.Limit.Capacity() - result[0].Remaining
}

// TestWhatIsOverIsNotTold: units of a window that has ended are not charged to the next one.
func TestWhatIsOverIsNotTold(t *testing.T) {
	w := newWorld(t, 1)
	now := time.Now()
	w.options.Now = func() time.Time { return now }
	w.inner.err = errAway
	w.admits(t, 10, limited(t, "x", 10, 1, core.OnErrorAllow))
	w.inner.err, now = nil, now.Add(32*24*time.Hour)
	if got := w.admits(t, 20, limited(t, "x", 10, 1, core.OnErrorAllow)); got != 10 {
		t.Errorf("%d admitted in the next window", got)
	}
}

// TestOwedIsBounded: of more counters than OwedMax nothing is kept, until others are over.
func TestOwedIsBounded(t *testing.T) {
	var o owed
	o.seed = maphash.MakeSeed()
	now := time.Now()
	for i := range OwedMax + 1000 {
		o.add(fmt.Append(nil, i), 1, now, now.Add(time.Second))
	}
	if got := o.count.Load(); got != OwedMax {
		t.Errorf("%d counters", got)
	}
	o.add([]byte("a newcomer"), 1, now.Add(time.Minute), now.Add(time.Hour))
	if got := o.count.Load(); got >= OwedMax {
		t.Errorf("%d counters, and none of those that are over was dropped", got)
	}
}

// TestManyTellTheStore: however many requests find the store back at once, and whether it stays, the limit holds.
func TestManyTellTheStore(t *testing.T) {
	w := newWorld(t, 1)
	flaky := &unsteady{Store: w.inner.Store}
	w.Store = New(flaky, Options{Local: w.local})
	var admitted atomic.Int64
	var running sync.WaitGroup
	for range 32 {
		running.Go(func() {
			check, results := []core.Check{limited(t, "x", 500, 1, core.OnErrorAllow)}, make([]core.Result, 1)
			for range 200 {
				if err := w.Take(context.Background(), check, results); err == nil && !results[0].Refused {
					admitted.Add(1)
				}
			}
		})
	}
	running.Wait()
	// What is under way at the moment the store is back or goes is decided by one of them without the other.
	if got := admitted.Load(); got > 2*500 {
		t.Errorf("%d admitted of 500", got)
	}
	if w.owed.count.Load() > 1 {
		t.Errorf("%d counters owe", w.owed.count.Load())
	}
}

// unsteady is a store that answers three calls of four.
type unsteady struct {
	core.Store
	calls atomic.Int64
}

func (u *unsteady) Take(ctx context.Context, checks []core.Check, results []core.Result) error {
	if u.calls.Add(1)%4 == 0 {
		return errAway
	}
	return u.Store.Take(ctx, checks, results)
}
