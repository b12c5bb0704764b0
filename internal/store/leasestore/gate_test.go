// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/limittest"
)

// burst makes many requests at once and counts their outcomes.
type burst struct {
	*rig
	admitted, denied, failed atomic.Int64
	unsent                   atomic.Int64 // the number of failed requests that were not sent
	running                  sync.WaitGroup
	errs                     sync.Map // the errors of failed requests, by their text
}

// burst.ask makes one request and counts its outcome.
func (b *burst) ask(ctx context.Context, checks ...counter.Check) {
	results := make([]counter.Result, len(checks))
	switch err := b.Take(ctx, checks, results); {
	case err != nil:
		b.failed.Add(1)
		if errors.As(err, new(notSentError)) {
			b.unsent.Add(1)
		}
		b.errs.Store(err.Error(), err)
	case anyDenied(checks, results):
		b.denied.Add(1)
	default:
		b.admitted.Add(1)
	}
}

// After blockInner, each call to the inner store blocks until the test invokes release.
func (p *rig) blockInner() (release func()) {
	wall := make(chan struct{})
	p.inner.instead(func(ctx context.Context, checks []counter.Check, results []counter.Result) error {
		<-wall
		return p.inner.of.Take(ctx, checks, results)
	})
	return sync.OnceFunc(func() {
		p.inner.instead(nil)
		close(wall)
	})
}

// rig.queues blocks until n requests wait at gates.
func (p *rig) queues(n int64) {
	p.Helper()
	eventually.Until(p, time.Minute, fmt.Sprintf("%d requests wait at gates", n), func() bool { return p.gates.waiting.Load() == n })
}

// isIdle fails the test if a gate is in use.
func (p *rig) isIdle() {
	p.Helper()
	if n := p.gates.waiting.Load(); n != 0 {
		p.Errorf("%d requests wait", n)
	}
	for i := range p.gates.shards {
		if n := len(p.gates.shards[i].busy); n != 0 {
			p.Errorf("%d gates are in use", n)
		}
	}
}

// TestABurstIsAFewCalls: of a burst of any size, exactly as many requests are admitted as the limit
// permits, and the store gets about as many calls.
func TestABurstIsAFewCalls(t *testing.T) {
	for _, n := range []int{6, 100, 10_000} {
		for _, text := range []string{"5/1h", "5/1h fixed_window", "5/1h sliding_log", "5/1h burst 5"} {
			t.Run(fmt.Sprintf("%d at %s", n, text), func(t *testing.T) {
				b := &burst{rig: open(t, Options{})}
				release, l := b.blockInner(), limittest.New(t, text)
				for range n {
					b.running.Go(func() { b.ask(context.Background(), takeOf("a", l, 1)) })
				}
				b.queues(int64(n - 6))
				eventually.Until(t, time.Minute, "one call more than the limit is under way", func() bool { return b.inner.calls.Load() == 6 })
				release()
				b.running.Wait()
				if a, d := b.admitted.Load(), b.denied.Load(); a != 5 || d != int64(n-5) {
					t.Errorf("%d admitted, %d denied, %d failed", a, d, b.failed.Load())
				}
				if got := b.inner.calls.Load(); got > 12 {
					t.Errorf("%d calls for a burst of %d", got, n)
				}
				b.isIdle()
			})
		}
	}
}

// TestABurstDelaysNoOtherCounter: requests for other counters do not wait for those of a burst.
func TestABurstDelaysNoOtherCounter(t *testing.T) {
	b := &burst{rig: open(t, Options{})}
	wall := make(chan struct{})
	b.inner.instead(func(ctx context.Context, checks []counter.Check, results []counter.Result) error {
		if string(checks[0].Key) == "attacker" {
			<-wall
		}
		return b.inner.of.Take(ctx, checks, results)
	})
	everyone, own := limittest.New(t, "1000000/1h"), limittest.New(t, "5/1h")
	for range 3000 {
		b.running.Go(func() { b.ask(context.Background(), takeOf("attacker", own, 1), takeOf("everyone", everyone, 1)) })
	}
	b.queues(2994)
	for i := range 100 {
		r := b.rig.ask(takeOf(fmt.Sprint("client ", i), own, 1), takeOf("everyone", everyone, 1))
		if anyDenied(make([]counter.Check, 2), r) {
			t.Fatalf("client %d is denied", i)
		}
	}
	close(wall)
	b.running.Wait()
	if a := b.admitted.Load(); a != 5 {
		t.Errorf("%d admitted", a)
	}
	b.isIdle()
}

