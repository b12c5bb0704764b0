// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/test/limittest"
)

// noon is an instant at which windows of every length in the tests begin.
const noon counter.Micros = 1_700_049_600 * counter.Second

// rig is a store over an inner store in memory, with two clocks: this process's and the inner
// store's.
type rig struct {
	*Store
	testing.TB
	inner *between
	clock atomic.Int64 // the time since noon, on both clocks
}

// between is the inner store of a rig. A test can intervene in its calls.
type between struct {
	of    counter.Store
	calls atomic.Int64
	mu    sync.Mutex
	// take answers in place of the inner store if it is not nil.
	take func(ctx context.Context, checks []counter.Check, results []counter.Result) error
}

func (b *between) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	b.calls.Add(1)
	b.mu.Lock()
	take := b.take
	b.mu.Unlock()
	if take == nil {
		take = b.of.Take
	}
	return take(ctx, checks, results)
}

// between.instead makes the given function answer all further calls. If the function is nil, the
// inner store answers again.
func (b *between) instead(take func(ctx context.Context, checks []counter.Check, results []counter.Result) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.take = take
}

func open(t testing.TB, o Options) *rig {
	t.Helper()
	p := &rig{TB: t}
	kept, err := memstore.New(memstore.Options{Now: func() counter.Micros { return noon + counter.Micros(p.clock.Load()) }})
	if err != nil {
		t.Fatal(err)
	}
	p.inner = &between{of: kept}
	if o.Reports == nil {
		o.Reports = NewReports(func() counter.Micros { return 1 + counter.Micros(p.clock.Load()) })
	}
	if o.Timeout == 0 {
		o.Timeout = patience
	}
	if p.Store, err = New(p.inner, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return p
}

// rig.setClocks sets both clocks to a span after noon.
func (p *rig) setClocks(span counter.Micros) { p.clock.Store(int64(span)) }

// rig.ask answers checks and fails the test if the store cannot answer.
func (p *rig) ask(checks ...counter.Check) []counter.Result {
	p.Helper()
	results := make([]counter.Result, len(checks))
	for i := range results {
		// previous contents must be overwritten
		results[i] = counter.Result{At: 1, Granted: 2, Receipt: 3, Overflow: true, Violations: 4}
	}
	if err := p.Take(context.Background(), checks, results); err != nil {
		p.Fatal(err)
	}
	return results
}

// rig.calls fails the test unless the inner store was called want times since the previous such
// check.
func (p *rig) calls(want int64, why string) {
	p.Helper()
	if got := p.inner.calls.Swap(0); got != want {
		p.Errorf("%s: %d calls of the store beneath, want %d", why, got, want)
	}
}

func takeOf(key string, l *counter.Limit, cost int64) counter.Check {
	return counter.Check{Key: []byte(key), Limit: l, Cost: cost}
}

// rig.exhaust uses up all units of a counter.
func (p *rig) exhaust(key string, l *counter.Limit) {
	p.Helper()
	p.ask(takeOf(key, l, l.Capacity()))
	p.calls(1, "a cost that passes")
}

func TestOptionsOutOfBounds(t *testing.T) {
	if _, err := New(&between{}, Options{DenialsMax: DenialsMaxBound + 1}); err == nil {
		t.Error("more denials than can be held are accepted")
	}
}

func TestCallsOfAnyKindPassThrough(t *testing.T) {
	p, l := open(t, Options{}), limittest.New(t, "10/1m fixed_window")
	r := p.ask(takeOf("a", l, 4))
	back := takeOf("a", l, 3)
	back.Op, back.Receipt = counter.OpRefund, r[0].Receipt
	look := takeOf("a", l, 1)
	look.Op = counter.OpLook
	if p.ask(back)[0].Granted != 3 || p.ask(look)[0].Remaining != 9 {
		t.Error("what was charged did not come back")
	}
	p.calls(3, "three calls")
	if err := p.Take(context.Background(), []counter.Check{takeOf("a", l, -1)}, make([]counter.Result, 1)); err == nil {
		t.Error("a negative cost is accepted")
	}
	p.calls(0, "a call that is invalid")
}

func TestTakeAll(t *testing.T) {
	p, l := open(t, Options{}), limittest.New(t, "2/1m fixed_window")
	p.exhaust("full", l)
	p.ask(takeOf("full", l, 1))
	p.calls(1, "the denial")
	var calls []counter.Call
	for _, key := range []string{"full", "a", "full", "b", ""} {
		calls = append(calls, counter.Call{Checks: []counter.Check{takeOf(key, l, 1)}, Results: make([]counter.Result, 1),
			Err: fmt.Errorf("of the last time")})
	}
	p.TakeAll(context.Background(), calls)
	p.calls(2, "two of five are to be asked")
	for i, refused := range []bool{true, false, true, false} {
		r := calls[i].Results[0]
		if calls[i].Err != nil || r.Denied != refused || r.Granted == 0 != refused {
			t.Errorf("call %d: %+v and %v, want refused: %v", i, r, calls[i].Err, refused)
		}
	}
	if calls[4].Err == nil {
		t.Error("an empty key is accepted")
	}
	if got := p.Stats(); got.Calls != 4 || got.Denials != 2 {
		t.Errorf("%+v, want 4 calls and 2 denials", got)
	}
}
