// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/racescale"
)

func TestADenialIsRemembered(t *testing.T) {
	for _, text := range []string{"2/1m fixed_window", "2/1m sliding_window", "2/1m sliding_log", "2/1m burst 2", "2/100ms fixed_window"} {
		t.Run(text, func(t *testing.T) {
			p, l := open(t, Options{}), limittest.New(t, text)
			p.exhaust("a", l)
			first := p.ask(takeOf("a", l, 1))[0]
			p.calls(1, "the first denial")
			lasts := min(DenialMax-lookAhead, first.Wait)
			for _, after := range []counter.Micros{0, 1, 7_013, lasts - 1} {
				p.setClocks(after)
				if diff := cmp.Diff(p.askInner(takeOf("a", l, 1)), p.ask(takeOf("a", l, 1))[0]); diff != "" {
					t.Errorf("after %v, other than the store (-):\n%s", after, diff)
				}
				p.calls(0, "while it is remembered")
			}
			p.setClocks(lasts)
			r := p.ask(takeOf("a", l, 1))[0]
			p.calls(1, "when it is over")
			if r.Denied != (lasts < first.Wait) {
				t.Errorf("when it is over: %+v", r)
			}
		})
	}
}

// rig.askInner returns the inner store's answer to a denied check.
func (p *rig) askInner(c counter.Check) counter.Result {
	p.Helper()
	r := make([]counter.Result, 1)
	if err := p.inner.of.Take(context.Background(), []counter.Check{c}, r); err != nil {
		p.Fatal(err)
	}
	if !r[0].Denied {
		p.Fatalf("%+v, want it refused", r[0])
	}
	return r[0]
}

func TestADenialOfOneCostCoversGreaterCosts(t *testing.T) {
	for text, slack := range map[string]counter.Micros{"10/1m fixed_window": 0, "10/1m burst 10": 1, "7/1m burst 9": 1,
		"10/1m sliding_window": counter.Minute, "10/1m sliding_log": counter.Minute} {
		t.Run(text, func(t *testing.T) {
			p, l := open(t, Options{}), limittest.New(t, text)
			p.exhaust("a", l)
			p.ask(takeOf("b", l, l.Capacity()-2))
			p.setClocks(13 * counter.Millisecond)
			p.ask(takeOf("b", l, 4))
			p.calls(2, "a denial of 4")
			for _, cost := range []int64{4, 5, 7, l.Capacity(), l.Capacity() + 1} {
				got, want := p.ask(takeOf("b", l, cost))[0], p.askInner(takeOf("b", l, cost))
				p.calls(0, "a cost as great")
				if got.Wait-want.Wait > slack || want.Wait-got.Wait > slack || (got.Wait == counter.Never) != (want.Wait == counter.Never) {
					t.Errorf("cost %d: wait %v, want %v", cost, got.Wait, want.Wait)
				}
				if got.Wait = want.Wait; got != want {
					t.Errorf("cost %d: %+v, want %+v", cost, got, want)
				}
			}
			for _, cost := range []int64{3, 0, 1} {
				r := p.ask(takeOf("b", l, cost))[0]
				p.calls(1, "a smaller cost")
				if r.Denied != (cost == 3) {
					t.Errorf("cost %d: %+v", cost, r)
				}
			}
			// Of two denials, the one with the smaller cost is kept.
			p.ask(takeOf("b", l, 3), takeOf("a", l, 1))
			p.calls(1, "nothing is known of the other counter")
			p.ask(takeOf("b", l, 3), takeOf("a", l, 1))
			p.calls(0, "a smaller cost's denial covers the greater one's")
		})
	}
}

func TestOtherNumbersForgetADenial(t *testing.T) {
	p := open(t, Options{})
	two := limittest.New(t, "2/1m fixed_window")
	p.exhaust("a", two)
	p.ask(takeOf("a", two, 1))
	p.calls(1, "a denial")
	same := limittest.New(t, "2/1m fixed_window") // this is a new Limit value, as after a reload
	p.ask(takeOf("a", same, 1))
	p.calls(0, "the same limit, compiled again")
	for _, text := range []string{"3/1m fixed_window", "3/1m burst 2", "3/1m burst 9", "2/1m"} {
		p.ask(takeOf("a", two, 1))
		p.inner.calls.Store(0)
		r := p.ask(takeOf("a", limittest.New(t, text), 1))[0]
		p.calls(1, text)
		if text == "3/1m fixed_window" && r.Denied {
			t.Errorf("a raised limit: %+v", r)
		}
	}
}