// TestAnOutageEndsTheWait: waiting requests fail together with the call for which they wait, and do
// not call the store.
func TestAnOutageEndsTheWait(t *testing.T) {
	b := &burst{rig: open(t, Options{})}
	wall := make(chan struct{})
	b.inner.instead(func(context.Context, []counter.Check, []counter.Result) error {
		<-wall
		return fmt.Errorf("away: %w", counter.ErrUnavailable)
	})
	l := limittest.New(t, "5/1h")
	for range 1000 {
		b.running.Go(func() { b.ask(context.Background(), takeOf("a", l, 1)) })
	}
	b.queues(994)
	close(wall)
	b.running.Wait()
	if f, calls := b.failed.Load(), b.inner.calls.Load(); f != 1000 || calls != 6 {
		t.Errorf("%d failed by %d calls", f, calls)
	}
	if n := b.unsent.Load(); n != 994 {
		t.Errorf("%d requests say that they were not sent, want those that waited", n)
	}
	b.isIdle()
}

// TestWaitsAreBounded: a request beyond the bound is rejected with an error that does not mean an
// outage.
func TestWaitsAreBounded(t *testing.T) {
	b := &burst{rig: open(t, Options{})}
	release, l := b.blockInner(), limittest.New(t, "1/1h")
	defer release()
	for n := range gateWaitingMax + 2 {
		check := takeOf("a", l, 1)
		check.Source = 1 + uint32(n%16)
		b.running.Go(func() { b.ask(context.Background(), check) })
	}
	b.queues(gateWaitingMax)
	checks, results := []counter.Check{takeOf("a", l, 1)}, make([]counter.Result, 1)
	err := b.Take(context.Background(), checks, results)
	if !errors.Is(err, counter.ErrOverloaded) || errors.Is(err, counter.ErrUnavailable) {
		t.Errorf("beyond the bound: %v", err)
	}
	calls := []counter.Call{{Checks: checks, Results: results}}
	if b.TakeAll(context.Background(), calls); !errors.Is(calls[0].Err, counter.ErrOverloaded) {
		t.Errorf("beyond the bound, in a batch: %v", calls[0].Err)
	}
	release()
	b.running.Wait()
	if a := b.admitted.Load(); a != 1 {
		t.Errorf("%d admitted", a)
	}
	b.isIdle()
}

// TestASourceLeavesPlacesAtGates: one source has a fourth of the places at all gates together, and
// half of the places at the gate of one counter. Requests of other sources wait, and are not
// denied.
func TestASourceLeavesPlacesAtGates(t *testing.T) {
	for names, places := range map[int]int{1: gateWaitingMax, 5: gatesWaitingMax} {
		t.Run(fmt.Sprintf("%d counters", names), func(t *testing.T) {
			b := &burst{rig: open(t, Options{})}
			release, l := b.blockInner(), limittest.New(t, "1/1h")
			defer release()
			of := func(source uint32, name string) counter.Check {
				c := takeOf(name, l, 1)
				c.Source = source
				return c
			}
			for n := range places + 2*names { // two calls of each counter are under way
				b.running.Go(func() { b.ask(context.Background(), of(1, fmt.Sprint(n%names))) })
			}
			eventually.Until(t, time.Minute, "all wait or are denied", func() bool {
				return b.gates.waiting.Load()+b.failed.Load() == int64(places)
			})
			if n := b.gates.waiting.Load(); n != gateWaitingMax/2 {
				t.Errorf("%d requests of one source wait, want %d", n, gateWaitingMax/2)
			}
			other := &burst{rig: b.rig}
			other.running.Go(func() { other.ask(context.Background(), of(2, "0")) })
			eventually.Until(t, time.Minute, "the other source waits or is denied", func() bool {
				return b.gates.waiting.Load()+b.failed.Load()+other.failed.Load() == int64(places)+1
			})
			release()
			b.running.Wait()
			other.running.Wait()
			if other.failed.Load() != 0 || b.admitted.Load()+other.admitted.Load() != int64(names) {
				t.Errorf("%d requests of another source failed, and %d and %d were admitted", other.failed.Load(), b.admitted.Load(),
					other.admitted.Load())
			}
			b.isIdle()
			if !b.gates.sources.Of(1).Enter(2) {
				t.Error("a source still has a place when it has no requests")
			}
		})
	}
}

