// SPDX-License-Identifier: Apache-2.0

package redisadmin

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// describeKey inspects a key. It returns the printed description, and whether the key's counter
// cannot be read.
func describeKey(t *testing.T, o Options, key string, check *counter.Check) (text string, wrong bool) {
	t.Helper()
	c, err := connect(t, o).Inspect(context.Background(), key, check)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := c.Print(&out); err != nil {
		t.Fatal(err)
	}
	t.Logf("inspect:\n%s", out.String())
	return out.String(), c.Wrong
}

func check(t *testing.T, key, limit string, cost int64) counter.Check {
	t.Helper()
	l, err := counter.ParseLimit(limit)
	if err != nil {
		t.Fatal(err)
	}
	c := counter.Check{Key: []byte(key), ScopeLen: len("rl1:shop:api:"), Limit: &l, Cost: cost}
	if l.Calendar() != 0 { // a window that began on the day before
		begins := counter.Micros(time.Now().Add(-24 * time.Hour).UnixMicro())
		c.Bounds = &counter.Bounds{begins - counter.Day, begins, begins + 2*counter.Day, begins + 3*counter.Day}
	}
	return c
}

// charge sends checks to a server as the limiter does.
func charge(t *testing.T, s *redistest.Server, checks ...counter.Check) []counter.Result {
	t.Helper()
	store, err := redisstore.New(redisstore.Options{URL: s.URL(), Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	results := make([]counter.Result, len(checks))
	if err := store.Take(context.Background(), checks, results); err != nil {
		t.Fatal(err)
	}
	return results
}

func TestInspectEveryAlgorithm(t *testing.T) {
	s := redistest.Start(t)
	for _, c := range []struct {
		key, limit string
		want       []string
	}{
		{"rl1:shop:api:{user:u_42}:3600s:fw", "10/1h fixed_window", []string{"api, a fixed window of 3600s", "user u_42", "7 units used in the window that began at", "ends at", " fixed_window: 3 of 10 left"}},
		{"rl1:shop:api:{user:a%3Ab}:3600s:sw", "10/1h", []string{"a sliding window of 3600s", "user a:b", "7 units used", "0 in the one before, which weigh 0 now", "3 of 10 left"}},
		{"rl1:shop:api:{api_key:k}:host:example.com:3600s:sl", "10/1h sliding_log", []string{"api_key k, host example.com", "7 units, charged at 1 instant", "the oldest, 7, at", "the newest, 7", "it leaves at", "3 of 10 left"}},
		{"rl1:shop:api:{~3:user:u_42}:host:a:3600s:fw", "10/1h fixed_window", []string{"user u_42, host a", "shard      3, counted from 0", "7 units used"}},
		{"rl1:shop:api:{~63:api}:3600s:fw", "10/1h fixed_window", []string{"everybody", "shard      63, counted from 0"}},
		{"rl1:shop:api:{api}:3600s:tb", "10/1h burst 8", []string{"everybody", "a bucket that lacked 7 of its tokens at", "1 of 8 left"}},
		{"rl1:shop:api:{tenant:}:day:fw", "10/day", []string{"no tenant", "7 units used in the day that began at", "(24h0m0s ago)", "3 of 10 left"}},
	} {
		t.Run(c.limit, func(t *testing.T) {
			asked := check(t, c.key, c.limit, 7)
			text, wrong := describeKey(t, optionsFor(s.URL()), c.key, &asked)
			contains(t, text, "as good as unused")
			if wrong {
				t.Error("a counter that is not there is wrong")
			}
			charge(t, s, asked)
			before := contentsOf(t, s)
			text, wrong = describeKey(t, optionsFor(s.URL()), c.key, &asked)
			contains(t, text, append(c.want, "policy     shop", "expires    in ", fmt.Sprintf("slot       %d, were it a cluster; at %s", redisstore.Slot(c.key), s.Addr))...)
			if wrong || contentsOf(t, s) != before {
				t.Errorf("wrong is %v, keys are %q and were %q", wrong, contentsOf(t, s), before)
			}
		})
	}
}

// TestInspectOfPastWindows checks the description of past windows, of leases, and of fractions of
// a token.
func TestInspectOfPastWindows(t *testing.T) {
	s := redistest.Start(t)
	ctx := context.Background()
	now := time.Now()
	for _, c := range []struct {
		key   string
		value func(now int64) string
		want  []string
	}{
		{"rl1:shop:api:{user:a}:60s:fw", func(n int64) string { return fmt.Sprintf("%d 7 0", n-90_000_000) }, []string{"that is over, and counts no more"}},
		{"rl1:shop:api:{user:a}:60s:sw", func(n int64) string { return fmt.Sprintf("%d 100 9", n-90_000_000) }, []string{"weighs 49 in the one that follows it"}},
		{"rl1:shop:api:{user:b}:60s:sw", func(n int64) string { return fmt.Sprintf("%d 100 9", n-120_000_000) }, []string{"that is over, and counts no more"}},
		{"rl1:shop:api:{user:c}:60s:sw", func(n int64) string { return fmt.Sprintf("%d 1 1000 %d", n-30_000_000, n+5_000_000) }, []string{"1 unit used", "1000 in the one before, which weigh 49", "leased", "units may be out until"}},
		{"rl1:shop:api:{user:d}:60s:sw", func(n int64) string { return fmt.Sprintf("%d 1 1000 %d", n-30_000_000, n-1) }, []string{"1 unit used"}},
		{"rl1:shop:api:{user:e}:60s:tb", func(n int64) string { return fmt.Sprintf("%d 13 4", n) }, []string{"lacked 3.25 of its tokens"}},
		{"rl1:shop:api:{user:f}:60s:tb", func(n int64) string { return fmt.Sprintf("%d 517236156 17280000", n) }, []string{"lacked 29.933 of its tokens"}},
		{"rl1:shop:api:{user:g}:60s:tb", func(n int64) string { return fmt.Sprintf("%d 200 1", n) }, []string{"lacked 200 of its tokens"}},
	} {
		if err := s.Client().Set(ctx, c.key, c.value(now.UnixMicro()), time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
		text, wrong := describeKey(t, optionsFor(s.URL()), c.key, nil)
		contains(t, text, c.want...)
		if leased := strings.Contains(text, "leased"); wrong || leased != strings.Contains(c.key, ":c}") {
			t.Errorf("%s: wrong %v, leased %v", c.key, wrong, leased)
		}
	}
}

func TestWeighedIsExact(t *testing.T) {
	for _, c := range []struct {
		units        int64
		rest, window time.Duration
		want         uint64
	}{
		{10, time.Minute, time.Minute, 10}, {10, 59 * time.Second, time.Minute, 9}, {10, 0, time.Minute, 0}, {10, -1, time.Minute, 0},
		{1 << 53, 31 * 24 * time.Hour, 31 * 24 * time.Hour, 1 << 53}, {1<<53 - 1, 744*time.Hour - time.Microsecond, 744 * time.Hour, 1<<53 - 1 - 3363},
	} {
		if got := weighPrevious(c.units, c.rest, c.window); got != c.want {
			t.Errorf("%d with %v of %v left weigh %d, want %d", c.units, c.rest, c.window, got, c.want)
		}
	}
}

func TestInspectAPenalty(t *testing.T) {
	s := redistest.Start(t)
	const key = "rl1:shop:~penalty:{user:u_42}"
	guard := counter.Check{Key: []byte(key), ScopeLen: len("rl1:shop:~penalty:"),
		Penalty: &counter.Penalty{Window: counter.Hour, Threshold: 1, Multipliers: []int64{2}, Max: counter.Hour}}
	text, _ := describeKey(t, optionsFor(s.URL()), key, &guard)
	contains(t, text, "penalty    of user u_42", "none is in force", "violations 0", "from 1 violation in 1h0m0s on, for 1h0m0s at most")
	asked := check(t, "rl1:shop:api:{user:u_42}:60s:sl", "1/60s sliding_log", 1)
	asked.Guard, asked.Violation = 1, 7
	charge(t, s, guard, asked)
	if results := charge(t, s, guard, asked); !results[0].Denied {
		t.Fatalf("no penalty: %+v", results)
	}
	for _, name := range []string{key, key + ":until"} {
		text, _ := describeKey(t, optionsFor(s.URL()), name, nil)
		contains(t, text, "in force until", "in force until 2", "every request is denied", "violations 1", "of a limit whose wait ends at")
	}
}

func TestInspectFindsTheServer(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	key := ""
	for i := 0; ; i++ { // until the key is not on the queried node
		key = fmt.Sprintf("rl1:shop:api:{user:%d}:3600s:sw", i)
		if c.Master(redisstore.Slot(key)) == c.Nodes[1] {
			break
		}
	}
	o := optionsFor(c.Nodes[3].URL())
	charge(t, c.Nodes[1], check(t, key, "10/1h", 3))
	text, _ := describeKey(t, o, key, nil)
	contains(t, text, fmt.Sprintf("slot       %d, at %s", redisstore.Slot(key), c.Nodes[1].Addr), "3 units used")

	c.BeginMove(redisstore.Slot(key), c.Nodes[2])
	c.MoveKeys(redisstore.Slot(key), c.Nodes[2], 10)
	text, _ = describeKey(t, o, key, nil)
	contains(t, text, "3 units used")
	c.EndMove(redisstore.Slot(key), c.Nodes[2])
	text, _ = describeKey(t, o, key, nil)
	contains(t, text, ", at "+c.Nodes[2].Addr, "3 units used")

	c.Replica(c.Nodes[2]).Kill()
	c.Nodes[2].Kill()
	eventually.Until(t, patience, "nobody is asked for the key", func() bool {
		_, err := connect(t, o).Inspect(context.Background(), key, nil)
		return err != nil && strings.Contains(err.Error(), c.Nodes[2].Addr+" cannot be reached")
	})
}

func TestInspectByASentinelAfterAFailover(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	const key = "rl1:shop:api:{user:u_42}:3600s:sw"
	charge(t, s.Master(), check(t, key, "10/1h", 3))
	s.Failover()
	text, _ := describeKey(t, optionsFor(s.Sentinels[0].URL()), key, nil)
	contains(t, text, "at "+s.Servers[1].Addr, "3 units used")
}

func TestInspectSaysWhatIsCorrupt(t *testing.T) {
	s := redistest.Start(t)
	ctx := context.Background()
	for key, spoil := range map[string][]any{
		"rl1:shop:api:{user:a}:60s:fw": {"set", "KEY", "1 2"},
		"rl1:shop:api:{user:b}:60s:tb": {"set", "KEY", "1 2 0"},
		"rl1:shop:api:{user:c}:60s:sw": {"set", "KEY", "1 2 -3"},
		"rl1:shop:api:{user:d}:60s:sw": {"lpush", "KEY", "1"},
		"rl1:shop:api:{user:e}:60s:sl": {"zadd", "KEY", 1, "one"},
		"rl1:shop:api:{user:f}:60s:sl": {"set", "KEY", "1"},
		"rl1:shop:~penalty:{user:a}":   {"zadd", "KEY", 1, "1-2"},
	} {
		spoil[1] = key
		if err := s.Client().Do(ctx, spoil...).Err(); err != nil {
			t.Fatal(err)
		}
		text, wrong := describeKey(t, optionsFor(s.URL()), key, nil)
		if contains(t, text, "wrong", "do "); !wrong {
			t.Errorf("%s is taken for good", key)
		}
		_, command, _ := strings.Cut(text, "do         ")
		if out := shell(t, strings.TrimSpace(command)); !strings.HasPrefix(out, "1") {
			t.Errorf("%s: %s", command, out)
		}
		if text, wrong = describeKey(t, optionsFor(s.URL()), key, nil); wrong {
			t.Errorf("%s is still wrong: %s", key, text)
		}
	}
}

func TestInspectRejectsWhatIsNoKey(t *testing.T) {
	d := connect(t, optionsFor(redistest.Start(t).URL()))
	for key, want := range map[string]string{
		"":           "it does not begin with rl1:",
		"session:42": "it does not begin with rl1:",
		// without quotes, a shell changes the key to these texts
		"rl1:shop:api:user:u_42:60s:sw":     "the braces are not where they belong",
		"rl1:shop:{user:u_42}:60s:sw":       "the braces are not where they belong",
		"rl1:shop:api:{user:u_42}":          "it does not end in a window and an algorithm",
		"rl1:shop:api:{user:u_42}:60s":      "it does not end in a window and an algorithm",
		"rl1:shop:api:{user:u_42}:60s:xx":   `the algorithm is "xx", and there are fw, sw, sl and tb`,
		"rl1:shop:api:{user:u_42}:60:sw":    `the window is "60"`,
		"rl1:shop:api:{user:u_42}:day:sw":   `the window is "day"`,
		"rl1:shop:api:{user:u_42}:a:60s:sw": "has no kind and value",
		"rl1:shop:~penalty:{user}":          "the penalty has no client",
		"rl1:shop:api:{~64:user:a}:60s:sw":  "the shard is none from ~0 to ~63",
		"rl1:shop:api:{~1:user}:60s:sw":     "has no kind and value",
	} {
		_, err := d.Inspect(context.Background(), key, nil)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), example) {
			t.Errorf("%q: %v, want %q", key, err, want)
		}
	}
}

// leasedForAMinute matches the report of a lease that was granted less than half a minute ago.
var leasedForAMinute = regexp.MustCompile(`leased     units may be out until \S+ \(in (1m0s|[3-5]\d(\.\d)?s)\)`)

// TestInspectReportsLeases checks the description of units that a node has really leased.
func TestInspectReportsLeases(t *testing.T) {
	s := redistest.Start(t)
	for _, limit := range []string{"100/1h fixed_window", "100/1h", "100/1h burst 100"} {
		key := "rl1:shop:api:{user:u_42}:3600s:" + check(t, "k", limit, 1).Limit.Algorithm().Label()
		lease := check(t, key, limit, 1)
		lease.Op, lease.Min, lease.Max, lease.ShareMille, lease.Age = counter.OpUpTo, 1, 20, 500, counter.Minute
		if results := charge(t, s, lease); results[0].Granted < 2 {
			t.Fatalf("%s: nothing is leased: %+v", limit, results[0])
		}
		text, _ := describeKey(t, optionsFor(s.URL()), key, nil)
		if !leasedForAMinute.MatchString(text) {
			t.Errorf("%s: a lease of a minute is not reported in:\n%s", limit, text)
		}
	}
}
