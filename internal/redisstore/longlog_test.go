// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/redistest"
)

// TestLongLogIsNotReadWhole refuses by logs of many marks, for the reasons that make most of them matter, and counts the
// reads: one reads at most 256 marks. The waits are worked out from the marks.
func TestLongLogIsNotReadWhole(t *testing.T) {
	server := redistest.Start(t)
	script := bareOn(t, server)
	const start, marks = 1_700_000_000 * core.Second, 5_000 // one a millisecond, the last at now
	const now = start + (marks-1)*core.Millisecond
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
		leaves      core.Micros // which mark is the last that must leave
		reads       int64
	}{
		{"the sum is lost", marks, 1, 0, 3},
		{"a full log", marks, 1, 0, 2},
		{"a limit that was lowered", 10, 1, marks - 10, 5},
		{"a cost near the limit", marks, marks - 20, marks - 21, 5},
		{"a cost of half the limit", marks, marks / 2, marks/2 - 1, 16},
	} {
		limit := mustLimit(t, core.SlidingLog, test.count, core.Minute)
		before, results := server.Calls("zrange"), make([]core.Result, 1)
		check := core.Check{Key: []byte("k"), Limit: &limit, Cost: test.cost}
		if err := script.Take(t.Context(), []core.Check{check}, results); err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		if want := start + test.leaves*core.Millisecond + core.Minute - now; results[0].Wait != want || !results[0].Refused {
			t.Errorf("%s: %+v, want to be refused for %s", test.name, results[0], want)
		}
		if reads := server.Calls("zrange") - before; reads > test.reads {
			t.Errorf("%s: the log was read %d times, want at most %d", test.name, reads, test.reads)
		}
	}
}
