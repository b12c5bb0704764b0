// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// These are the instant of the checks below, and the start of its minute and of its day.
const (
	layoutNow    = 1_700_000_000 * counter.Second
	layoutMinute = 1_699_999_980 * counter.Second
	layoutDay    = 1_699_920_000 * counter.Second
)

// TestLayoutOfVersion1: nodes of two releases run side by side during an upgrade. So data written
// under keys of rl1 must be read with its original meaning, and older nodes must be able to read
// the data written now. Never edit the rows of this table. A change of the layout requires a new
// version of the keys, and an entry in docs/explanation/decisions.md about moving the counters.
func TestLayoutOfVersion1(t *testing.T) {
	for _, c := range []struct {
		name   string
		limit  string
		left   [][]any // the commands of a node whose keys begin with rl1:
		cost   int64
		want   counter.Result
		leaves map[string]string
	}{
		{"fixed window", "10/1m fixed_window", [][]any{{"set", "k", "1699999980000000 7 0"}}, 2,
			counter.Result{Granted: 2, Remaining: 1, Reset: 40 * counter.Second, Next: 40 * counter.Second, Receipt: layoutMinute},
			map[string]string{"k": "1699999980000000 9 0"}},
		{"calendar window", "10/day", [][]any{{"set", "k", "1699920000000000 7 0"}}, 2,
			counter.Result{Granted: 2, Remaining: 1, Reset: 6400 * counter.Second, Next: 6400 * counter.Second, Receipt: layoutDay},
			map[string]string{"k": "1699920000000000 9 0"}},
		{"sliding window", "10/1m", [][]any{{"set", "k", "1699999980000000 2 9"}}, 1,
			counter.Result{Granted: 1, Remaining: 1, Reset: 40 * counter.Second, Next: 40 * counter.Second, Receipt: layoutMinute},
			map[string]string{"k": "1699999980000000 3 9"}},
		{"sliding window of a minute ago", "10/1m", [][]any{{"set", "k", "1699999920000000 9 4"}}, 1,
			counter.Result{Granted: 1, Remaining: 3, Reset: 40 * counter.Second, Next: 40 * counter.Second, Receipt: layoutMinute},
			map[string]string{"k": "1699999980000000 1 9"}},
		{"token bucket", "10/1m burst 10", [][]any{{"set", "k", "1699999990000000 12000000 6000000"}}, 1,
			counter.Result{Granted: 1, Remaining: 8, Reset: 8 * counter.Second, Next: 2 * counter.Second, Receipt: layoutNow},
			map[string]string{"k": "1700000000000000 8000000 6000000"}},
		{"sliding log", "10/1m sliding_log", [][]any{{"zadd", "k", 1699999990000000, "1699999990000000:4"}, {"set", "k:n", "4"}}, 2,
			counter.Result{Granted: 2, Remaining: 4, Reset: 50 * counter.Second, Next: 50 * counter.Second, Receipt: layoutNow},
			map[string]string{"k": "1699999990000000:4 1700000000000000:2", "k:n": "6"}},
		{"units out on lease", "10/1m fixed_window", [][]any{{"set", "k", "1699999980000000 7 0 1700000005000000"}}, 4,
			counter.Result{Remaining: 3, Denied: true, Wait: 40 * counter.Second, Reset: 40 * counter.Second, Next: 40 * counter.Second, LeasedIn: 5 * counter.Second},
			map[string]string{"k": "1699999980000000 7 0 1700000005000000"}},
		{"penalty", "", [][]any{{"zadd", "k", 1699999990000000, "1699999990000000-1700000030000000-0000000000000042"}, {"set", "k:until", "1700000010000000"}}, 0,
			counter.Result{Denied: true, Wait: 10 * counter.Second, Violations: 1},
			map[string]string{"k": "1699999990000000-1700000030000000-0000000000000042", "k:until": "1700000010000000"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := redistest.Start(t)
			store := bareOn(t, server)
			store.pinned.Store(int64(layoutNow))
			for _, command := range c.left {
				if err := server.Client().Do(t.Context(), command...).Err(); err != nil {
					t.Fatal(err)
				}
			}
			check := counter.Check{Key: []byte("k"), Cost: c.cost}
			if c.limit == "" {
				check.Penalty = &counter.Penalty{Window: counter.Hour, Threshold: 3, Multipliers: []int64{1}}
			} else {
				check.Limit = limittest.New(t, c.limit)
			}
			if c.limit == "10/day" {
				check.Bounds = &counter.Bounds{layoutDay - counter.Day, layoutDay, layoutDay + counter.Day, layoutDay + 2*counter.Day}
			}
			results := make([]counter.Result, 1)
			if err := store.Take(t.Context(), []counter.Check{check}, results); err != nil {
				t.Fatal(err)
			}
			c.want.At = layoutNow
			if diff := cmp.Diff(c.want, results[0]); diff != "" {
				t.Errorf("it is read otherwise than it was meant: %s", diff)
			}
			if diff := cmp.Diff(c.leaves, readContents(t, server)); diff != "" {
				t.Errorf("what is written now is something else than it was: %s", diff)
			}
		})
	}
}

// readContents returns the entire contents of the server, with spaces between the members of a set.
func readContents(t *testing.T, s *redistest.Server) map[string]string {
	t.Helper()
	all := map[string]string{}
	keys, err := s.Client().Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		text, err := s.Client().Get(t.Context(), key).Result()
		if err != nil {
			members, err := s.Client().ZRange(t.Context(), key, 0, -1).Result()
			if err != nil {
				t.Fatal(err)
			}
			text = strings.Join(members, " ")
		}
		all[key] = text
	}
	return all
}
