// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"math/rand/v2"
	"testing"

	"github.com/penstock/penstock/core/counter"
)

func callOf(source uint32) *call { return &call{source: source, checks: 1} }

// TestSourcesTakeTurns: if one source has queued a thousand calls, calls of other sources are still
// among the first to be sent.
func TestSourcesTakeTurns(t *testing.T) {
	q := newQueue(10_000, 1)
	for range 1000 {
		q.push(callOf(7))
	}
	others := []uint32{0, 6, 8, 63, 64, 200, 255}
	for _, source := range others {
		q.push(callOf(source))
	}
	seen := map[uint32]int{}
	for _, c := range q.take(nil, 2*len(others), 1000) {
		seen[c.source]++
	}
	for _, source := range others {
		if seen[source] != 1 {
			t.Errorf("source %d: %d calls were taken, want 1", source, seen[source])
		}
	}
	if seen[7] != len(others) {
		t.Errorf("%d calls of the source with many were taken: the others' places are its own", seen[7])
	}
	if n := len(q.take(nil, 10_000, 10_000)); n != 1000-len(others) || q.len() != 0 || len(q.take(nil, 1, 1)) != 0 {
		t.Errorf("%d were left, and then %d", n, q.len())
	}
}

// TestFullQueueTakesFromTheLongest: a source that fills the queue loses its own calls, and other
// sources find room.
func TestFullQueueTakesFromTheLongest(t *testing.T) {
	q := newQueue(100, 1)
	first := callOf(1)
	q.push(first)
	for range 99 {
		q.push(callOf(1))
	}
	own := callOf(1)
	if q.push(own) != own {
		t.Error("the source that fills the queue takes from another")
	}
	if other := callOf(2); q.push(other) != first || q.len() != 100 {
		t.Errorf("another source finds no room; %d wait", q.len())
	}
}

// TestQueueKeepsEveryCall: under random pushes and takes, no call is lost or duplicated, and calls
// of one source keep their order.
func TestQueueKeepsEveryCall(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	q, waits := newQueue(500, 1), map[uint32][]*call{}
	waiting := 0
	remove := func(c *call) {
		line := waits[c.source]
		if len(line) == 0 || line[0] != c {
			t.Fatalf("seed %d: a call of source %d is not the first of it", seed, c.source)
		}
		waits[c.source] = line[1:]
		waiting--
	}
	for range 100_000 {
		if random.IntN(3) > 0 {
			c := callOf(uint32(random.IntN(sourceQueues)) >> random.IntN(8))
			refused := q.push(c)
			if refused == c {
				continue
			}
			if refused != nil {
				remove(refused)
			}
			waits[c.source] = append(waits[c.source], c)
			waiting++
		} else {
			for _, c := range q.take(nil, random.IntN(10), 10) {
				remove(c)
			}
		}
		if q.len() != waiting || waiting > 500 {
			t.Fatalf("seed %d: %d wait, want %d", seed, q.len(), waiting)
		}
	}
}

// TestSourcesUseAllQueues: sources that differ only in their highest bits use different queues.
func TestSourcesUseAllQueues(t *testing.T) {
	used := map[uint32]int{}
	for i := range uint32(sourceQueues) {
		used[sourceOf(&counter.Check{Key: []byte("k"), Source: i<<16 | 1})%sourceQueues]++
	}
	for at, n := range used {
		if n > 16 {
			t.Errorf("%d of %d sources share queue %d", n, sourceQueues, at)
		}
	}
}

// TestSourceOf: calls of one client address are one source, whatever counters they use. Without an
// address the counter's slot is the source.
func TestSourceOf(t *testing.T) {
	a := sourceOf(&counter.Check{Key: []byte("rl1:{a}"), Source: 1<<31 | 1})
	if b := sourceOf(&counter.Check{Key: []byte("rl1:{b}"), Source: 1<<31 | 1}); a != b {
		t.Errorf("%d, then %d", a, b)
	}
	if a, b := sourceOf(&counter.Check{Key: []byte("rl1:{a}:1")}), sourceOf(&counter.Check{Key: []byte("rl1:{a}:2")}); a != b {
		t.Errorf("%d, then %d of one tag", a, b)
	}
}
