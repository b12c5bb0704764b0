// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// patience bounds the wait for events, which can take long on a busy machine.
const patience = 20 * time.Second

// overRedis returns a store with its own client of the server, as another process would have. If
// via is not nil, calls are sent through it.
func overRedis(t testing.TB, server *redistest.Server, timeout time.Duration, via *between) *Store {
	t.Helper()
	client, err := redisstore.New(redisstore.Options{URL: server.URL(), Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	var inner counter.Store = client
	if via != nil {
		via.of, inner = client, via
	}
	s, err := New(inner, Options{Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		_ = client.Close()
	})
	return s
}

// hammer makes requests from eight goroutines for each node.
func hammer(books *ledger, nodes []*Store, times int, checks ...counter.Check) {
	var all sync.WaitGroup
	for _, s := range nodes {
		for range 8 {
			all.Go(func() {
				for range times {
					_ = books.ask(s, checks...)
				}
			})
		}
	}
	all.Wait()
}

// TestNeverOverOnRedis: three nodes with eight goroutines each share one limit. One node dies with
// the units that it holds. The others, and then a store without leases, use up the rest exactly.
func TestNeverOverOnRedis(t *testing.T) {
	const count = 20_000
	const timeout = 10 * time.Second // the units of a call that times out would be lost, too
	server := redistest.Start(t)
	for _, text := range []string{"20000/31d fixed_window", "20000/31d", "20000/31d burst 20000"} {
		t.Run(text, func(t *testing.T) {
			l, books, mortal := limittest.New(t, text), &ledger{}, &between{}
			nodes := []*Store{overRedis(t, server, timeout, mortal), overRedis(t, server, timeout, nil),
				overRedis(t, server, timeout, nil)}
			c := leasedOf("rl1:shop:"+text, l, 1)
			hammer(books, nodes, 500, c)
			if books.denied+books.failed > 0 {
				t.Fatalf("of %d requests %d are denied and %d failed", books.requests, books.denied, books.failed)
			}
			eventually.Until(t, patience, "no call is under way", func() bool { return nodes[0].active.Load() == 0 })
			lost := nodes[0].Stats().InHand
			mortal.instead(func(context.Context, []counter.Check, []counter.Result) error { return counter.ErrUnavailable })
			before := server.Calls("evalsha")
			hammer(books, nodes[1:], 700, c)
			if calls := server.Calls("evalsha") - before; calls > 700 {
				t.Errorf("%d calls for 11200 requests", calls)
			}
			if books.failed > 0 {
				t.Errorf("%d requests failed", books.failed)
			}
			for _, s := range nodes[1:] {
				if err := s.Close(context.Background()); err != nil {
					t.Error(err)
				}
			}
			c.Lease = false
			for exact := overRedis(t, server, timeout, nil); books.denied == 0 || !books.isDenied(t, exact, c); {
			}
			got := books.admitted[string(c.Key)]
			least := count - lost
			if l.Algorithm() == counter.TokenBucket {
				// tokens that were refilled while units were leased are not credited
				least -= count / 100
			}
			if got > count || got < least {
				t.Errorf("%d admitted of %d, %d were lost with a node", got, count, lost)
			}
		})
	}
}

// TestBatchesOnRedis: requests come in batches, as the bridge's do, each under two leased limits.
func TestBatchesOnRedis(t *testing.T) {
	server, books := redistest.Start(t), &ledger{}
	nodes := []*Store{overRedis(t, server, time.Second, nil), overRedis(t, server, time.Second, nil)}
	few, many := leasedOf("rl1:shop:few", limittest.New(t, "5000/31d"), 1), leasedOf("rl1:shop:many", limittest.New(t, "1000000/31d fixed_window"), 1)
	batch := make([][]counter.Check, 20)
	for i := range batch {
		batch[i] = []counter.Check{many, few}
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 50 {
				books.askAll(nodes[i%2], batch...)
			}
		})
	}
	all.Wait()
	inHand := nodes[0].Stats().InHand + nodes[1].Stats().InHand
	if got := books.admitted["rl1:shop:few"]; got > 5000 || got < 4500 || books.failed > 0 || books.denied != 8000-int(got) {
		t.Errorf("%d admitted of 5000 for 8000 requests, %d denied, %d failed, %d units in hand", got, books.denied, books.failed, inHand)
	}
	if calls := nodes[0].Stats().Calls + nodes[1].Stats().Calls; calls > 2000 {
		t.Errorf("%d calls for 8000 requests", calls)
	}
	for _, s := range nodes {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
	looks := []counter.Check{{Key: few.Key, Limit: few.Limit, Op: counter.OpLook}, {Key: many.Key, Limit: many.Limit, Op: counter.OpLook}}
	results := make([]counter.Result, 2)
	if err := nodes[0].Take(context.Background(), looks, results); err != nil {
		t.Fatal(err)
	}
	admitted := books.admitted["rl1:shop:few"]
	if results[0].Remaining != 5000-admitted || results[1].Remaining != 1_000_000-admitted {
		t.Errorf("%+v remain, %d were admitted", results, admitted)
	}
}

// ledger.isDenied makes one more request and reports whether it was denied.
func (l *ledger) isDenied(t testing.TB, s *Store, c counter.Check) bool {
	t.Helper()
	before := l.denied
	if err := l.ask(s, c); err != nil {
		t.Fatal(err)
	}
	return l.denied > before
}

// TestRedisThatHangsIsNotChargedTwice: the units of a call made while Redis hung can be charged,
// but are used at most once.
func TestRedisThatHangsIsNotChargedTwice(t *testing.T) {
	const count = 1_000_000_000
	server := redistest.Start(t)
	l, books := limittest.New(t, "1000000000/31d fixed_window"), &ledger{}
	s, c := overRedis(t, server, 30*time.Millisecond, nil), leasedOf("rl1:shop:a", l, 1)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for ctx.Err() == nil {
				_ = books.ask(s, c)
			}
		})
	}
	admitted := func() int64 { return books.count(func() int64 { return books.admitted[string(c.Key)] }) }
	failed := func() int64 { return books.count(func() int64 { return int64(books.failed) }) }
	for range 3 {
		enough, broken := admitted()+5000, failed()+50
		eventually.Until(t, patience, "requests are admitted", func() bool { return admitted() >= enough })
		server.Pause()
		eventually.Until(t, patience, "requests fail", func() bool { return failed() >= broken })
		server.Resume()
	}
	stop()
	all.Wait()
	if err := s.Close(context.Background()); err != nil {
		t.Error(err)
	}
	look, results := []counter.Check{{Key: c.Key, Limit: l, Op: counter.OpLook, Cost: 1}}, make([]counter.Result, 1)
	eventually.Until(t, patience, "redis answers", func() bool { return s.Take(context.Background(), look, results) == nil })
	if charged := count - results[0].Remaining; admitted() > charged {
		t.Errorf("%d admitted, %d charged", admitted(), charged)
	}
}

// ledger.count reads one of the ledger's numbers while it holds the lock.
func (l *ledger) count(figure func() int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return figure()
}
