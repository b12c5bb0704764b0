// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestAKnownDenialChargesNothingElsewhere: a client is over its own limit. When that is known, its
// requests do not charge the counter that it shares with others, not even until a refund. So other
// clients are not denied because of these requests. The answers are the same as with a single
// server.
func TestAKnownDenialChargesNothingElsewhere(t *testing.T) {
	t.Parallel()
	servers := startRing(t, 3)
	s := openRing(t, servers, Options{Timeout: TimeoutMax})
	for _, tt := range []struct {
		what, own, shared string
		op                counter.Op
	}{
		{"the own limit is smaller", "2/1d fixed_window", "100/1d fixed_window", counter.OpTake},
		{"the own limit is greater", "100/1d fixed_window", "9/1d fixed_window", counter.OpTake},
		{"the own limit is equal", "9/1d sliding_log", "9/1d", counter.OpTake},
		{"a bucket", "2/1d burst 2", "9/1d burst 9", counter.OpTake},
		{"a lease", "2/1d fixed_window", "100/1d fixed_window", counter.OpUpTo},
	} {
		t.Run(tt.what, func(t *testing.T) {
			own, shared := apart(t, s, tt.what, limittest.New(t, tt.own), limittest.New(t, tt.shared))
			own.Cost = own.Limit.Capacity()
			ask(t, s, own)
			ask(t, s, shared)
			left := shared.Limit.Capacity() - 1
			own.Cost = 1
			if shared.Op = tt.op; tt.op == counter.OpUpTo {
				shared.Min, shared.Max, shared.ShareMille, shared.Age = 1, 50, 1000, counter.Second
			}
			home := ringHome(s, servers)(string(shared.Key))
			deniedBy(t, left, ask(t, s, own, shared)) // this denial was not known
			written := markWritten(t, home, string(shared.Key))
			for range 3 {
				deniedBy(t, left, ask(t, s, own, shared))
			}
			calls := make([]counter.Call, 20)
			for i := range calls {
				calls[i] = counter.Call{Checks: []counter.Check{shared, own}, Results: make([]counter.Result, 2)}
			}
			s.TakeAll(context.Background(), calls)
			for i := range calls {
				if calls[i].Err != nil {
					t.Fatal(calls[i].Err)
				}
				deniedBy(t, left, []counter.Result{calls[i].Results[1], calls[i].Results[0]})
			}
			if written() {
				t.Error("denied requests have charged the shared counter")
			}
		})
	}
}

// apart returns checks of two limits whose counters are on different servers.
func apart(t *testing.T, s *Store, name string, own, shared *counter.Limit) (ownCheck, sharedCheck counter.Check) {
	t.Helper()
	sharedCheck = counter.Check{Key: []byte("rl1:" + name + ":{all}"), Limit: shared, Cost: 1}
	for i := range 1000 {
		ownCheck = counter.Check{Key: fmt.Appendf(nil, "rl1:%s:{%d}", name, i), Limit: own, Cost: 1}
		if _, one := s.onePlace([]counter.Check{ownCheck, sharedCheck}); !one {
			return ownCheck, sharedCheck
		}
	}
	t.Fatal("all keys are on one server")
	return ownCheck, sharedCheck
}

// deniedBy tests that the first check has denied the call, and that the counter of the second has
// the given number of units left.
func deniedBy(t *testing.T, left int64, r []counter.Result) {
	t.Helper()
	if !r[0].Denied || r[0].Granted+r[1].Granted != 0 || r[1].Denied || r[1].Remaining != left {
		t.Errorf("%+v, want a denial by the first and %d left of the second", r, left)
	}
}

// markWritten returns a function that reports whether a counter was written since the call of
// markWritten: each write sets the time at which the counter expires.
func markWritten(t *testing.T, home *redistest.Server, key string) (written func() bool) {
	t.Helper()
	at := time.Now().Add(1000 * time.Hour).Truncate(time.Millisecond)
	if !home.Client().PExpireAt(t.Context(), key, at).Val() {
		t.Fatalf("%s does not exist", key)
	}
	return func() bool { return readExpiry(t, home, key) != counter.Micros(at.UnixMicro()) }
}

