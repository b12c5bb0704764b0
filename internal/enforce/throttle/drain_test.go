// SPDX-License-Identifier: Apache-2.0

package throttle

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/seed"
)

// farStore is a store that is far away: each call travels for some time in each direction.
type farStore struct {
	counter.Store
	way func() time.Duration
}

func (s farStore) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	time.Sleep(s.way())
	err := s.Store.Take(ctx, checks, results)
	time.Sleep(s.way())
	return err
}

// admissionStore is a store that records when it admits requests.
type admissionStore struct {
	counter.Store
	start      time.Time
	admissions chan<- time.Duration
}

func (s admissionStore) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	err := s.Store.Take(ctx, checks, results)
	if checks[0].Op == counter.OpTake && !results[0].Denied {
		s.admissions <- time.Since(s.start)
	}
	return err
}

// sharedRule returns a throttle rule with a limit that all clients share.
func sharedRule(t *testing.T, limit string) policy.Rule {
	all := throttleRule(t, "all", limit, 2*counter.Second, 10_000)
	all.PerNone = true
	return all
}

// TestAQueueDrainsAfterABurst: a burst of 1,250 requests fills the queue of a limit of 1,000 a
// second, two milliseconds away from the store. The other requests, a third of the limit, are
// all admitted, and from 4 s after the burst none of them waits.
func TestAQueueDrainsAfterABurst(t *testing.T) {
	for _, limit := range []string{"1000/1s", "1000/1s fixed_window", "1000/1s burst 1000"} {
		withFrontOf(t, func(f *front) {
			if waiting := f.overload(time.Second / 340); waiting > 0 || f.lines.Waiting() > 0 {
				t.Errorf("%s: %d requests waited in the end, %d still wait", limit, waiting, f.lines.Waiting())
			}
		}, sharedRule(t, limit))
	}
}

// front.overload sends a request at each interval for 8 s, and a burst after 2 s. All requests must
// be admitted. The result is how many requests of the last 2 s have waited.
func (f *front) overload(every time.Duration) (waiting int) {
	f.store = farStore{f.store, func() time.Duration { return time.Millisecond }}
	var late atomic.Int64
	start := time.Now()
	send := func() {
		at := time.Since(start)
		d, end := f.request("/").decide(context.Background())
		if d.Denied() {
			f.t.Errorf("one each %v: a request is denied (%s) at %v", every, end, at)
		}
		if end != EndNone && at > 6*time.Second {
			late.Add(1)
		}
	}
	for n := 0; time.Since(start) < 8*time.Second; n++ {
		go send()
		if n == int(2*time.Second/every) {
			for range 1250 {
				go send()
			}
		}
		time.Sleep(every)
	}
	time.Sleep(time.Second)
	return int(late.Load())
}

// TestKnownUnitsLetTicketsAsk: as many tickets ask at the same time as units are known to be left,
// and a ticket that is denied returns to its place.
func TestKnownUnitsLetTicketsAsk(t *testing.T) {
	l, in := New(Options{}), Place{Key: []byte("k"), Max: 5, Cost: 1}
	answer := func(left int64) []Place { return []Place{{Key: in.Key, Max: in.Max, Cost: 1, Left: left}} }
	a, b, c, d, e := l.Join(in), l.Join(in), l.Join(in), l.Join(in), l.Join(in)
	want(t, "at first", listSignaled(a, b, c, d, e), "x....")
	if a.Ask(answer(0)) != -1 || b.Ask(answer(0)) != 0 {
		t.Error("not exactly one ticket asks before the first answer")
	}
	want(t, "a asks", listSignaled(b, c, d, e), "....")
	a.Answered(answer(2))
	a.Leave()
	want(t, "two units are left", listSignaled(b, c, d, e), "x...")
	b.Ask(answer(0))
	want(t, "b asks", listSignaled(c, d, e), "x..")
	c.Ask(answer(0))
	want(t, "b and c ask", listSignaled(d, e), "..")
	if l.Join(in) == nil || l.Join(in) != nil || !l.Busy(in.Key, &counter.Limit{}, 1) {
		t.Error("tickets that ask do not count")
	}
	b.Answered(answer(0))
	b.Move(in)
	want(t, "b is denied while c asks", listSignaled(b, d, e), "...")
	c.Answered(answer(9))
	if d.Ask(answer(0)) != 0 {
		t.Error("d asks, and b is ahead of it")
	}
	want(t, "c is admitted", listSignaled(b, d, e), "x..")
}

// TestAskingTicketsLeaveSpareUnits: a request need not queue if the known units suffice for it and
// for the tickets that ask. A ticket that needs more units than these leave waits until no other
// ticket asks.
func TestAskingTicketsLeaveSpareUnits(t *testing.T) {
	l, in := New(Options{}), Place{Key: []byte("k"), Max: 5, Cost: 2, Left: 5}
	a := l.Join(in)
	if !l.Busy(in.Key, &counter.Limit{}, 1) {
		t.Error("a has not asked yet")
	}
	a.Ask([]Place{in})
	if l.Busy(in.Key, &counter.Limit{}, 1) || l.Busy(in.Key, &counter.Limit{}, 2) || !l.Busy(in.Key, &counter.Limit{}, 1) {
		t.Error("of 5 units, 2 are for a, and 3 for others")
	}
	b := l.Join(in)
	if b.Ask([]Place{in}) != 0 {
		t.Error("b asks for more than is left")
	}
	listSignaled(b)
	a.Leave()
	want(t, "nobody asks", listSignaled(b), "x")
}

// TestFarStoresLoseNoTurn: with calls of 1 to 9 ms that overtake each other, and clients that
// leave, each second admits its limit, every other request is admitted, and no ticket remains.
func TestFarStoresLoseNoTurn(t *testing.T) {
	const limit, count = 100, 250
	withFrontOf(t, func(f *front) {
		random, start := rand.New(rand.NewPCG(seed.First(t), 1)), time.Now()
		ways := make(chan time.Duration, 1<<13)
		for range cap(ways) {
			ways <- time.Millisecond/2 + time.Duration(random.IntN(4000))*time.Microsecond
		}
		admissions := make(chan time.Duration, 2*count)
		f.store = farStore{admissionStore{f.store, start, admissions}, func() time.Duration { return <-ways }}
		for n := range count {
			ctx, leave := context.WithCancel(context.Background())
			if n%10 == 9 {
				time.AfterFunc(time.Duration(random.IntN(500))*time.Millisecond, leave)
			}
			go func() {
				defer leave()
				if d, end := f.request("/").decide(ctx); d.Denied() && end != EndGone {
					t.Errorf("request %d ended %q", n, end)
				}
			}()
			time.Sleep(time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		admitted := [3]int{}
		for range len(admissions) {
			admitted[(<-admissions)/time.Second]++
		}
		if admitted[0] != limit || admitted[1] != limit || admitted[2] > limit || len(f.lines.queues) != 0 {
			t.Errorf("admitted in each second: %d, with %d queues left, want %d", admitted, len(f.lines.queues), limit)
		}
	}, sharedRule(t, "100/1s fixed_window"))
}