func TestRefundsTakeEffectAtOnce(t *testing.T) {
	l := limittest.New(t, "2/1m fixed_window")
	for name, op := range map[string]counter.Op{"given back": counter.OpRefund, "reset": counter.OpReset} {
		t.Run(name, func(t *testing.T) {
			p := open(t, Options{})
			receipt := p.ask(takeOf("a", l, 2))[0].Receipt
			p.ask(takeOf("a", l, 1))
			p.calls(2, "until it is refused")
			change := takeOf("a", l, 1)
			change.Op, change.Receipt = op, receipt
			p.ask(change)
			if r := p.ask(takeOf("a", l, 1))[0]; r.Denied {
				t.Errorf("after it was %s: %+v", name, r)
			}
			p.calls(2, "the change and what follows")

			// A denial that arrives after the change is not remembered.
			p.ask(takeOf("a", l, 1))
			p.ask(change)
			p.ask(takeOf("a", l, 1)) // now one unit (after a reset) or both (after a refund) are used again
			p.ask(takeOf("b", l, 2))
			p.inner.instead(func(ctx context.Context, checks []counter.Check, results []counter.Result) error {
				p.inner.instead(nil)
				err := p.inner.Take(ctx, checks, results)
				p.ask(change)
				return err
			})
			p.ask(takeOf("a", l, 2))
			p.inner.calls.Store(0)
			p.ask(takeOf("a", l, 2))
			p.calls(1, "after a denial that may be older than the change")
		})
	}
}

// TestChangesTakeEffectWithinASecond: a change by another process takes effect within a second.
func TestChangesTakeEffectWithinASecond(t *testing.T) {
	p, l := open(t, Options{}), limittest.New(t, "2/1h fixed_window")
	p.exhaust("a", l)
	p.ask(takeOf("a", l, 1))
	reset := takeOf("a", l, 0)
	reset.Op = counter.OpReset
	if err := p.inner.of.Take(context.Background(), []counter.Check{reset}, make([]counter.Result, 1)); err != nil {
		t.Fatal(err)
	}
	p.setClocks(DenialMax - lookAhead - 1)
	before := p.ask(takeOf("a", l, 1))[0].Denied
	p.setClocks(DenialMax)
	if !before || p.ask(takeOf("a", l, 1))[0].Denied {
		t.Error("a reset by another node is not felt after a second")
	}
}

func TestLeasedUnitsEndADenial(t *testing.T) {
	const rtt = 3 * counter.Millisecond
	p, l := open(t, Options{}), limittest.New(t, "2/1m fixed_window")
	answered := func(leasedIn counter.Micros) {
		p.inner.instead(func(_ context.Context, _ []counter.Check, results []counter.Result) error {
			p.clock.Add(int64(rtt))
			results[0] = counter.Result{At: noon, Denied: true, Wait: counter.Minute, Reset: counter.Minute, Next: counter.Minute, LeasedIn: leasedIn}
			return nil
		})
	}
	for leasedIn, lasts := range map[counter.Micros]counter.Micros{0: DenialMax - lookAhead, 40 * counter.Millisecond: 40*counter.Millisecond + rtt,
		5 * counter.Second: DenialMax - lookAhead} {
		key, start := leasedIn.String(), counter.Micros(p.clock.Load())
		answered(leasedIn)
		p.ask(takeOf(key, l, 1))
		p.calls(1, "the denial")
		p.setClocks(start + lasts - 1)
		p.ask(takeOf(key, l, 1))
		p.calls(0, fmt.Sprintf("leased in %v: until then", leasedIn))
		p.setClocks(start + lasts)
		p.ask(takeOf(key, l, 1))
		p.calls(1, fmt.Sprintf("leased in %v: from then on", leasedIn))
	}
}