// TestQuietClientsAskAllServersAtOnce: the calls of clients that were not denied are sent in one
// step, whatever other clients do. This also holds if the shared limit has denied calls and has
// room again.
func TestQuietClientsAskAllServersAtOnce(t *testing.T) {
	t.Parallel()
	s := openRing(t, startRing(t, 3), Options{Timeout: TimeoutMax})
	own, shared := apart(t, s, "quiet", limittest.New(t, "2/1d fixed_window"), limittest.New(t, "4/1d fixed_window"))
	other, _ := apart(t, s, "other", own.Limit, shared.Limit)
	held := func(checks ...counter.Check) (n int) {
		for _, p := range s.newSplitCall(checks, make([]counter.Result, len(checks))).parts {
			if p.held {
				n++
			}
		}
		return n
	}
	for range 2 {
		ask(t, s, own, shared)
	}
	if n := held(own, shared); n != 0 {
		t.Errorf("%d parts wait before a denial", n)
	}
	if r := ask(t, s, own, shared); !r[0].Denied {
		t.Fatalf("%+v", r)
	}
	if n, quiet := held(own, shared), held(other, shared); n != 1 || quiet != 0 {
		t.Errorf("%d parts of the denied client wait, and %d of another, want 1 and 0", n, quiet)
	}
	shared.Cost = 2
	ask(t, s, shared)
	if r := ask(t, s, other, shared); !r[1].Denied {
		t.Fatalf("%+v", r)
	}
	if n := held(other, shared); n != 1 {
		t.Errorf("%d parts wait for a shared limit without room, want 1", n)
	}
	reset := shared
	reset.Op = counter.OpReset
	ask(t, s, reset)
	if r := ask(t, s, other, shared); r[0].Denied || r[1].Denied {
		t.Fatalf("%+v", r)
	}
	if n := held(other, shared); n != 0 {
		t.Errorf("%d parts wait for a shared limit with room", n)
	}
}

// TestRecentDenials: a denial is remembered until a minute after its wait.
func TestRecentDenials(t *testing.T) {
	d, limit := newRecentDenials(), limittest.New(t, "9/1m")
	now := time.Hour
	after := func(c counter.Check, r counter.Result) *part {
		c.Key, c.Limit = []byte("k"), limit
		p := &part{checks: []counter.Check{c}, results: []counter.Result{r}}
		d.learn(now, p)
		return p
	}
	minute := counter.Result{Denied: true, Wait: counter.Minute}
	for _, ignored := range []counter.Check{{Cost: 1, Op: counter.OpLook}, {Cost: 1, Shadow: true}} {
		if p := after(ignored, minute); d.recordOf(now, p) != clean || d.recordOf(now, after(counter.Check{Cost: 1}, counter.Result{})) != clean {
			t.Errorf("%+v is remembered", ignored)
		}
	}
	wants := func(p *part, at time.Duration, want record) {
		t.Helper()
		if got := d.recordOf(at, p); got != want {
			t.Errorf("record %d at %v, want %d", got, at, want)
		}
	}
	p := after(counter.Check{Cost: 1}, minute)
	wants(p, now, stillDenies)
	wants(p, now+59*time.Second, stillDenies)
	wants(p, now+time.Minute, hasDenied)
	wants(p, now+2*time.Minute, clean)
	now += time.Second
	after(counter.Check{Cost: 1}, counter.Result{}) // there is room earlier, for example after a reset
	wants(p, now, hasDenied)
	wants(p, now+time.Minute, clean)
	after(counter.Check{Cost: 10}, counter.Result{Denied: true, Wait: counter.Never})
	wants(p, now, stillDenies)
	wants(p, now+2*recentTime, clean)
}

// TestAnAnswerIsRememberedOnce: when the rest of a call was answered, the answer of its first part
// is not remembered again, because another call may have been denied since.
func TestAnAnswerIsRememberedOnce(t *testing.T) {
	s := &Store{recent: newRecentDenials(), reporter: reporter{start: time.Now().Add(-time.Hour)}}
	limit := limittest.New(t, "9/1m")
	partWith := func(key string, r counter.Result) *part {
		return &part{checks: []counter.Check{{Key: []byte(key), Limit: limit, Cost: 1}}, results: []counter.Result{r}}
	}
	first, rest := partWith("own", counter.Result{Granted: 1}), partWith("shared", counter.Result{Granted: 1})
	rest.held = true
	call := &splitCall{parts: []*part{first, rest}}
	if !s.nextStep(call) || rest.held {
		t.Fatal("the rest of the call waits after its first part has passed")
	}
	s.recent.learn(s.clock(), partWith("own", counter.Result{Denied: true, Wait: counter.Minute}))
	if s.nextStep(call) {
		t.Fatal("there is more to send")
	}
	if got := s.recent.recordOf(s.clock(), first); got != stillDenies {
		t.Errorf("record %d after the denial of another call, want %d", got, stillDenies)
	}
}
