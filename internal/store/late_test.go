// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/fallback"
	"github.com/penstock/penstock/internal/store/leasestore"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/racescale"
	"github.com/penstock/penstock/internal/test/seed"
)

// lateTimeout is how long callers wait for a late store.
const lateTimeout = 50 * time.Millisecond

// unsentError is the error of a call that was not sent.
type unsentError struct{ error }

func (e unsentError) Unwrap() error { return e.error }
func (unsentError) Unsent() bool    { return true }

var (
	errLateAnswer = fmt.Errorf("no answer in time: %w", counter.ErrUnavailable)
	errNotSent    = unsentError{fmt.Errorf("not sent: %w", counter.ErrUnavailable)}
)

// lateStore executes calls at random instants and answers them later. A call whose answer takes
// longer than lateTimeout fails, but is executed nevertheless.
type lateStore struct {
	counter.Store
	running sync.WaitGroup

	mu     sync.Mutex
	random *rand.Rand
	late   time.Duration // the greatest delay before a call is executed, and also the greatest delay after that
	unsent int           // how many of 100 calls fail before they are sent
	lost   int           // how many of 100 calls are never executed and time out
}

// lateStore.delays chooses the delays of a call, or its failure, at random.
func (s *lateStore) delays() (before, after time.Duration, unsent, lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	draw := func() time.Duration { return time.Duration(s.random.Int64N(int64(s.late) + 1)) }
	return draw(), draw(), s.random.IntN(100) < s.unsent, s.random.IntN(100) < s.lost
}

// Take implements [counter.Store].
func (s *lateStore) Take(_ context.Context, checks []counter.Check, results []counter.Result) error {
	before, after, unsent, lost := s.delays()
	if unsent {
		return errNotSent
	}
	sent := slices.Clone(checks)
	for i := range sent {
		sent[i].Key = slices.Clone(sent[i].Key)
	}
	answers, answered := make([]counter.Result, len(results)), make(chan error, 1)
	s.running.Go(func() {
		time.Sleep(before)
		if lost {
			return
		}
		err := s.Store.Take(context.Background(), sent, answers)
		time.Sleep(after)
		answered <- err
	})
	select {
	case err := <-answered:
		copy(results, answers)
		return err
	case <-time.After(lateTimeout):
		return errLateAnswer
	}
}

// lateNode is one process: its layers over a late store, and a record of the requests that it
// admitted.
type lateNode struct {
	leases *leasestore.Store
	store  *fallback.Store

	mu       sync.Mutex
	admitted map[string][]admission // by counter
}

// admission records units that were admitted at some instant between the beginning and the end of a
// request.
type admission struct {
	begin, end counter.Micros
	cost       int64
}

func newLateNode(t *testing.T, redis counter.Store, nodes int) *lateNode {
	t.Helper()
	leases, err := leasestore.New(redis, leasestore.Options{Timeout: lateTimeout})
	if err != nil {
		t.Fatal(err)
	}
	return &lateNode{leases: leases, admitted: map[string][]admission{},
		store: fallback.New(leases, fallback.Options{Counts: fallback.NewCounts(lateMemory(t)), Known: leases.Used, Nodes: func() int { return nodes }})}
}

