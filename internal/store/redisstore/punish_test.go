// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// The keys of the tests, in the form that policies create.
const (
	penaltyKey = "rl1:shop:~penalty:{user:u_42}"
	dailyKey   = "rl1:shop:api:{user:u_42}:day:fw"
	guardedKey = "rl1:shop:api:{user:u_42}:3600s:fw"
)

// request returns the checks of a client under a penalty and a limit of one an hour.
func request(t testing.TB) []counter.Check {
	t.Helper()
	p := &counter.Penalty{Window: counter.Hour, Threshold: 1, Multipliers: []int64{1, 2}, Max: 10 * counter.Minute}
	l := limittest.New(t, "1/1h fixed_window")
	return []counter.Check{{Key: []byte(penaltyKey), Penalty: p},
		{Key: []byte(guardedKey), Limit: l, Cost: 1, Guard: 1, Violation: 7}}
}

// dailyCheck returns a check under a limit of a calendar day. Its boundaries are those of a caller
// whose clock shows the given time.
func dailyCheck(t testing.TB, now counter.Micros) counter.Check {
	t.Helper()
	b := counter.CalendarDay.Bounds(now, time.UTC)
	return counter.Check{Key: []byte(dailyKey), Limit: limittest.New(t, "3/day"), Cost: 1, Bounds: &b}
}

// ask makes checks and returns the results. An error fails the test.
func ask(t testing.TB, s counter.Store, checks ...counter.Check) []counter.Result {
	t.Helper()
	results := make([]counter.Result, len(checks))
	if err := s.Take(context.Background(), checks, results); err != nil {
		t.Fatal(err)
	}
	return results
}

// readExpiry returns the instant at which Redis expires a key, or 0 if the key does not exist.
func readExpiry(t testing.TB, s *redistest.Server, key string) counter.Micros {
	t.Helper()
	at, err := s.Client().PExpireTime(t.Context(), key).Result()
	if err != nil {
		t.Fatal(err)
	}
	return max(0, counter.Micros(at.Microseconds()))
}

// checkExpiry compares an expiry with the expected instant. The expiry may be early by a
// millisecond, which is Redis' resolution. It may be late by up to a second, because Redis reads
// its clock again for each expiry, and might be descheduled before that.
func checkExpiry(t testing.TB, what string, got, want counter.Micros) {
	t.Helper()
	if d := got - want; d < -counter.Millisecond || d > counter.Second {
		t.Errorf("%s is forgotten %s after it should be", what, d)
	}
}

// TestTimeToLiveOfPenalties checks when Redis will expire a penalty and its violations, on the real
// clock.
func TestTimeToLiveOfPenalties(t *testing.T) {
	s := redistest.Start(t)
	b, checks := bareOn(t, s), request(t)
	ask(t, b, checks...)
	if readExpiry(t, s, penaltyKey) != 0 || readExpiry(t, s, penaltyKey+untilSuffix) != 0 {
		t.Error("an admitted request leaves something")
	}
	r := ask(t, b, checks...)
	if !r[0].Denied || r[0].Wait > 10*counter.Minute || r[0].Violations != 1 {
		t.Fatalf("%+v", r[0])
	}
	checkExpiry(t, "the violation", readExpiry(t, s, penaltyKey), r[0].At+counter.Hour)
	checkExpiry(t, "the penalty", readExpiry(t, s, penaltyKey+untilSuffix), r[0].At+r[0].Wait)
	at := readExpiry(t, s, penaltyKey)
	if ask(t, b, checks...); readExpiry(t, s, penaltyKey) != at {
		t.Error("a refusal by the penalty moves the expiry")
	}
	checks[0].Op, checks[1].Op, checks[1].Guard = counter.OpReset, counter.OpReset, 0
	if r = ask(t, b, checks...); r[0].Granted != 1 || r[1].Granted != 1 {
		t.Errorf("a reset: %+v", r)
	}
	if keys := s.Client().Keys(t.Context(), "*").Val(); len(keys) != 0 {
		t.Errorf("after a reset there are %q", keys)
	}
}

