// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// take charges one unit of a limit and returns the result.
func take(t *testing.T, in counter.Store, limit string, onError counter.OnError) (counter.Result, error) {
	t.Helper()
	l, err := counter.ParseLimit(limit)
	if err != nil {
		t.Fatal(err)
	}
	check := counter.Check{Key: []byte("rl1:open:r:{ip:192.0.2.1}:3600s:fw"), Limit: &l, Cost: 1, OnError: onError}
	results := make([]counter.Result, 1)
	err = in.Take(context.Background(), []counter.Check{check}, results)
	return results[0], err
}

func open(t *testing.T, o store.Options) *store.Store {
	t.Helper()
	s, err := store.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestTheZeroOptionsCountInMemory(t *testing.T) {
	s := open(t, store.Options{})
	for i, denied := range []bool{false, true} {
		if r, err := take(t, s.Requests, "1/1h fixed_window", counter.OnErrorDeny); err != nil || r.Denied != denied {
			t.Errorf("request %d: denied %t, error %v", i, r.Denied, err)
		}
	}
	if s.Memory == nil || s.Memory.Len() != 1 || s.Redis != nil || s.Leases != nil {
		t.Errorf("layers: %+v, want one counter in memory", s)
	}
	if err := s.Reachable(t.Context()); err != nil {
		t.Errorf("memory is not reachable: %v", err)
	}
}

// TestRedisIsStoodInFor: while Redis does not answer, on_error decides requests, each failed call
// is counted, and corrections fail.
func TestRedisIsStoodInFor(t *testing.T) {
	server := redistest.StartTCP(t)
	var failures atomic.Int64
	s := open(t, store.Options{Redis: &redisstore.Options{URL: server.URL(), Timeout: redisstore.TimeoutMax},
		Failed: func(error) { failures.Add(1) }})
	other := open(t, store.Options{Redis: &redisstore.Options{URL: server.URL(), Timeout: redisstore.TimeoutMax}})
	const limit = "2/1h fixed_window"
	for i, one := range []*store.Store{s, other} {
		if r, err := take(t, one.Requests, limit, counter.OnErrorDeny); err != nil || r.Denied {
			t.Fatalf("request %d: denied %t, error %v", i, r.Denied, err)
		}
	}
	if r, err := take(t, s.Requests, limit, counter.OnErrorDeny); err != nil || !r.Denied {
		t.Errorf("a third request of 2: denied %t, error %v", r.Denied, err)
	}
	if err := s.Reachable(t.Context()); err != nil || s.Away() {
		t.Errorf("Redis is not reachable: %v, or away", err)
	}
	server.Kill()
	if r, err := take(t, s.Requests, "100/1d token_bucket", counter.OnErrorLocal); err != nil || !r.Local || r.Denied {
		t.Errorf("without Redis, on_error local: %+v, %v", r, err)
	}
	if failures.Load() == 0 {
		t.Error("no failure was counted")
	}
	if _, err := take(t, s.Corrections, "100/1d token_bucket", counter.OnErrorLocal); err == nil {
		t.Error("a correction was made without Redis")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := s.Reachable(ctx); err == nil {
		t.Error("a dead Redis is reachable")
	}
	eventually.Until(t, 10*time.Second, "Redis is known to be away", func() bool {
		_, _ = take(t, s.Requests, limit, counter.OnErrorDeny) // on_error decides
		return s.Away()
	})
}

// TestWhatAStarvedRedisDidNotReceiveIsCharged: while a server has no time to set up a connection,
// this process admits requests on its own. Their units are charged as soon as the connection
// exists.
func TestWhatAStarvedRedisDidNotReceiveIsCharged(t *testing.T) {
	const limit, admitted = "100000/31d fixed_window", 4
	server := redistest.Start(t)
	server.Pause()
	s := open(t, store.Options{Redis: &redisstore.Options{URL: server.URL(), Timeout: 20 * time.Millisecond}})
	for i := range admitted {
		if r, err := take(t, s.Requests, limit, counter.OnErrorAllow); err != nil || r.Denied || !r.Local {
			t.Fatalf("request %d: %+v, error %v", i, r, err)
		}
	}
	server.Resume()
	asked := int64(0)
	eventually.Until(t, 20*time.Second, "Redis decides again", func() bool {
		asked++
		r, err := take(t, s.Requests, limit, counter.OnErrorAllow)
		return err == nil && !r.Local
	})
	r, err := take(t, s.Redis, limit, counter.OnErrorAllow)
	if used := 100_000 - r.Remaining; err != nil || used != admitted+asked+1 {
		t.Errorf("%d units are used, want %d; error %v", used, admitted+asked+1, err)
	}
}

func TestWrongOptionsAreNamed(t *testing.T) {
	for want, o := range map[string]store.Options{
		"bytes":  {BytesMax: 1},
		"scheme": {Redis: &redisstore.Options{URL: "http://localhost"}},
	} {
		s, err := store.Open(o)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %s", err, want)
		}
		if s != nil {
			t.Error(errors.New("a store was opened"))
		}
	}
}