// TestAWaitEnds: a request that has waited too long is rejected when its turn comes. A request
// whose context is done is rejected at once.
func TestAWaitEnds(t *testing.T) {
	b := &burst{rig: open(t, Options{DenialsMax: -1})}
	release, l := b.blockInner(), limittest.New(t, "100000/1h")
	for range gateCallsMax + 10 {
		b.running.Go(func() { b.ask(context.Background(), takeOf("a", l, 1)) })
	}
	b.queues(10)
	ctx, cancel := context.WithCancel(context.Background())
	left := make(chan error)
	go func() { left <- b.Take(ctx, []counter.Check{takeOf("a", l, 1)}, make([]counter.Result, 1)) }()
	b.queues(11)
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) || !errors.Is(err, counter.ErrUnavailable) {
		t.Errorf("a request that was given up: %v", err)
	}
	b.queues(10)
	late, stop := context.WithTimeout(context.Background(), time.Millisecond)
	defer stop()
	if err := b.Take(late, []counter.Check{takeOf("a", l, 1)}, make([]counter.Result, 1)); !errors.Is(err, counter.ErrOverloaded) ||
		errors.Is(err, counter.ErrUnavailable) {
		t.Errorf("a request whose time was over at the gate: %v", err)
	}
	b.setClocks(gateWaitMax + 1)
	release()
	b.running.Wait()
	if a, f := b.admitted.Load(), b.failed.Load(); a != gateCallsMax || f != 10 {
		t.Errorf("%d admitted, %d failed", a, f)
	}
	b.errs.Range(func(_, err any) bool {
		if !errors.Is(err.(error), counter.ErrOverloaded) {
			t.Error(err)
		}
		return true
	})
	b.isIdle()
}

// TestAPanicLeavesTheGate: after a panic in the inner store, no gate remains in use.
func TestAPanicLeavesTheGate(t *testing.T) {
	b := &burst{rig: open(t, Options{})}
	b.inner.instead(func(context.Context, []counter.Check, []counter.Result) error { panic("as the test wants it") })
	l := limittest.New(t, "1/1h")
	for range 5 {
		func() {
			defer func() { _ = recover() }()
			b.ask(context.Background(), takeOf("a", l, 1))
		}()
	}
	b.isIdle()
}

// TestGatesUnderLoad: whichever counters requests share, no limit is exceeded, all requests return,
// and no gate remains in use.
func TestGatesUnderLoad(t *testing.T) {
	for _, o := range []Options{{}, {DenialsMax: -1}} {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		b := &burst{rig: open(t, o)}
		b.inner.instead(func(ctx context.Context, checks []counter.Check, results []counter.Result) error {
			if b.inner.calls.Load()%97 == 0 {
				return fmt.Errorf("lost: %w", counter.ErrUnavailable)
			}
			return b.inner.of.Take(ctx, checks, results)
		})
		limits := []*counter.Limit{limittest.New(t, "7/1h fixed_window"), limittest.New(t, "40/1h fixed_window"), limittest.New(t, "300/1h fixed_window")}
		var used [3]atomic.Int64
		for worker := range uint64(200) {
			random := rand.New(rand.NewPCG(seed, worker))
			b.running.Go(func() {
				for range 30 {
					b.random(random, limits, &used)
				}
			})
		}
		b.running.Wait()
		for i := range used {
			if got := used[i].Load(); got > limits[i].Capacity() {
				t.Errorf("%d units of %d", got, limits[i].Capacity())
			}
		}
		b.isIdle()
	}
}

// burst.random sends requests through [counter.Store] or [counter.Batcher] and counts the admitted
// units.
func (b *burst) random(random *rand.Rand, limits []*counter.Limit, used *[3]atomic.Int64) {
	calls, chosen := make([]counter.Call, 1+random.IntN(4)), make([][]int, 4)
	for i := range calls {
		for k := range limits {
			if random.IntN(2) == 0 || k == 2 && len(chosen[i]) == 0 {
				calls[i].Checks = append(calls[i].Checks, takeOf(fmt.Sprint("counter ", k), limits[k], int64(1+random.IntN(3))))
				chosen[i] = append(chosen[i], k)
			}
		}
		calls[i].Results = make([]counter.Result, len(calls[i].Checks))
	}
	if len(calls) > 1 {
		b.TakeAll(context.Background(), calls)
	} else {
		calls[0].Err = b.Take(context.Background(), calls[0].Checks, calls[0].Results)
	}
	for i := range calls {
		if calls[i].Err != nil || anyDenied(calls[i].Checks, calls[i].Results) {
			continue
		}
		for j, k := range chosen[i] {
			used[k].Add(calls[i].Checks[j].Cost)
		}
	}
}

