// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/memstore"
)

// noon is an instant at the start of windows of every length the tests use.
const noon core.Micros = 1_700_049_600 * core.Second

// rig is a store over one in memory that others may use too, and the two clocks: this process's and the inner store's.
type rig struct {
	*Store
	testing.TB
	inner *between
	clock atomic.Int64 // since noon
}

// between is what the store asks: the inner store, with what a test does to it.
type between struct {
	of    core.Store
	calls atomic.Int64
	mu    sync.Mutex
	// take answers in place of the inner store if it is not nil.
	take func(ctx context.Context, checks []core.Check, results []core.Result) error
}

func (b *between) Take(ctx context.Context, checks []core.Check, results []core.Result) error {
	b.calls.Add(1)
	b.mu.Lock()
	take := b.take
	b.mu.Unlock()
	if take == nil {
		take = b.of.Take
	}
	return take(ctx, checks, results)
}

// instead has calls answered by take from now on, or by the inner store for nil.
func (b *between) instead(take func(ctx context.Context, checks []core.Check, results []core.Result) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.take = take
}

func open(t testing.TB, o Options) *rig {
	t.Helper()
	p := &rig{TB: t}
	kept, err := memstore.New(memstore.Options{Now: func() core.Micros { return noon + core.Micros(p.clock.Load()) }})
	if err != nil {
		t.Fatal(err)
	}
	p.inner = &between{of: kept}
	if o.Now == nil {
		o.Now = func() core.Micros { return 1 + core.Micros(p.clock.Load()) }
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

// after sets both clocks to a span after noon.
func (p *rig) after(span core.Micros) { p.clock.Store(int64(span)) }

// ask answers checks and fails the test if the store cannot.
func (p *rig) ask(checks ...core.Check) []core.Result {
	p.Helper()
	results := make([]core.Result, len(checks))
	for i := range results {
		results[i] = core.Result{At: 1, Granted: 2, Receipt: 3, Overflow: true, Violations: 4} // what was there must be gone
	}
	if err := p.Take(context.Background(), checks, results); err != nil {
		p.Fatal(err)
	}
	return results
}

// calls fails the test if the inner store was not called so often since the last time.
func (p *rig) calls(want int64, why string) {
	p.Helper()
	if got := p.inner.calls.Swap(0); got != want {
		p.Errorf("%s: %d calls of the store beneath, want %d", why, got, want)
	}
}

func limitOf(t testing.TB, text string) *core.Limit {
	t.Helper()
	l, err := core.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	return &l
}

func takeOf(key string, l *core.Limit, cost int64) core.Check {
	return core.Check{Key: []byte(key), Limit: l, Cost: cost}
}

// exhaust uses a counter up for as long as its limit lasts.
func (p *rig) exhaust(key string, l *core.Limit) {
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
	p, l := open(t, Options{}), limitOf(t, "10/1m fixed_window")
	r := p.ask(takeOf("a", l, 4))
	back := takeOf("a", l, 3)
	back.Op, back.Receipt = core.OpGiveBack, r[0].Receipt
	look := takeOf("a", l, 1)
	look.Op = core.OpLook
	if p.ask(back)[0].Granted != 3 || p.ask(look)[0].Remaining != 9 {
		t.Error("what was charged did not come back")
	}
	p.calls(3, "three calls")
	if err := p.Take(context.Background(), []core.Check{takeOf("a", l, -1)}, make([]core.Result, 1)); err == nil {
		t.Error("a negative cost is accepted")
	}
	p.calls(0, "a call that is invalid")
}

func TestTakeAll(t *testing.T) {
	p, l := open(t, Options{}), limitOf(t, "2/1m fixed_window")
	p.exhaust("full", l)
	p.ask(takeOf("full", l, 1))
	p.calls(1, "the refusal")
	var calls []core.Call
	for _, key := range []string{"full", "a", "full", "b", ""} {
		calls = append(calls, core.Call{Checks: []core.Check{takeOf(key, l, 1)}, Results: make([]core.Result, 1),
			Err: fmt.Errorf("of the last time")})
	}
	p.TakeAll(context.Background(), calls)
	p.calls(2, "two of five are to be asked")
	for i, refused := range []bool{true, false, true, false} {
		r := calls[i].Results[0]
		if calls[i].Err != nil || r.Refused != refused || r.Granted == 0 != refused {
			t.Errorf("call %d: %+v and %v, want refused: %v", i, r, calls[i].Err, refused)
		}
	}
	if calls[4].Err == nil {
		t.Error("an empty key is accepted")
	}
	if got := p.Stats(); got.Calls != 4 || got.Refusals != 2 {
		t.Errorf("%+v, want 4 calls and 2 refusals", got)
	}
}