// TestOneCallLooksAgain: if a client sends requests continuously and the store takes some time to
// answer, only one call renews the denial.
func TestOneCallLooksAgain(t *testing.T) {
	p, l := open(t, Options{}), limittest.New(t, "2/1h fixed_window")
	p.exhaust("a", l)
	p.exhaust("b", l)
	p.ask(takeOf("a", l, 1), takeOf("b", l, 1))
	p.calls(1, "the denial")
	asked := 0
	p.inner.instead(func(ctx context.Context, checks []counter.Check, results []counter.Result) error {
		asked++
		p.inner.instead(nil)
		for range 100 { // this happens while the call is in flight
			if r := p.ask(takeOf("a", l, 1), takeOf("b", l, 1)); !r[0].Denied || !r[1].Denied {
				t.Errorf("%+v", r)
			}
		}
		return p.inner.of.Take(ctx, checks, results)
	})
	p.setClocks(DenialMax - lookAhead)
	p.ask(takeOf("a", l, 1), takeOf("b", l, 1))
	p.calls(1, "the first who asks shortly before the end")
	p.setClocks(2*DenialMax - 2*lookAhead - 1)
	p.ask(takeOf("a", l, 1), takeOf("b", l, 1))
	p.calls(0, "what it was told, which is remembered as long")
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}

	// If that call fails, other calls are made when the denial has ended.
	p.inner.instead(func(context.Context, []counter.Check, []counter.Result) error { return counter.ErrUnavailable })
	p.setClocks(2*DenialMax - 2*lookAhead)
	if r := p.ask(takeOf("a", l, 1)); !r[0].Denied {
		t.Errorf("while the denial holds: %+v", r)
	}
	p.inner.instead(nil)
	if r := p.ask(takeOf("a", l, 1)); !r[0].Denied {
		t.Errorf("while the denial holds: %+v", r)
	}
	p.calls(1, "the call that failed")
	p.setClocks(2*DenialMax - lookAhead)
	p.ask(takeOf("a", l, 1))
	p.calls(1, "when it is over")
}

// TestADenialCountsFromItsCall: a denial counts from when its call was sent, because the store
// might have decided long before the answer arrived.
func TestADenialCountsFromItsCall(t *testing.T) {
	p, l := open(t, Options{}), limittest.New(t, "2/100ms fixed_window")
	p.exhaust("a", l)
	p.inner.instead(func(ctx context.Context, checks []counter.Check, results []counter.Result) error {
		defer p.clock.Add(int64(60 * counter.Millisecond))
		return p.inner.of.Take(ctx, checks, results)
	})
	p.ask(takeOf("a", l, 1))
	p.inner.instead(nil)
	p.inner.calls.Store(0)
	p.setClocks(100*counter.Millisecond - 1)
	p.ask(takeOf("a", l, 1))
	p.calls(0, "before the window ends")
	p.setClocks(100 * counter.Millisecond)
	if r := p.ask(takeOf("a", l, 1))[0]; r.Denied {
		t.Errorf("in the next window: %+v", r)
	}
}

