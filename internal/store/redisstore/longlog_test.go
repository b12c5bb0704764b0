// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"strconv"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestLongLogIsNotReadWhole tests that the denial by a log with many entries reads at most 256 of
// them. The expected waits are computed from the entries.
func TestLongLogIsNotReadWhole(t *testing.T) {
	server := redistest.Start(t)
	script := bareOn(t, server)
	// one entry a millisecond, the last one at the current instant
	const start, marks = 1_700_000_000 * counter.Second, 5_000
	const now = start + (marks-1)*counter.Millisecond
	plant := `for i = 0, 4999 do
  local at = string.format('%d', 1700000000000000 + i * 1000)
  redis.call('ZADD', KEYS[1], at, at .. ':1')
end
return 1`
	if err := server.Client().Eval(t.Context(), plant, []string{"k"}).Err(); err != nil {
		t.Fatal(err)
	}
	script.pinned.Store(int64(now))
	for _, test := range []struct {
		name        string
		count, cost int64
		leaves      counter.Micros // the index of the last entry that must expire, which is also its time in milliseconds after start
		reads       int64
	}{
		{name: "the sum is lost", count: marks, cost: 1, reads: 3},
		{name: "a full log", count: marks, cost: 1, reads: 2},
		{name: "a limit that was lowered", count: 10, cost: 1, leaves: marks - 10, reads: 5},
		{name: "a cost near the limit", count: marks, cost: marks - 20, leaves: marks - 21, reads: 5},
		{name: "a cost of half the limit", count: marks, cost: marks / 2, leaves: marks/2 - 1, reads: 16},
	} {
		limit := mustLimit(t, counter.SlidingLog, test.count, counter.Minute)
		before, results := server.Calls("zrange"), make([]counter.Result, 1)
		check := counter.Check{Key: []byte("k"), Limit: &limit, Cost: test.cost}
		if err := script.Take(t.Context(), []counter.Check{check}, results); err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		if want := start + test.leaves*counter.Millisecond + counter.Minute - now; results[0].Wait != want || !results[0].Denied {
			t.Errorf("%s: %+v, want to be refused for %s", test.name, results[0], want)
		}
		if reads := server.Calls("zrange") - before; reads > test.reads {
			t.Errorf("%s: the log was read %d times, want at most %d", test.name, reads, test.reads)
		}
	}
}

// TestExpiredMarksAreNotAllRead: a call after many marks have expired reads either these marks or
// the remaining ones, whichever are fewer, and none if all have expired. It subtracts the units of
// all expired marks, and deletes these marks.
func TestExpiredMarksAreNotAllRead(t *testing.T) {
	server := redistest.Start(t)
	const start, marks = 1_700_000_000 * counter.Second, 5_000
	plant := `local sum = 0
for i = 0, 4999 do
  local at, units = string.format('%d', 1700000000000000 + i * 1000), i % 7 + 1
  redis.call('ZADD', KEYS[1], at, at .. ':' .. units)
  sum = sum + units
end
return redis.call('SET', KEYS[1] .. ':n', sum)`
	limit := mustLimit(t, counter.SlidingLog, counter.LogCountMax, counter.Minute)
	for _, test := range []struct{ gone, reads int64 }{{1, 2}, {2, 3}, {9, 3}, {10, 5}, {11, 5}, {marks / 2, 5}, {marks/2 + 1, 5},
		{marks - 1, 5}, {marks, 1}} {
		script := bareOn(t, server)
		if err := server.Client().Eval(t.Context(), plant, []string{"k"}).Err(); err != nil {
			t.Fatal(err)
		}
		left := int64(1) // the charge of this call
		for i := test.gone; i < marks; i++ {
			left += i%7 + 1
		}
		script.pinned.Store(int64(start + counter.Micros(test.gone-1)*counter.Millisecond + counter.Minute))
		before, wide := server.Calls("zrange"), server.Calls("zrangebyscore")
		check, results := counter.Check{Key: []byte("k"), Limit: &limit, Cost: 1, Op: counter.OpForce}, make([]counter.Result, 1)
		if err := script.Take(t.Context(), []counter.Check{check}, results); err != nil {
			t.Fatalf("%d marks expired: %v", test.gone, err)
		}
		if want := max(0, counter.LogCountMax-left); results[0].Remaining != want || results[0].Granted != 1 {
			t.Errorf("%d marks expired: %+v, want %d left", test.gone, results[0], want)
		}
		if reads := server.Calls("zrange") - before; reads > test.reads || server.Calls("zrangebyscore") != wide {
			t.Errorf("%d marks expired: the log was read %d times, want at most %d", test.gone, reads, test.reads)
		}
		kept, sum := server.Client().ZCard(t.Context(), "k").Val(), server.Client().Get(t.Context(), "k:n").Val()
		if kept != marks-test.gone+1 || sum != strconv.FormatInt(left, 10) {
			t.Errorf("%d marks expired: the log has %d marks and the sum %s, want %d and %d", test.gone, kept, sum, marks-test.gone+1, left)
		}
	}
}
