// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// admits sends n requests for a counter to a store, and returns how many of them it admits.
func admits(t *testing.T, in *store.Store, n int, key, limit string, onError counter.OnError) (admitted int) {
	t.Helper()
	l, err := counter.ParseLimit(limit)
	if err != nil {
		t.Fatal(err)
	}
	checks := []counter.Check{{Key: []byte("rl1:pool:r:{" + key + "}:30d"), Limit: &l, Cost: 1, OnError: onError}}
	for range n {
		results := make([]counter.Result, 1)
		if err := in.Requests.Take(t.Context(), checks, results); err != nil {
			t.Fatal(err)
		}
		if !results[0].Denied {
			admitted++
		}
	}
	return admitted
}

// timed returns options of a store with a given timeout, so that the settings of two stores can
// differ.
func timed(pool *store.Pool, url string, timeout time.Duration) store.Options {
	return store.Options{Pool: pool, Redis: &redisstore.Options{URL: url, Timeout: timeout}}
}

// TestStoresOfAPoolCountTogether: stores over the same servers together admit no more than the
// limit while Redis is away. When one of them closes, the other charges what the closed store owes.
func TestStoresOfAPoolCountTogether(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket"} {
		t.Run(algorithm, func(t *testing.T) {
			server, pool, limit := redistest.StartTCP(t), new(store.Pool), "10/30d "+algorithm
			old, err := store.Open(timed(pool, server.URL(), 100*time.Millisecond))
			if err != nil {
				t.Fatal(err)
			}
			if n := admits(t, old, 2, "x", limit, counter.OnErrorAllow); n != 2 {
				t.Fatalf("Redis admits %d of 2", n)
			}
			server.Pause()
			if n := admits(t, old, 3, "x", limit, counter.OnErrorAllow); n != 3 {
				t.Fatalf("the process admits %d of 3", n)
			}
			next := open(t, timed(pool, server.URL(), 110*time.Millisecond))
			both := admits(t, next, 1, "x", limit, counter.OnErrorAllow) + admits(t, old, 1, "x", limit, counter.OnErrorAllow)
			if both != 2 {
				t.Errorf("both admit %d of 2", both)
			}
			if err := old.Close(); err != nil {
				t.Error(err)
			}
			if n := admits(t, next, 10, "x", limit, counter.OnErrorAllow); n != 3 {
				t.Errorf("%d are admitted after 7 of 10", n)
			}
			server.Resume()
			eventually.Until(t, 10*time.Second, "Redis is back", func() bool { return next.Reachable(t.Context()) == nil && !next.Away() })
			if n := admits(t, next, 10, "x", limit, counter.OnErrorAllow); n != 0 {
				t.Errorf("%d more are admitted when Redis is back", n)
			}
		})
	}
}

// TestOtherStoresCountApart: a store counts by itself if it uses another database or another pool,
// or has no pool, or opens after all others have closed.
func TestOtherStoresCountApart(t *testing.T) {
	server, pool := redistest.StartTCP(t), new(store.Pool)
	server.Stop()
	first, err := store.Open(timed(pool, server.URL(), time.Second))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []struct {
		what    string
		options store.Options
		want    int
	}{
		{"the same place", timed(pool, server.URL()+"/0", time.Second), 4},
		{"another database", timed(pool, server.URL()+"/1", time.Second), 10},
		{"another pool", timed(new(store.Pool), server.URL(), time.Second), 10},
		{"no pool", timed(nil, server.URL(), time.Second), 10},
	} {
		before := admits(t, first, 6, o.what, "10/30d", counter.OnErrorAllow)
		s, err := store.Open(o.options)
		if err != nil {
			t.Fatal(err)
		}
		if n := admits(t, s, 10, o.what, "10/30d", counter.OnErrorAllow); before != 6 || n != o.want {
			t.Errorf("%s: %d of 10 are admitted after %d, want %d after 6", o.what, n, before, o.want)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if n := admits(t, open(t, timed(pool, server.URL(), time.Second)), 10, "the same place", "10/30d", counter.OnErrorAllow); n != 10 {
		t.Errorf("%d of 10 are admitted after all stores have closed", n)
	}
}

// TestTheNumberOfNodesIsRemembered: a store that has not reached Redis yet admits the share of its
// node under on_error: local, because an earlier store of the pool knows the number of nodes.
func TestTheNumberOfNodesIsRemembered(t *testing.T) {
	server, pool := redistest.StartTCP(t), new(store.Pool)
	const limit = "10/30d fixed_window"
	old := open(t, timed(pool, server.URL(), time.Second))
	other := open(t, timed(nil, server.URL(), time.Second))
	for _, one := range []*store.Store{old, other} {
		if n := admits(t, one, 1, "x", limit, counter.OnErrorLocal); n != 1 {
			t.Fatalf("Redis admits %d of 1", n)
		}
	}
	eventually.Until(t, 10*time.Second, "both nodes are known", func() bool { return old.Redis.Nodes() == 2 })
	server.Stop()
	for n := range 2 { // the second one is opened after a store that never reached Redis
		next, err := store.Open(timed(pool, server.URL(), time.Duration(2+n)*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := next.Close(); err != nil {
				t.Error(err)
			}
		})
		if admitted := admits(t, next, 10, fmt.Sprint(n), limit, counter.OnErrorLocal); admitted != 5 {
			t.Errorf("store %d admits %d of 10 as one of two nodes, want 5", n, admitted)
		}
	}
}

// TestAnotherAppDoesNotHideTheNumberOfNodes: a store opens after a store that does not need the
// number of nodes. The new store still gets the number that a third store knows, or knew until it
// closed.
func TestAnotherAppDoesNotHideTheNumberOfNodes(t *testing.T) {
	const limit = "10/30d fixed_window"
	server, pool := redistest.StartTCP(t), new(store.Pool)
	old, err := store.Open(timed(pool, server.URL(), time.Second))
	if err != nil {
		t.Fatal(err)
	}
	open(t, timed(pool, server.URL(), 5*time.Second)) // this store counts nothing under on_error: local
	for _, one := range []*store.Store{old, open(t, timed(nil, server.URL(), time.Second))} {
		if n := admits(t, one, 1, "x", limit, counter.OnErrorLocal); n != 1 {
			t.Fatalf("Redis admits %d of 1", n)
		}
	}
	eventually.Until(t, 10*time.Second, "both nodes are known", func() bool { return old.Redis.Nodes() == 2 })
	server.Stop()
	for n := range 2 {
		next := open(t, timed(pool, server.URL(), time.Duration(2+n)*time.Second))
		if admitted := admits(t, next, 10, fmt.Sprint(n), limit, counter.OnErrorLocal); admitted != 5 {
			t.Errorf("store %d admits %d of 10 as one of two nodes, want 5", n, admitted)
		}
		if n == 0 {
			if err := old.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