func TestRequestsThatMustCallTheStore(t *testing.T) {
	l := limittest.New(t, "2/1m fixed_window")
	a := takeOf("a", l, 1)
	shadow, look, force := takeOf("b", l, 1), takeOf("b", l, 1), takeOf("b", l, 1)
	shadow.Shadow, look.Op, force.Op = true, counter.OpLook, counter.OpForce
	for name, beside := range map[string]counter.Check{"log_only": shadow, "look": look, "forced": force} {
		p := open(t, Options{})
		p.exhaust("a", l)
		p.ask(a)
		p.ask(a, beside)
		p.calls(2, name+" beside a remembered denial")
	}
	// A denial under log_only does not apply to enforced checks of the same counter.
	p := open(t, Options{})
	p.exhaust("a", l)
	p.exhaust("b", l)
	p.ask(shadow, a)
	p.ask(takeOf("b", l, 1))
	p.calls(2, "a counter that log_only found exhausted")

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := p.Take(ctx, []counter.Check{a}, make([]counter.Result, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that is done: %v", err)
	}
	p.inner.instead(func(context.Context, []counter.Check, []counter.Result) error { return counter.ErrUnavailable })
	if err := p.Take(context.Background(), []counter.Check{takeOf("new", l, 9)}, make([]counter.Result, 1)); !errors.Is(err, counter.ErrUnavailable) {
		t.Errorf("a store that does not answer: %v", err)
	}
	p.inner.instead(nil)
	if r := p.ask(takeOf("new", l, 2))[0]; r.Denied {
		t.Errorf("after a store that did not answer: %+v", r)
	}
	off := open(t, Options{DenialsMax: -1})
	off.exhaust("a", l)
	off.ask(a)
	off.ask(a)
	off.calls(2, "without memory")
}

// TestTheLongestWaitIsReported: if several limits deny a request, the answer has the longest wait,
// even if the limits were used up at different times, or if one of the remembered denials is
// outdated.
func TestTheLongestWaitIsReported(t *testing.T) {
	p := open(t, Options{})
	minute, hour := limittest.New(t, "3/1m fixed_window"), limittest.New(t, "3/1h fixed_window")
	a, b := takeOf("a", minute, 1), takeOf("b", hour, 1)
	both := func() (longest counter.Micros) {
		for _, r := range p.ask(a, b) {
			if r.Denied {
				longest = max(longest, r.Wait)
			}
		}
		return longest
	}
	p.exhaust("a", minute)
	p.ask(a)
	p.ask(b)
	if got := both(); got != counter.Minute { // b has room
		t.Errorf("one is used up: wait %v", got)
	}
	p.ask(b)
	p.ask(b)
	if got := both(); got != counter.Hour {
		t.Errorf("both are used up: wait %v", got)
	}
	p.inner.calls.Store(0)
	if got := both(); got != counter.Hour {
		t.Errorf("from memory: wait %v", got)
	}
	p.calls(0, "both are known")
	for i := range 100 {
		p.ask(a, takeOf(fmt.Sprint("other ", i), hour, 1))
	}
	if got := p.inner.calls.Load(); got > asksMax {
		t.Errorf("%d calls of a client whose every request names another counter, want %d at most", got, asksMax)
	}
}

// TestMemoryIsBounded: a bounded number of denied clients is remembered. A client that is not
// remembered costs a call.
func TestMemoryIsBounded(t *testing.T) {
	const most = 1 << 12
	clients := racescale.Long(1_000_000)
	p, l := open(t, Options{DenialsMax: most}), limittest.New(t, "1/1m fixed_window")
	p.inner.instead(func(_ context.Context, checks []counter.Check, results []counter.Result) error {
		for i := range checks {
			results[i] = counter.Result{At: noon, Denied: true, Wait: counter.Minute, Reset: counter.Minute, Next: counter.Minute}
		}
		return nil
	})
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	checks, results := []counter.Check{takeOf("", l, 1)}, make([]counter.Result, 1)
	for i := range clients {
		checks[0].Key = fmt.Appendf(checks[0].Key[:0], "client %d", i)
		if err := p.Take(context.Background(), checks, results); err != nil || !results[0].Denied {
			t.Fatalf("%+v, %v", results[0], err)
		}
	}
	if grown := heap() - before; grown > 1<<16 {
		t.Errorf("%d clients took %d bytes", clients, grown)
	}
	p.calls(int64(clients), "clients that come once")
	held := 0
	for i := range clients {
		id := p.denials.identify(fmt.Appendf(nil, "client %d", i))
		if s, mu := p.denials.lock(id); s.find(id, p.now()) != nil {
			mu.Unlock()
			held++
		} else {
			mu.Unlock()
		}
	}
	if held > most || held < most*9/10 {
		t.Errorf("%d denials are remembered, want about %d", held, most)
	}
}

func TestRecallDoesNotAllocate(t *testing.T) {
	p, l := open(t, Options{}), limittest.New(t, "2/1m")
	p.exhaust("a", l)
	checks, results := []counter.Check{takeOf("b", l, 1), takeOf("a", l, 1)}, make([]counter.Result, 2)
	take := func() {
		if err := p.Take(context.Background(), checks, results); err != nil || !results[1].Denied {
			t.Fatal(results, err)
		}
	}
	take()
	if n := testing.AllocsPerRun(1000, take); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
	p.calls(1, "the denial")
}

func BenchmarkRecall(b *testing.B) {
	key := "rl1:shop:api:{ip:2001:db8:1234:5678::}:60s:sw"
	for _, n := range []int{1, 3} {
		b.Run(fmt.Sprintf("limits=%d", n), func(b *testing.B) {
			inner := open(b, Options{}).inner
			s, err := New(inner, Options{})
			if err != nil {
				b.Fatal(err)
			}
			l := limittest.New(b, "2/31d fixed_window")
			var checks []counter.Check
			for i := range n {
				checks = append(checks, takeOf(fmt.Sprint(i, key), l, 3))
			}
			results := make([]counter.Result, n)
			b.ReportAllocs()
			for b.Loop() {
				if err := s.Take(context.Background(), checks, results); err != nil || !results[0].Denied {
					b.Fatal(results, err)
				}
			}
			b.ReportMetric(float64(inner.calls.Load()), "calls")
		})
	}
}