// TestTwentyParallelRequestsAreOneViolation runs the requests over two stores on one Redis.
func TestTwentyParallelRequestsAreOneViolation(t *testing.T) {
	server := redistest.Start(t)
	stores := []*Store{open(t, Options{URL: server.URL(), Timeout: TimeoutMax}), open(t, Options{URL: server.URL(), Timeout: TimeoutMax})}
	checks := request(t)
	checks[0].Penalty.Threshold = 2
	ask(t, stores[0], checks...)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			results := make([]counter.Result, len(checks))
			err := stores[i%2].Take(context.Background(), checks, results)
			if err != nil || results[0].Violations != 1 || results[0].Denied || !results[1].Denied {
				t.Errorf("%+v (%v)", results, err)
			}
		})
	}
	wg.Wait()
	if n := server.Client().ZCard(t.Context(), penaltyKey).Val(); n != 1 {
		t.Errorf("%d violations are remembered", n)
	}
}

// TestPenaltyInShadow: a penalty in shadow mode is reported as in force although it denies nothing.
func TestPenaltyInShadow(t *testing.T) {
	s := redistest.Start(t)
	b, checks := bareOn(t, s), request(t)
	ask(t, b, checks...)
	ask(t, b, checks...)
	checks[0].Shadow, checks[1].Limit = true, limittest.New(t, "5/1h fw")
	if r := ask(t, b, checks...); !r[0].Denied || r[0].Wait == 0 || r[1].Granted != 1 {
		t.Errorf("%+v", r)
	}
}

// TestTimeToLiveOfCalendars: a counter lives until the boundary after the next one, whichever
// period the store's clock is in.
func TestTimeToLiveOfCalendars(t *testing.T) {
	s := redistest.Start(t)
	now := counter.Micros(time.Now().UnixMicro())
	for late := range counter.Micros(3) {
		b, c := bareOn(t, s), dailyCheck(t, now-late*counter.Day)
		r := ask(t, b, c)
		checkExpiry(t, "the counter", readExpiry(t, s, dailyKey), r[0].Receipt+2*counter.Day)
		if got := s.Client().Get(t.Context(), dailyKey).Val(); !strings.HasSuffix(got, " 1 0") {
			t.Errorf("the counter is %q", got)
		}
	}
}

// TestPriceOfAPenalty: for a client without violations, a penalty takes one more GET, and no access
// to a sorted set.
func TestPriceOfAPenalty(t *testing.T) {
	s := redistest.Start(t)
	b, checks := bareOn(t, s), request(t)
	ask(t, b, checks...)
	got := map[string]int64{"get": s.Calls("get"), "zrange": s.Calls("zrange"), "zcount": s.Calls("zcount")}
	if diff := cmp.Diff(map[string]int64{"get": 2, "zrange": 0, "zcount": 0}, got); diff != "" {
		t.Errorf("an admitted request (-want +got):\n%s", diff)
	}
}

// TestCorruptPenalties stores invalid values at a penalty's keys, as TestCorruptCounters does for
// counters.
func TestCorruptPenalties(t *testing.T) {
	s := redistest.Start(t)
	for name, c := range map[string]struct {
		plant    []any
		want     string
		refusals bool // only a denied request reads this key
	}{
		"an end in words":           {[]any{"SET", penaltyKey + untilSuffix, "soon"}, "CORRUPT", false},
		"an end beyond 2^53":        {[]any{"SET", penaltyKey + untilSuffix, "9007199254740994"}, "CORRUPT", false},
		"a list for an end":         {[]any{"RPUSH", penaltyKey + untilSuffix, "1"}, "WRONGTYPE", false},
		"a string for a record":     {[]any{"SET", penaltyKey, "1"}, "WRONGTYPE", true},
		"a foreign member":          {[]any{"ZADD", penaltyKey, "1", "hello"}, "CORRUPT", true},
		"a member of two numbers":   {[]any{"ZADD", penaltyKey, "1", "1-2"}, "CORRUPT", true},
		"a member beyond 2^53":      {[]any{"ZADD", penaltyKey, "1", "1-9007199254740994-1"}, "CORRUPT", true},
		"a violation that ends ago": {[]any{"ZADD", penaltyKey, "5", "5-4-1"}, "CORRUPT", true},
	} {
		t.Run(name, func(t *testing.T) {
			b, checks := bareOn(t, s), request(t)
			if err := s.Client().Do(t.Context(), c.plant...).Err(); err != nil {
				t.Fatal(err)
			}
			if c.refusals {
				if r := ask(t, b, checks...); r[1].Granted != 1 {
					t.Errorf("an admitted request: %+v", r)
				}
			}
			dump := s.Client().Dump(t.Context(), penaltyKey).Val() + s.Client().Dump(t.Context(), penaltyKey+untilSuffix).Val()
			beside := counter.Check{Key: []byte("rl1:beside"), Limit: limittest.New(t, "5/1h fw"), Op: counter.OpForce, Cost: 1}
			err := b.Take(t.Context(), append(checks, beside), make([]counter.Result, 3))
			if !errors.Is(err, counter.ErrUnavailable) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %s", err, c.want)
			}
			if c.want == "CORRUPT" && !strings.Contains(err.Error(), `~penalty:`) || strings.Contains(err.Error(), "u_42") {
				t.Errorf("error %v must name the penalty and not the client", err)
			}
			if s.Client().Dump(t.Context(), penaltyKey).Val()+s.Client().Dump(t.Context(), penaltyKey+untilSuffix).Val() != dump {
				t.Error("the foreign value was changed")
			}
			if r := ask(t, b, beside); r[0].Remaining != 4 {
				t.Errorf("beside it %d are left, want 4: nothing was charged before", r[0].Remaining)
			}
		})
	}
}