// TestABurstBesideLeases: each request is under its client's own limit and under a leased limit
// that all clients share. The requests wait at the gate of their own limit, and the units that they
// have reserved are put back.
func TestABurstBesideLeases(t *testing.T) {
	b := &burst{rig: open(t, Options{})}
	own, everyone := limittest.New(t, "5/1h"), leasedOf("everyone", limittest.New(t, "100000/1h fixed_window"), 1)
	for range 200 {
		b.rig.ask(everyone) // the loop repeats until the limit is hot
	}
	for range 2000 {
		b.running.Go(func() { b.ask(context.Background(), everyone, takeOf("a", own, 1)) })
	}
	b.running.Wait()
	if a, f := b.admitted.Load(), b.failed.Load(); a != 5 || f != 0 {
		t.Errorf("%d admitted, %d failed", a, f)
	}
	b.isIdle()
}

func TestPassingAGateDoesNotAllocate(t *testing.T) {
	p := open(t, Options{})
	l := limittest.New(t, "1000000/1h")
	checks, results := []counter.Check{takeOf("a", l, 1)}, make([]counter.Result, 1)
	if n := testing.AllocsPerRun(100, func() { _ = p.Take(context.Background(), checks, results) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkGate measures what an uncontended gate adds to a call, over a store that does nothing.
func BenchmarkGate(b *testing.B) {
	p := open(b, Options{})
	p.inner.instead(func(context.Context, []counter.Check, []counter.Result) error { return nil })
	l := limittest.New(b, "1000000/1h")
	checks, results := []counter.Check{takeOf("a", l, 1)}, make([]counter.Result, 1)
	b.Run("with", func(b *testing.B) {
		for b.Loop() {
			_ = p.Take(context.Background(), checks, results)
		}
	})
	b.Run("without", func(b *testing.B) {
		for b.Loop() {
			_ = p.inner.Take(context.Background(), checks, results)
		}
	})
}

// TestTheLastAnswerIsKnownWhileInUse: for each algorithm, the store's last answer is remembered
// until the counter is unused again.
func TestTheLastAnswerIsKnownWhileInUse(t *testing.T) {
	for text, after := range map[string]map[counter.Micros]int64{
		"10/1m fixed_window":   {0: 7, 59 * counter.Second: 7, counter.Minute: 0},
		"10/1m sliding_window": {0: 7, 59 * counter.Second: 7, counter.Minute: 0},
		"10/1m sliding_log":    {0: 7, 59 * counter.Second: 7, counter.Minute: 0},
		"10/1m burst 10":       {0: 7, 6 * counter.Second: 6, 9 * counter.Second: 6, 12 * counter.Second: 5, counter.Minute: 0},
	} {
		t.Run(text, func(t *testing.T) {
			p, l := open(t, Options{}), limittest.New(t, text)
			check := takeOf("a", l, 1)
			if got := p.Used(&check); got != 0 {
				t.Errorf("%d units are used of a counter that nothing is known of", got)
			}
			for range 7 {
				p.ask(check)
			}
			for span, want := range after {
				p.setClocks(span)
				if got := p.Used(&check); got != want {
					t.Errorf("after %v: %d units are used, want %d", span, got, want)
				}
			}
		})
	}
}

// TestUsageIsBounded: the table of used units has a fixed size.
func TestUsageIsBounded(t *testing.T) {
	u := newUsage(64)
	s := newSeeds()
	for i := range 10_000 {
		u.learn(s.identify(fmt.Append(nil, i)), 1, counter.Micros(i+2), use{units: 1, at: 1})
	}
	known := 0
	for i := range 10_000 {
		if found, _ := u.recall(s.identify(fmt.Append(nil, i)), 1); found.units > 0 {
			known++
		}
	}
	if known == 0 || known > 64 {
		t.Errorf("%d counters are known", known)
	}
}
