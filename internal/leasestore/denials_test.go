// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/underrace"
)

func TestARefusalIsRemembered(t *testing.T) {
	for _, text := range []string{"2/1m fixed_window", "2/1m sliding_window", "2/1m sliding_log", "2/1m burst 2", "2/100ms fixed_window"} {
		t.Run(text, func(t *testing.T) {
			p, l := open(t, Options{}), limitOf(t, text)
			p.exhaust("a", l)
			first := p.ask(takeOf("a", l, 1))[0]
			p.calls(1, "the first refusal")
			lasts := min(DenialMax-lookAhead, first.Wait)
			for _, after := range []core.Micros{0, 1, 7_013, lasts - 1} {
				p.after(after)
				if diff := cmp.Diff(p.exactly(takeOf("a", l, 1)), p.ask(takeOf("a", l, 1))[0]); diff != "" {
					t.Errorf("after %v, other than the store (-):\n%s", after, diff)
				}
				p.calls(0, "while it is remembered")
			}
			p.after(lasts)
			r := p.ask(takeOf("a", l, 1))[0]
			p.calls(1, "when it is over")
			if r.Refused != (lasts < first.Wait) {
				t.Errorf("when it is over: %+v", r)
			}
		})
	}
}

// exactly returns what the store beneath would answer to a check that is refused.
func (p *rig) exactly(c core.Check) core.Result {
	p.Helper()
	r := make([]core.Result, 1)
	if err := p.inner.of.Take(context.Background(), []core.Check{c}, r); err != nil {
		p.Fatal(err)
	}
	if !r[0].Refused {
		p.Fatalf("%+v, want it refused", r[0])
	}
	return r[0]
}

func TestARefusalOfOneCostIsOneOfGreaterCosts(t *testing.T) {
	for text, slack := range map[string]core.Micros{"10/1m fixed_window": 0, "10/1m burst 10": 1, "7/1m burst 9": 1,
		"10/1m sliding_window": core.Minute, "10/1m sliding_log": core.Minute} {
		t.Run(text, func(t *testing.T) {
			p, l := open(t, Options{}), limitOf(t, text)
			p.exhaust("a", l)
			p.ask(takeOf("b", l, l.Capacity()-2))
			p.after(13 * core.Millisecond)
			p.ask(takeOf("b", l, 4))
			p.calls(2, "a refusal of 4")
			for _, cost := range []int64{4, 5, 7, l.Capacity(), l.Capacity() + 1} {
				got, want := p.ask(takeOf("b", l, cost))[0], p.exactly(takeOf("b", l, cost))
				p.calls(0, "a cost as great")
				if got.Wait-want.Wait > slack || want.Wait-got.Wait > slack || (got.Wait == core.Never) != (want.Wait == core.Never) {
					t.Errorf("cost %d: wait %v, want %v", cost, got.Wait, want.Wait)
				}
				if got.Wait = want.Wait; got != want {
					t.Errorf("cost %d: %+v, want %+v", cost, got, want)
				}
			}
			for _, cost := range []int64{3, 0, 1} {
				r := p.ask(takeOf("b", l, cost))[0]
				p.calls(1, "a smaller cost")
				if r.Refused != (cost == 3) {
					t.Errorf("cost %d: %+v", cost, r)
				}
			}
			// Of two refusals the one of the smaller cost is kept.
			p.ask(takeOf("b", l, 3), takeOf("a", l, 1))
			p.calls(1, "nothing is known of the other counter")
			p.ask(takeOf("b", l, 3), takeOf("a", l, 1))
			p.calls(0, "a smaller cost's refusal covers the greater one's")
		})
	}
}