// TestStaleIsNoFailureOfTheStore: if Redis' clock is outside a call's boundaries, the call fails
// with its own kind of error. The call is sent once and charges nothing. The breaker and the other
// calls of the batch are not affected.
func TestStaleIsNoFailureOfTheStore(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL(), Timeout: TimeoutMax})
	now := counter.Micros(time.Now().UnixMicro())
	good := dailyCheck(t, now)
	for _, caller := range []counter.Micros{now - 4*counter.Day, now + 2*counter.Day} {
		checks := []counter.Check{{Key: []byte("rl1:beside"), Limit: limittest.New(t, "100/1h fw"), Cost: 1}, dailyCheck(t, caller)}
		for range 2 * failuresInRow {
			before := server.Calls("evalsha")
			err := s.Take(context.Background(), checks, make([]counter.Result, 2))
			if !errors.Is(err, counter.ErrStale) || !errors.Is(err, counter.ErrUnavailable) || kindOf(err) != "stale" {
				t.Fatalf("error %v (%s), want stale", err, kindOf(err))
			}
			if n := server.Calls("evalsha") - before; n != 1 {
				t.Errorf("sent %d times", n)
			}
		}
	}
	if stats := s.Stats(); stats.Breaker != BreakerClosed || stats.Failures[KindStale] != 4*failuresInRow {
		t.Errorf("%+v", stats)
	}
	if errStale.whole {
		t.Error("the failure that all stale calls share was written to: two lanes would race for it")
	}
	if r := ask(t, s, good, counter.Check{Key: []byte("rl1:beside"), Limit: limittest.New(t, "100/1h fw"), Cost: 1}); r[0].Remaining != 2 || r[1].Remaining != 99 {
		t.Errorf("%+v: a stale call was charged", r)
	}
}

// TestPenaltyRepliesThatAreNone passes to the decoder penalty replies that the script never sends.
func TestPenaltyRepliesThatAreNone(t *testing.T) {
	checks := request(t)
	decode := func(text string) error {
		cmd := newTake(context.Background(), 0, checks)
		cmd.SetVal(text)
		return cmd.results(checks, make([]counter.Result, 2))
	}
	for _, good := range []string{"1700000000000000 1 0 0 0 0 0 0", "1700000000000000 0 1700000000000001 3 0 0 0 0"} {
		if err := decode(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"1700000000000000 1 0 0 0 0 0", "1700000000000000 1 1700000000000001 3 0 0 0 0",
		"1700000000000000 0 1700000000000000 3 0 0 0 0", "1700000000000000 0 -1 3 0 0 0 0"} {
		if decode(bad) == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// TestAllocationsOfAPenalty: a call with a penalty allocates no more than one without.
func TestAllocationsOfAPenalty(t *testing.T) {
	checks := request(t)
	if n := testing.AllocsPerRun(100, func() { newTake(context.Background(), 0, checks) }); n > 3 {
		t.Errorf("newTake allocates %v times, want 3", n)
	}
}
