// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/redistest"
)

// fill makes a server's memory full, or no longer full.
func fill(t *testing.T, s *redistest.Server, full bool) {
	t.Helper()
	most := "0"
	if full {
		most = "1"
	}
	configure(t, s, "config", "set", "maxmemory", most)
}

// isFull reports whether a call charged nothing and failed because the server's memory is full.
func isFull(err error) bool {
	var f *Failure
	return errors.As(err, &f) && f.Unsent() && strings.Contains(err.Error(), "OOM")
}

// TestCountersThatExistCountInAFullMemory: while the memory is full, a counter that exists admits
// exactly its limit, and then denies. No key is added, and no log gets longer.
func TestCountersThatExistCountInAFullMemory(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL(), Timeout: slowest})
	for a := counter.FixedWindow; a <= counter.TokenBucket; a++ {
		l := mustLimit(t, a, 5, 30*counter.Day)
		check := counter.Check{Key: []byte("rl1:n:r:{ip:1}:" + a.Label()), Limit: &l, Cost: 1, Refundable: true}
		ask(t, s, check)
		size := server.Client().DBSize(t.Context()).Val()
		fill(t, server, true)
		admitted := 1
		for range 20 {
			if r := ask(t, s, check); !r[0].Denied {
				admitted++
			}
		}
		if admitted != 5 {
			t.Errorf("%s: %d of 5 were admitted", a.Label(), admitted)
		}
		if n := server.Client().DBSize(t.Context()).Val(); n != size {
			t.Errorf("%s: %d keys, want the %d of before", a.Label(), n, size)
		}
		if a == counter.SlidingLog {
			if n := server.Client().ZCard(t.Context(), string(check.Key)).Val(); n != 1 {
				t.Errorf("the log has %d marks, want 1", n)
			}
		}
		fill(t, server, false)
		if r := ask(t, s, check); !r[0].Denied {
			t.Errorf("%s: %+v after the memory is free, want a denial", a.Label(), r[0])
		}
	}
	if s.Stats().Breaker != BreakerClosed {
		t.Errorf("the breaker is %s", s.Stats().Breaker)
	}
}

// TestNewCountersInAFullMemory: a call with a new counter fails, charges nothing, and does not open
// the breaker. If a counter that exists denies the call, the denial is the answer.
func TestNewCountersInAFullMemory(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL(), Timeout: slowest})
	for a := counter.FixedWindow; a <= counter.TokenBucket; a++ {
		l := mustLimit(t, a, 3, 30*counter.Day)
		known := counter.Check{Key: []byte("rl1:n:known:{ip:1}:" + a.Label()), Limit: &l, Cost: 1}
		invented := func(i int) counter.Check {
			return counter.Check{Key: fmt.Appendf(nil, "rl1:n:new:{ip:%d}:%s", i, a.Label()), Limit: &l, Cost: 1}
		}
		ask(t, s, known)
		fill(t, server, true)
		size := server.Client().DBSize(t.Context()).Val()
		for i := range 50 {
			for _, checks := range [][]counter.Check{{invented(i)}, {known, invented(i)}, {invented(i), known}} {
				err := s.Take(context.Background(), checks, make([]counter.Result, len(checks)))
				if !isFull(err) {
					t.Fatalf("%s: %v, want that the memory is full", a.Label(), err)
				}
				if f := err.(*Failure); !f.NewCounter(invented(i).Key) || f.NewCounter(known.Key) {
					t.Fatalf("%s: %v names %q, want only the new counter", a.Label(), err, f.newKeys)
				}
			}
		}
		if r := ask(t, s, known); r[0].Remaining != 1 || r[0].Denied {
			t.Errorf("%s: %+v, want a charge beside the one before", a.Label(), r[0])
		}
		ask(t, s, known)
		if r := ask(t, s, known, invented(0)); !r[0].Denied {
			t.Errorf("%s: %+v, want a denial", a.Label(), r[0])
		}
		if n := server.Client().DBSize(t.Context()).Val(); n != size {
			t.Errorf("%s: %d keys, want the %d of before", a.Label(), n, size)
		}
		fill(t, server, false)
		ask(t, s, invented(0))
	}
	if s.Stats().Breaker != BreakerClosed {
		t.Errorf("the breaker is %s", s.Stats().Breaker)
	}
}

// TestCallsThatNeedNotWriteInAFullMemory tests calls that need no memory while Redis has none left:
// a denial, a look at a counter that does not exist, and a refund to one. The script would also
// remove expired entries. Redis rejects such writes in that state, and the calls must succeed
// nevertheless.
func TestCallsThatNeedNotWriteInAFullMemory(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL(), Timeout: slowest})
	now := counter.Micros(1_800_000_000_000_000)
	s.pinned.Store(int64(now))
	log, window := mustLimit(t, counter.SlidingLog, 3, counter.Hour), mustLimit(t, counter.FixedWindow, 3, counter.Hour)
	check := counter.Check{Key: []byte("rl1:n:log:{ip:1}:sl"), Limit: &log, Cost: 1}
	ask(t, s, check)
	s.pinned.Store(int64(now + 40*counter.Minute))
	check.Cost = 2
	receipt := ask(t, s, check)[0].Receipt
	fill(t, server, true)
	s.pinned.Store(int64(now + 70*counter.Minute)) // the first unit has expired
	fresh := counter.Check{Key: []byte("rl1:n:new:{ip:1}:fw"), Limit: &window, Cost: 1}
	if r := ask(t, s, check, fresh); !r[0].Denied || r[0].Remaining != 1 {
		t.Errorf("%+v, want a denial with 1 unit left", r[0])
	}
	look, refund := fresh, fresh
	look.Op, refund.Op, refund.Receipt = counter.OpLook, counter.OpRefund, receipt
	check.Cost = 1
	if r := ask(t, s, check, look); r[0].Denied || r[0].Granted != 1 {
		t.Errorf("%+v beside a question, want a charge", r[0])
	}
	check.Op, check.Receipt = counter.OpRefund, receipt
	if r := ask(t, s, check, refund); r[0].Granted != 1 || r[1].Granted != 0 {
		t.Errorf("%+v, want a refund of 1 unit", r)
	}
}

// TestRefundsAndDenialsInAFullMemory: a denial that would be a violation stays a denial, and a
// refund is made.
func TestRefundsAndDenialsInAFullMemory(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL(), Timeout: slowest})
	checks := request(t)
	charge := ask(t, s, checks...)
	fill(t, server, true)
	size := server.Client().DBSize(t.Context()).Val()
	for range 3 {
		if r := ask(t, s, checks...); !r[0].Denied && !r[1].Denied {
			t.Fatalf("%+v, want a denial", r)
		}
	}
	if n := server.Client().DBSize(t.Context()).Val(); n != size {
		t.Errorf("%d keys, want the %d of before: a violation was recorded", n, size)
	}
	refund := checks[1]
	refund.Op, refund.Receipt, refund.Guard = counter.OpRefund, charge[1].Receipt, 0
	if r := ask(t, s, refund); r[0].Granted != 1 {
		t.Errorf("%+v, want a refund of 1", r[0])
	}
	if r := ask(t, s, checks...); r[1].Denied {
		t.Errorf("%+v after a refund", r)
	}
}