func TestOtherNumbersForgetARefusal(t *testing.T) {
	p := open(t, Options{})
	two := limitOf(t, "2/1m fixed_window")
	p.exhaust("a", two)
	p.ask(takeOf("a", two, 1))
	p.calls(1, "a refusal")
	same := limitOf(t, "2/1m fixed_window") // as a reload makes it
	p.ask(takeOf("a", same, 1))
	p.calls(0, "the same limit, compiled again")
	for _, text := range []string{"3/1m fixed_window", "3/1m burst 2", "3/1m burst 9", "2/1m"} {
		p.ask(takeOf("a", two, 1))
		p.inner.calls.Store(0)
		r := p.ask(takeOf("a", limitOf(t, text), 1))[0]
		p.calls(1, text)
		if text == "3/1m fixed_window" && r.Refused {
			t.Errorf("a raised limit: %+v", r)
		}
	}
}

func TestWhatIsGivenBackIsFeltAtOnce(t *testing.T) {
	l := limitOf(t, "2/1m fixed_window")
	for name, op := range map[string]core.Op{"given back": core.OpGiveBack, "reset": core.OpReset} {
		t.Run(name, func(t *testing.T) {
			p := open(t, Options{})
			receipt := p.ask(takeOf("a", l, 2))[0].Receipt
			p.ask(takeOf("a", l, 1))
			p.calls(2, "until it is refused")
			change := takeOf("a", l, 1)
			change.Op, change.Receipt = op, receipt
			p.ask(change)
			if r := p.ask(takeOf("a", l, 1))[0]; r.Refused {
				t.Errorf("after it was %s: %+v", name, r)
			}
			p.calls(2, "the change and what follows")

			// A refusal that was on its way meanwhile is not remembered.
			p.ask(takeOf("a", l, 1))
			p.ask(change)
			p.ask(takeOf("a", l, 1)) // one unit of two, or both, is gone again
			p.ask(takeOf("b", l, 2))
			p.inner.instead(func(ctx context.Context, checks []core.Check, results []core.Result) error {
				p.inner.instead(nil)
				err := p.inner.Take(ctx, checks, results)
				p.ask(change)
				return err
			})
			p.ask(takeOf("a", l, 2))
			p.inner.calls.Store(0)
			p.ask(takeOf("a", l, 2))
			p.calls(1, "after a refusal that may be older than the change")
		})
	}
}

// TestWhatChangesIsFeltInASecond is about changes by others.
func TestWhatChangesIsFeltInASecond(t *testing.T) {
	p, l := open(t, Options{}), limitOf(t, "2/1h fixed_window")
	p.exhaust("a", l)
	p.ask(takeOf("a", l, 1))
	reset := takeOf("a", l, 0)
	reset.Op = core.OpReset
	if err := p.inner.of.Take(context.Background(), []core.Check{reset}, make([]core.Result, 1)); err != nil {
		t.Fatal(err)
	}
	p.after(DenialMax - lookAhead - 1)
	before := p.ask(takeOf("a", l, 1))[0].Refused
	p.after(DenialMax)
	if !before || p.ask(takeOf("a", l, 1))[0].Refused {
		t.Error("a reset by another node is not felt after a second")
	}
}

func TestUnitsOnLeaseEndARefusal(t *testing.T) {
	const rtt = 3 * core.Millisecond
	p, l := open(t, Options{}), limitOf(t, "2/1m fixed_window")
	answered := func(leasedIn core.Micros) {
		p.inner.instead(func(_ context.Context, _ []core.Check, results []core.Result) error {
			p.clock.Add(int64(rtt))
			results[0] = core.Result{At: noon, Refused: true, Wait: core.Minute, Reset: core.Minute, Next: core.Minute, LeasedIn: leasedIn}
			return nil
		})
	}
	for leasedIn, lasts := range map[core.Micros]core.Micros{0: DenialMax - lookAhead, 40 * core.Millisecond: 40*core.Millisecond + rtt,
		5 * core.Second: DenialMax - lookAhead} {
		key, start := leasedIn.String(), core.Micros(p.clock.Load())
		answered(leasedIn)
		p.ask(takeOf(key, l, 1))
		p.calls(1, "the refusal")
		p.after(start + lasts - 1)
		p.ask(takeOf(key, l, 1))
		p.calls(0, fmt.Sprintf("leased in %v: until then", leasedIn))
		p.after(start + lasts)
		p.ask(takeOf(key, l, 1))
		p.calls(1, fmt.Sprintf("leased in %v: from then on", leasedIn))
	}
}

