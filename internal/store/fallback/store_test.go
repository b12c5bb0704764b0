// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/test/racescale"
)

// shared is a shared store that a test can make unavailable.
type shared struct {
	counter.Store
	err error
}

func (s *shared) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	if s.err != nil {
		return s.err
	}
	return s.Store.Take(ctx, checks, results)
}

// notExecuted is the error of a call that the store has certainly not executed.
type notExecuted struct{ error }

func (e notExecuted) Unwrap() error { return e.error }
func (notExecuted) Unsent() bool    { return true }

var (
	errLost = fmt.Errorf("a reason: %w", counter.ErrUnavailable) // the call might have been executed
	errAway = fmt.Errorf("a reason: %w", notExecuted{counter.ErrUnavailable})
)

// world is a Store under test, with the shared store that can fail and the local store that takes
// its place.
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
	w.Store = New(w.inner, Options{Counts: NewCounts(w.local), Nodes: func() int { return w.nodes },
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

// limited returns a check of a limit with a window of 31 days.
func limited(t *testing.T, key string, count, cost int64, word counter.OnError) counter.Check {
	t.Helper()
	l, err := counter.NewLimit(counter.FixedWindow, count, 31*24*counter.Hour, 0)
	if err != nil {
		t.Fatal(err)
	}
	return counter.Check{Key: []byte("rl1:a:r:{" + key + "}:1m:fw"), Limit: &l, Op: counter.OpTake, Cost: cost, OnError: word}
}

// world.admits makes the given number of calls, and returns how many of them are admitted.
func (w *world) admits(t *testing.T, calls int, checks ...counter.Check) (admitted int) {
	t.Helper()
	results := make([]counter.Result, len(checks))
	for range calls {
		if err := w.Take(context.Background(), checks, results); err != nil {
			t.Fatal(err)
		}
		refused := false
		for i := range results {
			refused = refused || results[i].Denied && !checks[i].Shadow
		}
		if !refused {
			admitted++
		}
	}
	return admitted
}

// TestShares: while the store does not answer, a node admits its share: the limit divided by the
// number of nodes, but at least one request if its cost fits into the limit.
func TestShares(t *testing.T) {
	for _, c := range []struct {
		count, cost int64
		nodes, want int
	}{
		{100, 1, 1, 100}, {100, 1, 0, 100}, {100, 1, -4, 100}, {100, 1, 3, 33}, {100, 3, 3, 11}, {100, 7, 1, 14}, {2, 1, 5, 1},
		{100, 100, 5, 1}, {100, 101, 1, 0}, {100, 1, 1 << 40, 1}, {counter.CountMax, counter.CountMax, NodesMax + 1, 1},
	} {
		w := newWorld(t, c.nodes)
		w.inner.err = errAway
		if got := w.admits(t, 150, limited(t, "x", c.count, c.cost, counter.OnErrorLocal)); got != c.want {
			t.Errorf("%+v: %d admitted", c, got)
		}
		if len(w.failed) != 150 || !errors.Is(w.failed[0], counter.ErrUnavailable) {
			t.Errorf("%d failures told of", len(w.failed))
		}
	}
}

// TestSharesOfShards: the share is taken from the whole limit and from each shard, whichever shards
// the requests use.
func TestSharesOfShards(t *testing.T) {
	for nodes, want := range map[int]int{1: 64, 2: 32, 3: 16, 100: 1} {
		w := newWorld(t, nodes)
		w.inner.err = errAway
		whole, admitted := limited(t, "x", 64, 1, counter.OnErrorLocal), 0
		for turn := range 150 {
			part := limited(t, fmt.Sprintf("~%d:x", turn%16), 4, 1, counter.OnErrorLocal)
			part.UnshardedLimit = whole.Limit
			admitted += w.admits(t, 1, part, limited(t, "y", 1000, 1, counter.OnErrorLocal))
		}
		if admitted != want {
			t.Errorf("%d nodes: %d admitted, want %d", nodes, admitted, want)
		}
	}
}

// TestSharesOfSomeShards: while the store still counts most shards, this process admits in each
// other shard no more than the units of that shard. So the store and this process together admit
// exactly the limit.
func TestSharesOfSomeShards(t *testing.T) {
	w := newWorld(t, 1)
	whole, admitted := limited(t, "x", 64, 1, counter.OnErrorLocal), 0
	for turn := range 320 {
		shard := turn % 16
		if w.inner.err = nil; shard%3 == 0 {
			w.inner.err = errAway
		}
		part := limited(t, fmt.Sprintf("~%d:x", shard), 4, 1, counter.OnErrorLocal)
		part.UnshardedLimit = whole.Limit
		admitted += w.admits(t, 1, part)
	}
	if admitted != 64 {
		t.Errorf("%d admitted of 64", admitted)
	}
}

// TestStoreComesFirst: while the store answers, nothing is counted in memory. When the store
// answers again after an outage, the units that were admitted during the outage are charged to it
// before it decides.
func TestStoreComesFirst(t *testing.T) {
	w := newWorld(t, 1)
	check := limited(t, "x", 10, 1, counter.OnErrorLocal)
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

// TestPreparedOnce: Prepare is called before the first call that has a check with on_error: local,
// and is not called again.
func TestPreparedOnce(t *testing.T) {
	w, prepared := newWorld(t, 1), 0
	w.options.Prepare = func() { prepared++ }
	w.admits(t, 3, limited(t, "a", 10, 1, counter.OnErrorAllow), limited(t, "d", 10, 1, counter.OnErrorDeny))
	if prepared != 0 {
		t.Error("made ready for nobody")
	}
	for range 2 {
		w.TakeAll(context.Background(), []counter.Call{{Checks: []counter.Check{limited(t, "l", 10, 1, counter.OnErrorLocal)},
			Results: make([]counter.Result, 1)}})
		w.admits(t, 3, limited(t, "l", 10, 1, counter.OnErrorLocal))
	}
	if prepared != 1 {
		t.Errorf("made ready %d times", prepared)
	}
}

// TestStricterWords: a rule with on_error: deny makes the call fail. A log_only rule does not.
func TestStricterWords(t *testing.T) {
	w := newWorld(t, 1)
	w.inner.err = errAway
	local, results := limited(t, "l", 1, 1, counter.OnErrorLocal), make([]counter.Result, 2)
	with := func(other counter.Check) error {
		return w.Take(context.Background(), []counter.Check{local, other}, results)
	}
	// Only a log_only rule has OnErrorInherit here.
	shadow := limited(t, "s", 1, 1, counter.OnErrorInherit)
	shadow.Shadow = true
	if err := with(limited(t, "d", 1, 1, counter.OnErrorDeny)); !errors.Is(err, counter.ErrUnavailable) {
		t.Errorf("beside a rule with deny: %v", err)
	}
	if err := with(limited(t, "a", 1, 1, counter.OnErrorAllow)); err != nil || results[0].Denied || results[1].Denied {
		t.Errorf("beside a rule with allow: %v, %+v", err, results)
	}
	if err := with(shadow); err != nil || !results[0].Denied || results[1].Denied {
		t.Errorf("the share is used up: %v, %+v", err, results)
	}
	// A rule with several limits and quota: each check has the on_error of the rule.
	quota := limited(t, "q", 1, 1, counter.OnErrorDeny)
	quota.Shadow = true
	if err := with(quota); !errors.Is(err, counter.ErrUnavailable) {
		t.Errorf("beside one of several with deny: %v", err)
	}
	quota.OnError = counter.OnErrorLocal
	for _, refused := range []bool{false, true} {
		err := w.Take(context.Background(), []counter.Check{quota}, results[:1])
		if err != nil || results[0].Denied != refused || !results[0].Local {
			t.Errorf("one of several with local: %v, %+v, want refused %t", err, results[0], refused)
		}
	}
	for i, word := range []counter.OnError{counter.OnErrorInherit, counter.OnErrorDeny} {
		check := limited(t, "o", 1, 1, word)
		if err := w.Take(context.Background(), []counter.Check{check}, results[:1]); !errors.Is(err, counter.ErrUnavailable) {
			t.Errorf("%d: without a rule that says so: %v", i, err)
		}
	}
}

// TestRefundsHaveNoFallback: refunds and forced charges fail if the store fails, and a call that
// the store rejects as invalid fails with the store's error.
func TestRefundsHaveNoFallback(t *testing.T) {
	w := newWorld(t, 1)
	w.inner.err = errAway
	for _, op := range []counter.Op{counter.OpLook, counter.OpRefund, counter.OpForce, counter.OpReset} {
		check := limited(t, "x", 10, 1, counter.OnErrorLocal)
		check.Op, check.Min, check.Max = op, 1, 1
		if err := w.Take(context.Background(), []counter.Check{check}, make([]counter.Result, 1)); !errors.Is(err, counter.ErrUnavailable) {
			t.Errorf("op %d: %v", op, err)
		}
	}
	w.inner.err = fmt.Errorf("wrong: %w", counter.ErrInvalid)
	check := limited(t, "x", 10, 1, counter.OnErrorLocal)
	if err := w.Take(context.Background(), []counter.Check{check}, make([]counter.Result, 1)); !errors.Is(err, counter.ErrInvalid) {
		t.Error(err)
	}
	if w.local.Len() != 0 || len(w.failed) != 0 {
		t.Errorf("%d counters in memory, %d failures", w.local.Len(), len(w.failed))
	}
}

// TestNothingInAdvance: a check that requests more units than it needs takes only the units it
// needs from the share.
func TestNothingInAdvance(t *testing.T) {
	w := newWorld(t, 2)
	w.inner.err = errAway
	check := limited(t, "x", 100, 7, counter.OnErrorLocal)
	check.Op, check.Min, check.Max, check.ShareMille, check.Age = counter.OpUpTo, 5, 60, 1000, counter.Second
	if got := w.admits(t, 20, check); got != 10 {
		t.Errorf("%d calls for five units are admitted, want the ten of this node's share", got)
	}
}

// TestAProbeTakesNothing: a check that only reads the counter does not change the share.
func TestAProbeTakesNothing(t *testing.T) {
	w := newWorld(t, 2)
	w.inner.err = errAway
	probe, take := limited(t, "x", 11, 0, counter.OnErrorLocal), limited(t, "x", 11, 1, counter.OnErrorLocal)
	probe.Op, probe.Min = counter.OpUpTo, 1
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

// TestAnswersSayThatTheyAreLocal: the results have no numbers and no receipt, and each call of a
// batch gets its result.
func TestAnswersSayThatTheyAreLocal(t *testing.T) {
	w := newWorld(t, 1)
	w.inner.err = errAway
	calls := make([]counter.Call, 3)
	for i, word := range []counter.OnError{counter.OnErrorLocal, counter.OnErrorDeny, counter.OnErrorLocal} {
		calls[i] = counter.Call{Checks: []counter.Check{limited(t, "x", 1, 1, word)}, Results: make([]counter.Result, 1)}
	}
	w.TakeAll(context.Background(), calls)
	if calls[0].Err != nil || calls[1].Err == nil || calls[2].Err != nil {
		t.Fatal(calls[0].Err, calls[1].Err, calls[2].Err)
	}
	first, second := calls[0].Results[0], calls[2].Results[0]
	if diff := cmp.Diff(counter.Result{At: first.At, Local: true}, first); diff != "" || first.At == 0 {
		t.Error(diff)
	}
	if !second.Denied || second.Wait <= 0 || !second.Local {
		t.Errorf("%+v", second)
	}
}

// TestPenaltiesStand: violations and penalties are counted in memory only under on_error: local.
func TestPenaltiesStand(t *testing.T) {
	for word, want := range map[counter.OnError]bool{counter.OnErrorLocal: true, counter.OnErrorAllow: false} {
		w := newWorld(t, 1)
		w.inner.err = errAway
		penalty := counter.Check{Key: []byte("rl1:a:~penalty:{x}"), Op: counter.OpTake, OnError: word,
			Penalty: &counter.Penalty{Window: counter.Hour, Threshold: 1, Multipliers: []int64{2}, Max: counter.Hour}}
		limit := limited(t, "x", 1, 1, counter.OnErrorLocal)
		limit.Guard, limit.Violation = 1, 7
		results := make([]counter.Result, 2)
		for range 3 {
			if err := w.Take(context.Background(), []counter.Check{penalty, limit}, results); err != nil {
				t.Fatal(err)
			}
		}
		if results[0].Denied != want || !results[1].Denied {
			t.Errorf("%d: %+v", word, results)
		}
	}
}

// TestStandingInAllocatesNothing: the fallback does not allocate, whether the store answers or not.
func TestStandingInAllocatesNothing(t *testing.T) {
	w := newWorld(t, 2)
	w.options.Failed = nil
	checks, results := []counter.Check{limited(t, "x", counter.CountMax, 1, counter.OnErrorLocal)}, make([]counter.Result, 1)
	most := 0.0
	if racescale.Fewer(1000) < 1000 {
		most = 8 // the race detector empties pools
	}
	for _, w.inner.err = range []error{nil, errAway} {
		if n := testing.AllocsPerRun(100, func() { _ = w.Take(context.Background(), checks, results) }); n > most {
			t.Errorf("%v: %v allocations", w.inner.err, n)
		}
	}
}

// TestAllowIsBounded: under on_error: allow a process admits the whole limit in each window,
// whatever the number of nodes.
func TestAllowIsBounded(t *testing.T) {
	w := newWorld(t, 5)
	w.inner.err = errAway
	for _, key := range []string{"x", "y"} {
		if got := w.admits(t, 500, limited(t, key, 100, 1, counter.OnErrorAllow)); got != 100 {
			t.Errorf("%s: %d admitted", key, got)
		}
	}
	two := []counter.Check{limited(t, "a", 7, 1, counter.OnErrorAllow), limited(t, "b", 100, 3, counter.OnErrorAllow)}
	if got := w.admits(t, 50, two...); got != 7 {
		t.Errorf("%d admitted under two limits, want what the smaller one lets through", got)
	}
	if got := w.admits(t, 50, two[1]); got != 26 {
		t.Errorf("%d admitted, want what is left of the larger one", got)
	}
}

// TestRecentAnswersOfTheStoreCount: units that the store has reported as used are not admitted
// again.
func TestRecentAnswersOfTheStoreCount(t *testing.T) {
	w, used := newWorld(t, 1), int64(60)
	w.options.Known = func(*counter.Check) int64 { return used }
	w.inner.err = errAway
	if got := w.admits(t, 30, limited(t, "x", 100, 1, counter.OnErrorAllow)); got != 30 {
		t.Errorf("%d admitted", got)
	}
	if got := w.admits(t, 30, limited(t, "x", 100, 1, counter.OnErrorAllow)); got != 10 {
		t.Errorf("%d admitted, want what is left", got)
	}
}

// TestStoresWithTheSameCountsAdmitALimitOnce: two stores with the same Counts together admit no
// more than the limit, and each charges what the other owes.
func TestStoresWithTheSameCountsAdmitALimitOnce(t *testing.T) {
	w := newWorld(t, 1)
	other := &world{inner: w.inner, Store: New(w.inner, Options{Counts: w.Counts})}
	check := limited(t, "x", 100, 1, counter.OnErrorAllow)
	for n, err := range []error{errLost, errAway} {
		w.inner.err = err
		if got := w.admits(t, 10, check) + other.admits(t, 10, check); got != 20 {
			t.Errorf("%d: %d admitted of 20", n, got)
		}
	}
	w.inner.err = nil
	if got := other.admits(t, 1, check); got != 1 || w.used(&check) != 21 || w.owed.count.Load() != 0 {
		t.Errorf("%d admitted of 1, %d charged, want 20 that were owed and 1; %d counters owe units", got, w.used(&check), w.owed.count.Load())
	}
	if got := w.admits(t, 100, check); got != 59 { // the 20 units whose outcome is unknown count as used
		t.Errorf("%d more are admitted, want 59", got)
	}
}
