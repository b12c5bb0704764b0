// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/limittest"
)

// ofSource returns a request of a source that waits at a gate.
func ofSource(source uint32) *queued {
	return &queued{checks: []counter.Check{{Source: source}}}
}

// TestABurstDelaysNoOtherSource: at a counter that all clients share, the request of another source
// is among the next two calls, however many requests of one source wait.
func TestABurstDelaysNoOtherSource(t *testing.T) {
	const n = 5000
	b := &burst{rig: open(t, Options{})}
	asked, step, l := make(chan uint32, n+gateCallsMax+1), make(chan struct{}), limittest.New(t, "1000000/1h")
	b.inner.instead(func(ctx context.Context, checks []counter.Check, results []counter.Result) error {
		asked <- checks[0].Source
		<-step
		return b.inner.of.Take(ctx, checks, results)
	})
	of := func(source uint32) counter.Check {
		c := takeOf("everyone", l, 1)
		c.Source = source
		return c
	}
	for range gateCallsMax + n {
		b.running.Go(func() { b.ask(context.Background(), of(1)) })
	}
	b.queues(n)
	eventually.Until(t, time.Minute, "the calls are under way", func() bool { return len(asked) == gateCallsMax })
	b.running.Go(func() { b.ask(context.Background(), of(2)) })
	b.queues(n + 1)
	for range gateCallsMax {
		<-asked
	}
	for range 2 {
		step <- struct{}{}
	}
	if first, second := <-asked, <-asked; first+second != 3 {
		t.Errorf("the next calls are of the sources %d and %d, want one of each source", first, second)
	}
	close(step)
	b.running.Wait()
	if a := b.admitted.Load(); a != gateCallsMax+n+1 {
		t.Errorf("%d admitted, %d denied, %d failed", a, b.denied.Load(), b.failed.Load())
	}
	b.isIdle()
}

// TestTurnsKeepTheOrder: the requests of one source leave in the order of arrival, and the sources
// take turns, even after requests were removed or put back.
func TestTurnsKeepTheOrder(t *testing.T) {
	var queue turns
	var want []*queued // the requests of source 3 and of source 1, alternately
	for range 3 {
		one, two, three := ofSource(1), ofSource(2), ofSource(3)
		queue.push(three)
		queue.push(two)
		queue.push(one)
		want = append(want, three, one)
		defer func() {
			if queue.remove(two) {
				t.Error("a request is removed twice")
			}
		}()
		if !queue.remove(two) {
			t.Error("a request that waits is not removed")
		}
	}
	var newer turns
	newer.push(ofSource(1))
	newer.push(ofSource(4))
	want = append(want[:2:2], append([]*queued{newer.lines[4].first}, append(want[2:], newer.lines[1].first)...)...)
	earlier := queue
	newer.prepend(earlier)
	queue = newer
	for i, q := range want {
		if got := queue.pop(); got != q {
			t.Fatalf("request %d is not the one whose turn it is", i)
		}
	}
	if queue.pop() != nil || queue.peek() != nil || queue.waiting != 0 || len(queue.lines) != 0 {
		t.Errorf("an empty queue has %d requests and %d lines", queue.waiting, len(queue.lines))
	}
}

// TestTurnsLoseNothing: after any pushes, removals, moves and pops, a queue has exactly the
// requests that are expected.
func TestTurnsLoseNothing(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var queue turns
	var have []*queued
	for range 100_000 {
		switch random.IntN(8) {
		case 0, 1, 2:
			q := ofSource(random.Uint32N(3 * linesKept))
			queue.push(q)
			have = append(have, q)
		case 3, 4:
			if len(have) > 0 {
				at := random.IntN(len(have))
				if !queue.remove(have[at]) {
					t.Fatal("a request that waits is not removed")
				}
				have = slices.Delete(have, at, at+1)
			}
		case 5:
			earlier := queue
			queue = turns{}
			q := ofSource(random.Uint32N(3 * linesKept))
			queue.push(q)
			have = append(have, q)
			queue.prepend(earlier)
		default:
			q := queue.peek()
			if queue.pop() != q || q == nil != (len(have) == 0) {
				t.Fatal("the request whose turn it is is not removed")
			}
			have = slices.DeleteFunc(have, func(h *queued) bool { return h == q })
		}
		if queue.waiting != len(have) {
			t.Fatalf("%d requests wait, want %d", queue.waiting, len(have))
		}
	}
	for len(have) > 0 {
		q := queue.pop()
		at := slices.Index(have, q)
		if at < 0 {
			t.Fatal("a request leaves twice")
		}
		have = slices.Delete(have, at, at+1)
	}
	if queue.first != nil || queue.last != nil || len(queue.lines) != 0 {
		t.Error("an empty queue has lines")
	}
}