// TestOneCallLooksAgain is about a client who asks all the time, while the store takes time to answer.
func TestOneCallLooksAgain(t *testing.T) {
	p, l := open(t, Options{}), limitOf(t, "2/1h fixed_window")
	p.exhaust("a", l)
	p.exhaust("b", l)
	p.ask(takeOf("a", l, 1), takeOf("b", l, 1))
	p.calls(1, "the refusal")
	asked := 0
	p.inner.instead(func(ctx context.Context, checks []core.Check, results []core.Result) error {
		asked++
		p.inner.instead(nil)
		for range 100 { // while this call is under way
			if r := p.ask(takeOf("a", l, 1), takeOf("b", l, 1)); !r[0].Refused || !r[1].Refused {
				t.Errorf("%+v", r)
			}
		}
		return p.inner.of.Take(ctx, checks, results)
	})
	p.after(DenialMax - lookAhead)
	p.ask(takeOf("a", l, 1), takeOf("b", l, 1))
	p.calls(1, "the first who asks shortly before the end")
	p.after(2*DenialMax - 2*lookAhead - 1)
	p.ask(takeOf("a", l, 1), takeOf("b", l, 1))
	p.calls(0, "what it was told, which is remembered as long")
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}

	// If nothing comes of it, the rest ask when the refusal is over.
	p.inner.instead(func(context.Context, []core.Check, []core.Result) error { return core.ErrUnavailable })
	p.after(2*DenialMax - 2*lookAhead)
	if r := p.ask(takeOf("a", l, 1)); !r[0].Refused {
		t.Errorf("while the refusal holds: %+v", r)
	}
	p.inner.instead(nil)
	if r := p.ask(takeOf("a", l, 1)); !r[0].Refused {
		t.Errorf("while the refusal holds: %+v", r)
	}
	p.calls(1, "the call that failed")
	p.after(2*DenialMax - lookAhead)
	p.ask(takeOf("a", l, 1))
	p.calls(1, "when it is over")
}

// TestARefusalIsNoOlderThanItsQuestion: the store may have answered long before the answer came.
func TestARefusalIsNoOlderThanItsQuestion(t *testing.T) {
	p, l := open(t, Options{}), limitOf(t, "2/100ms fixed_window")
	p.exhaust("a", l)
	p.inner.instead(func(ctx context.Context, checks []core.Check, results []core.Result) error {
		defer p.clock.Add(int64(60 * core.Millisecond))
		return p.inner.of.Take(ctx, checks, results)
	})
	p.ask(takeOf("a", l, 1))
	p.inner.instead(nil)
	p.inner.calls.Store(0)
	p.after(100*core.Millisecond - 1)
	p.ask(takeOf("a", l, 1))
	p.calls(0, "before the window ends")
	p.after(100 * core.Millisecond)
	if r := p.ask(takeOf("a", l, 1))[0]; r.Refused {
		t.Errorf("in the next window: %+v", r)
	}
}

