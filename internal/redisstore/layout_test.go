// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/redistest"
)

// The instant at which the counters below are met, and the start of its minute and of its day.
const (
	layoutNow    = 1_700_000_000 * core.Second
	layoutMinute = 1_699_999_980 * core.Second
	layoutDay    = 1_699_920_000 * core.Second
)

// TestLayoutOfVersion1 holds that what nodes with keys of rl1 left in Redis is read as they meant it, and that they can read
// what is written now: nodes of two releases run side by side during an upgrade. What stands in this table is never edited.
// Whoever must change it gives keys another version, and says in docs/decisions.md how counters get from the one to the other.
func TestLayoutOfVersion1(t *testing.T) {
	for _, c := range []struct {
		name   string
		limit  string
		left   [][]any // by a node of rl1: commands
		cost   int64
		want   core.Result
		leaves map[string]string
	}{
		{"fixed window", "10/1m fixed_window", [][]any{{"set", "k", "1699999980000000 7 0"}}, 2,
			core.Result{Granted: 2, Remaining: 1, Reset: 40 * core.Second, Next: 40 * core.Second, Receipt: layoutMinute},
			map[string]string{"k": "1699999980000000 9 0"}},
		{"calendar window", "10/day", [][]any{{"set", "k", "1699920000000000 7 0"}}, 2,
			core.Result{Granted: 2, Remaining: 1, Reset: 6400 * core.Second, Next: 6400 * core.Second, Receipt: layoutDay},
			map[string]string{"k": "1699920000000000 9 0"}},
		{"sliding window", "10/1m", [][]any{{"set", "k", "1699999980000000 2 9"}}, 1,
			core.Result{Granted: 1, Remaining: 1, Reset: 40 * core.Second, Next: 40 * core.Second, Receipt: layoutMinute},
			map[string]string{"k": "1699999980000000 3 9"}},
		{"sliding window of a minute ago", "10/1m", [][]any{{"set", "k", "1699999920000000 9 4"}}, 1,
			core.Result{Granted: 1, Remaining: 3, Reset: 40 * core.Second, Next: 40 * core.Second, Receipt: layoutMinute},
			map[string]string{"k": "1699999980000000 1 9"}},
		{"token bucket", "10/1m burst 10", [][]any{{"set", "k", "1699999990000000 12000000 6000000"}}, 1,
			core.Result{Granted: 1, Remaining: 8, Reset: 8 * core.Second, Next: 2 * core.Second, Receipt: layoutNow},
			map[string]string{"k": "1700000000000000 8000000 6000000"}},
		{"sliding log", "10/1m sliding_log", [][]any{{"zadd", "k", 1699999990000000, "1699999990000000:4"}, {"set", "k:n", "4"}}, 2,
			core.Result{Granted: 2, Remaining: 4, Reset: 50 * core.Second, Next: 50 * core.Second, Receipt: layoutNow},
			map[string]string{"k": "1699999990000000:4 1700000000000000:2", "k:n": "6"}},
		{"units out on lease", "10/1m fixed_window", [][]any{{"set", "k", "1699999980000000 7 0 1700000005000000"}}, 4,
			core.Result{Remaining: 3, Refused: true, Wait: 40 * core.Second, Reset: 40 * core.Second, Next: 40 * core.Second, LeasedIn: 5 * core.Second},
			map[string]string{"k": "1699999980000000 7 0 1700000005000000"}},
		{"penalty", "", [][]any{{"zadd", "k", 1699999990000000, "1699999990000000-1700000030000000-0000000000000042"}, {"set", "k:until", "1700000010000000"}}, 0,
			core.Result{Refused: true, Wait: 10 * core.Second, Violations: 1},
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
			check := core.Check{Key: []byte("k"), Cost: c.cost}
			if c.limit == "" {
				check.Penalty = &core.Penalty{Window: core.Hour, Threshold: 3, Multipliers: []int64{1}}
			} else {
				check.Limit = limitOf(t, c.limit)
			}
			if c.limit == "10/day" {
				check.Bounds = &core.Bounds{layoutDay - core.Day, layoutDay, layoutDay + core.Day, layoutDay + 2*core.Day}
			}
			results := make([]core.Result, 1)
			if err := store.Take(t.Context(), []core.Check{check}, results); err != nil {
				t.Fatal(err)
			}
			c.want.At = layoutNow
			if diff := cmp.Diff(c.want, results[0]); diff != "" {
				t.Errorf("it is read otherwise than it was meant: %s", diff)
			}
			if diff := cmp.Diff(c.leaves, written(t, server)); diff != "" {
				t.Errorf("what is written now is something else than it was: %s", diff)
			}
		})
	}
}

// written returns all that is in the server, members of sets with a space between.
func written(t *testing.T, s *redistest.Server) map[string]string {
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