// lateMemory returns a store that counts in memory.
func lateMemory(t *testing.T) *memstore.Store {
	t.Helper()
	s, err := memstore.New(memstore.Options{CountersMax: 1 << 10, BytesMax: memstore.BytesMaxLeast})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// lateNode.ask sends a request and records it if it is admitted.
func (n *lateNode) ask(checks []counter.Check) {
	results := make([]counter.Result, len(checks))
	begin := counter.Micros(time.Now().UnixMicro())
	err := n.store.Take(context.Background(), checks, results)
	end := counter.Micros(time.Now().UnixMicro())
	for i := range results {
		if err != nil || results[i].Denied {
			return
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range checks {
		key := string(checks[i].Key)
		n.admitted[key] = append(n.admitted[key], admission{begin, end, checks[i].Cost})
	}
}

// excessOf returns the greatest number of units by which the admissions of one counter exceed what
// the limit allows in a span. An admission counts in a span only if it lies entirely within the
// span.
func excessOf(admitted []admission, l *counter.Limit) (excess int64) {
	for _, first := range admitted {
		var spans [][2]counter.Micros
		switch l.Algorithm() {
		case counter.FixedWindow, counter.SlidingWindow:
			start := first.begin - first.begin%l.Window()
			spans = append(spans, [2]counter.Micros{start, start + l.Window()})
		case counter.SlidingLog:
			spans = append(spans, [2]counter.Micros{first.begin, first.begin + l.Window()})
		case counter.TokenBucket:
			for _, last := range admitted {
				if last.end >= first.begin {
					spans = append(spans, [2]counter.Micros{first.begin, last.end + 1})
				}
			}
		}
		for _, span := range spans {
			excess = max(excess, unitsIn(admitted, span)-allowed(l, span[1]-span[0]))
		}
	}
	return excess
}

// unitsIn returns the sum of the units of the admissions that lie within a span.
func unitsIn(admitted []admission, span [2]counter.Micros) (units int64) {
	for _, a := range admitted {
		if a.begin >= span[0] && a.end < span[1] {
			units += a.cost
		}
	}
	return units
}

// allowed returns the number of units that a limit allows in a span.
func allowed(l *counter.Limit, span counter.Micros) int64 {
	if l.Algorithm() != counter.TokenBucket {
		return l.Capacity()
	}
	return l.Capacity() + l.Count()*int64(span)/int64(l.Window()) + 1
}

// TestLateAnswers: over a store that works but answers late, a node never admits more than the
// limit. The test adds up the units of calls that the store answered in time, of calls that it
// charged but answered too late, and of requests that the node admitted on its own.
func TestLateAnswers(t *testing.T) {
	random := seed.Random(t)
	for _, text := range []string{"60/1s fw", "60/1s sw", "60/1s sl", "60/1s tb", "30/500ms burst 90"} {
		for _, onError := range []counter.OnError{counter.OnErrorAllow, counter.OnErrorLocal} {
			for _, leased := range []bool{false, true} {
				for _, nodes := range []int{1, 2} {
					t.Run(fmt.Sprintf("%s, on_error %v, leased %t, %d nodes", text, onError, leased, nodes), func(t *testing.T) {
						for range racescale.Fewer(6) {
							number := random.Uint64()
							synctest.Test(t, func(t *testing.T) {
								check := counter.Check{Limit: limittest.New(t, text), Lease: leased, OnError: onError}
								lateBursts(t, rand.New(rand.NewPCG(number, 0)), check, nodes)
							})
						}
					})
				}
			}
		}
	}
}

// lateBursts sends bursts to nodes over one late store, and compares the admissions of each burst
// with the limit.
func lateBursts(t *testing.T, random *rand.Rand, check counter.Check, nodes int) {
	time.Sleep(time.Duration(random.Int64N(int64(time.Second))))
	redis := &lateStore{Store: lateMemory(t), random: rand.New(rand.NewPCG(random.Uint64(), 1))}
	var all []*lateNode
	for range nodes {
		all = append(all, newLateNode(t, redis, nodes))
	}
	var asking sync.WaitGroup
	for range 12 {
		redis.mu.Lock()
		redis.late = []time.Duration{0, time.Millisecond, lateTimeout / 2, lateTimeout, 3 * lateTimeout}[random.IntN(5)]
		redis.unsent, redis.lost = []int{0, 0, 20}[random.IntN(3)], []int{0, 0, 5}[random.IntN(3)]
		redis.mu.Unlock()
		for range random.IntN(100) {
			checks := lateChecks(random, check)
			n, wait := all[random.IntN(nodes)], time.Duration(random.Int64N(int64(lateTimeout)))
			asking.Go(func() {
				time.Sleep(wait)
				n.ask(checks)
			})
		}
		time.Sleep(time.Duration(random.Int64N(int64(300 * time.Millisecond))))
	}
	asking.Wait()
	for i, n := range all {
		for key, admitted := range n.admitted {
			if excess := excessOf(admitted, check.Limit); excess > 0 {
				t.Errorf("node %d admitted %d units more than the limit for %s", i, excess, key)
			}
		}
		if err := n.leases.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
	redis.running.Wait()
}

// lateChecks returns the checks of a request by one of two clients. Some requests also have a check
// that counts both clients together.
func lateChecks(random *rand.Rand, check counter.Check) (checks []counter.Check) {
	keys := []string{[]string{"a", "a", "a", "b"}[random.IntN(4)], "all"}
	for _, key := range keys[:1+random.IntN(2)] {
		check.Key, check.ScopeLen, check.Cost = []byte("rl1:late:r:{"+key+"}:x"), 11, 1+random.Int64N(1+random.Int64N(3))
		checks = append(checks, check)
	}
	return checks
}