func TestWhatMustBeAsked(t *testing.T) {
	l := limitOf(t, "2/1m fixed_window")
	a := takeOf("a", l, 1)
	shadow, look, force := takeOf("b", l, 1), takeOf("b", l, 1), takeOf("b", l, 1)
	shadow.Shadow, look.Op, force.Op = true, core.OpLook, core.OpForce
	for name, beside := range map[string]core.Check{"log_only": shadow, "look": look, "forced": force} {
		p := open(t, Options{})
		p.exhaust("a", l)
		p.ask(a)
		p.ask(a, beside)
		p.calls(2, name+" beside a remembered refusal")
	}
	// What log_only would refuse says nothing of what is enforced by the same counter.
	p := open(t, Options{})
	p.exhaust("a", l)
	p.exhaust("b", l)
	p.ask(shadow, a)
	p.ask(takeOf("b", l, 1))
	p.calls(2, "a counter that log_only found exhausted")

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := p.Take(ctx, []core.Check{a}, make([]core.Result, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that is done: %v", err)
	}
	p.inner.instead(func(context.Context, []core.Check, []core.Result) error { return core.ErrUnavailable })
	if err := p.Take(context.Background(), []core.Check{takeOf("new", l, 9)}, make([]core.Result, 1)); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("a store that does not answer: %v", err)
	}
	p.inner.instead(nil)
	if r := p.ask(takeOf("new", l, 2))[0]; r.Refused {
		t.Errorf("after a store that did not answer: %+v", r)
	}
	off := open(t, Options{DenialsMax: -1})
	off.exhaust("a", l)
	off.ask(a)
	off.ask(a)
	off.calls(2, "without memory")
}

// TestMemoryIsBounded: of any number of refused clients so many are remembered, and a client that is not costs a call.
// TestTheLongestWaitIsTold: of several limits that deny a request, the longest wait is told, also where they were used up
// one after the other, and where what was said of one is no longer so.
func TestTheLongestWaitIsTold(t *testing.T) {
	p := open(t, Options{})
	minute, hour := limitOf(t, "3/1m fixed_window"), limitOf(t, "3/1h fixed_window")
	a, b := takeOf("a", minute, 1), takeOf("b", hour, 1)
	both := func() (longest core.Micros) {
		for _, r := range p.ask(a, b) {
			if r.Refused {
				longest = max(longest, r.Wait)
			}
		}
		return longest
	}
	p.exhaust("a", minute)
	p.ask(a)
	p.ask(b)
	if got := both(); got != core.Minute { // b has room
		t.Errorf("one is used up: wait %v", got)
	}
	p.ask(b)
	p.ask(b)
	if got := both(); got != core.Hour {
		t.Errorf("both are used up: wait %v", got)
	}
	p.inner.calls.Store(0)
	if got := both(); got != core.Hour {
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

func TestMemoryIsBounded(t *testing.T) {
	const most = 1 << 12
	clients := underrace.Fewer(1_000_000)
	p, l := open(t, Options{DenialsMax: most}), limitOf(t, "1/1m fixed_window")
	p.inner.instead(func(_ context.Context, checks []core.Check, results []core.Result) error {
		for i := range checks {
			results[i] = core.Result{At: noon, Refused: true, Wait: core.Minute, Reset: core.Minute, Next: core.Minute}
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
	checks, results := []core.Check{takeOf("", l, 1)}, make([]core.Result, 1)
	for i := range clients {
		checks[0].Key = fmt.Appendf(checks[0].Key[:0], "client %d", i)
		if err := p.Take(context.Background(), checks, results); err != nil || !results[0].Refused {
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
		t.Errorf("%d refusals are remembered, want about %d", held, most)
	}
}

func TestRecallDoesNotAllocate(t *testing.T) {
	p, l := open(t, Options{}), limitOf(t, "2/1m")
	p.exhaust("a", l)
	checks, results := []core.Check{takeOf("b", l, 1), takeOf("a", l, 1)}, make([]core.Result, 2)
	take := func() {
		if err := p.Take(context.Background(), checks, results); err != nil || !results[1].Refused {
			t.Fatal(results, err)
		}
	}
	take()
	if n := testing.AllocsPerRun(1000, take); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
	p.calls(1, "the refusal")
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
			l := limitOf(b, "2/31d fixed_window")
			var checks []core.Check
			for i := range n {
				checks = append(checks, takeOf(fmt.Sprint(i, key), l, 3))
			}
			results := make([]core.Result, n)
			b.ReportAllocs()
			for b.Loop() {
				if err := s.Take(context.Background(), checks, results); err != nil || !results[0].Refused {
					b.Fatal(results, err)
				}
			}
			b.ReportMetric(float64(inner.calls.Load()), "calls")
		})
	}
}
