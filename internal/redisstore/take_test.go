// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/internal/storetest"
)

// TestMulDiv runs the exact division of lua/exact.lua beside math/big, at the bounds it states and at random.
func TestMulDiv(t *testing.T) {
	text, err := os.ReadFile("../../lua/exact.lua")
	if err != nil {
		t.Fatal(err)
	}
	const most, factor = 1 << 53, 1<<42 - 1
	cases := [][3]int64{{most, 1, 1}, {most, factor, factor}, {most - 1, factor, factor}, {most, factor - 1, factor},
		{1 << 41, factor, factor - 1}, {0, factor, 1}, {1, 1, factor}, {94906267, 94906266, 7}, {most / 3, 3, 3},
		{1<<40 - 1, 2_678_400_000_000, 2_678_399_999_999}, {1<<50 + 1, 1024, 1023}}
	rng := rand.New(rand.NewPCG(storetest.Seed(t), 0))
	for range 5000 {
		a, b, c := rng.Int64N(most)>>rng.IntN(53), rng.Int64N(factor)>>rng.IntN(42), 1+rng.Int64N(factor)>>rng.IntN(42)
		cases = append(cases, [3]int64{a, b, c})
	}
	var args []any
	for _, c := range cases {
		args = append(args, c[0], c[1], c[2])
	}
	script := string(text) + `
local answers = {}
for i = 1, #ARGV, 3 do
  local quotient, rest = mul_div(ARGV[i] + 0, ARGV[i + 1] + 0, ARGV[i + 2] + 0)
  answers[#answers + 1] = string.format('%.0f %.0f', quotient, rest)
end
return answers`
	s := redistest.Start(t)
	answers, err := s.Client().Eval(context.Background(), script, nil, args...).StringSlice()
	if err != nil || len(answers) != len(cases) {
		t.Fatalf("%d answers: %v", len(answers), err)
	}
	for i, c := range cases {
		product := new(big.Int).Mul(big.NewInt(c[0]), big.NewInt(c[1]))
		quotient, rest := new(big.Int).QuoRem(product, big.NewInt(c[2]), new(big.Int))
		want := fmt.Sprintf("%d %d", quotient, rest)
		if quotient.Cmp(big.NewInt(most)) > 0 { // only that it is beyond is promised
			number, err := strconv.ParseFloat(strings.Fields(answers[i])[0], 64)
			if err != nil || number < most {
				t.Errorf("%d × %d / %d = %s, want more than 2^53 (%s)", c[0], c[1], c[2], answers[i], want)
			}
		} else if answers[i] != want {
			t.Errorf("%d × %d / %d = %s, want %s", c[0], c[1], c[2], answers[i], want)
		}
	}
}

// edge is a step of a story at the edge of what a double holds.
type edge struct {
	at    core.Micros
	limit core.Limit
	op    core.Op
	cost  int64
}

// TestEdgeOf53Bits goes where products pass 2^53 and counts 2^40, each step compared with the model.
func TestEdgeOf53Bits(t *testing.T) {
	const start core.Micros = 1_700_049_600 * core.Second
	of := func(a core.Algorithm, count int64, window core.Micros, burst int64) core.Limit {
		l, err := core.NewLimit(a, count, window, burst)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	huge := of(core.SlidingWindow, core.CountMax, core.WindowMax, 0)
	prime := of(core.TokenBucket, 999_999_937, core.WindowMax, 2_000)
	whole := of(core.TokenBucket, core.CountMax, core.WindowMax, core.CountMax)
	short := of(core.TokenBucket, core.CountMax, core.WindowMin, core.CountMax)
	aligned := start - start%core.WindowMax
	stories := map[string][]edge{
		"a full window of 2^41 fades": {
			{aligned + core.WindowMax - 1, huge, core.OpTake, core.CountMax}, {aligned + core.WindowMax - 1, huge, core.OpForce, core.CountMax},
			{aligned + core.WindowMax + 1, huge, core.OpTake, 1}, {aligned + core.WindowMax*3/2 - 1, huge, core.OpTake, 1},
			{aligned + core.WindowMax*3/2, huge, core.OpTake, 1}, {aligned + core.WindowMax*3/2 + 1, huge, core.OpTake, 1},
			{aligned + 2*core.WindowMax - 1, huge, core.OpTake, core.CountMax + 1}, {aligned + 2*core.WindowMax - 1, huge, core.OpTake, core.CountMax},
		},
		"parts convert there and back": {
			{start, prime, core.OpTake, 1_999}, {start + 1, whole, core.OpTake, core.CountMax - 2_000},
			{start + 2, short, core.OpLook, 1}, {start + 2, prime, core.OpForce, core.CountMax},
			{start + 3, whole, core.OpForce, core.CountMax}, {start + 4, short, core.OpTake, 1},
			{start + 5, prime, core.OpTake, 1}, {start + core.Day, whole, core.OpTake, 1},
		},
		"debt of a whole window": {
			{start, whole, core.OpTake, core.CountMax}, {start, whole, core.OpForce, core.CountMax + 1},
			{start + core.WindowMax - 1, whole, core.OpTake, 1}, {start + core.WindowMax, whole, core.OpTake, 1},
			{start + core.WindowMax + 3, whole, core.OpTake, 1}, {start + 2*core.WindowMax, whole, core.OpTake, core.CountMax},
		},
	}
	s := redistest.Start(t)
	for name, story := range stories {
		t.Run(name, func(t *testing.T) {
			script, model := bareOn(t, s), &storetest.Model{}
			for i, step := range story {
				check := []core.Check{{Key: []byte("k"), Limit: &step.limit, Op: step.op, Cost: step.cost}}
				script.pinned.Store(int64(step.at))
				model.Pin(step.at)
				got, want := make([]core.Result, 1), make([]core.Result, 1)
				if err := errors.Join(script.Take(t.Context(), check, got), model.Take(t.Context(), check, want)); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("step %d (-model +script):\n%s", i, diff)
				}
				wantState, _ := model.Counter(t, check[0].Key, check[0].Limit)
				gotState, _ := script.counter(t, check[0].Key, check[0].Limit)
				if diff := cmp.Diff(wantState, gotState); diff != "" {
					t.Errorf("step %d: state (-model +script):\n%s", i, diff)
				}
			}
		})
	}
}

// foreignKey is a key as core makes them: the client is in the braces.
const foreignKey = "rule:{bad}"

// foreign is something that is not ours under a counter's key.
type foreign struct {
	name       string
	algorithms []core.Algorithm
	want       string   // in the error
	plant      []string // the command that puts it there, key foreignKey
}

func foreigners() []foreign {
	texts := []core.Algorithm{core.FixedWindow, core.SlidingWindow, core.TokenBucket}
	logs, bucket := []core.Algorithm{core.SlidingLog}, []core.Algorithm{core.TokenBucket}
	all := append(logs, texts...)
	return []foreign{
		{"a list", all, "WRONGTYPE", []string{"RPUSH", foreignKey, "x"}},
		{"words", texts, "CORRUPT", []string{"SET", foreignKey, "hello"}},
		{"nothing", texts, "CORRUPT", []string{"SET", foreignKey, ""}},
		{"two numbers", texts, "CORRUPT", []string{"SET", foreignKey, "1 2"}},
		{"five numbers", texts, "CORRUPT", []string{"SET", foreignKey, "1 2 3 4 5"}},
		{"a lease in words", texts, "CORRUPT", []string{"SET", foreignKey, "1 2 3 soon"}},
		{"a lease beyond 2^53", texts, "CORRUPT", []string{"SET", foreignKey, "1 2 3 9007199254740994"}},
		{"a negative number", texts, "CORRUPT", []string{"SET", foreignKey, "1 -2 3"}},
		{"a fraction", texts, "CORRUPT", []string{"SET", foreignKey, "1 2.5 3"}},
		{"a number beyond 2^53", texts, "CORRUPT", []string{"SET", foreignKey, "9007199254740994 1 1"}},
		{"a very long number", texts, "CORRUPT", []string{"SET", foreignKey, "1 " + strings.Repeat("9", 400) + " 1"}},
		{"no parts", bucket, "CORRUPT", []string{"SET", foreignKey, "1 2 0"}},
		{"too many parts", bucket, "CORRUPT", []string{"SET", foreignKey, "1 2 4398046511104"}},
		{"a string for a log", logs, "WRONGTYPE", []string{"SET", foreignKey, "1 2 3"}},
		{"a foreign member", logs, "CORRUPT", []string{"ZADD", foreignKey, "1", "hello"}},
		{"a member without units", logs, "CORRUPT", []string{"ZADD", foreignKey, "1", "1:0"}},
		{"a sum that is a list", logs, "WRONGTYPE", []string{"EVAL",
			"redis.call('ZADD', 'rule:{bad}', 1, '1:1') return redis.call('RPUSH', 'rule:{bad}:n', 1)", "0"}},
		{"a sum in words", logs, "CORRUPT", []string{"EVAL",
			"redis.call('ZADD', 'rule:{bad}', 1, '1:1') return redis.call('SET', 'rule:{bad}:n', 'x')", "0"}},
		{"a sum too small", logs, "CORRUPT", []string{"EVAL",
			"redis.call('ZADD', 'rule:{bad}', 1, '1:5') return redis.call('SET', 'rule:{bad}:n', '3')", "0"}},
	}
}

// TestCorruptCounters finds foreign things under a counter's key: the call fails with words that name the rule and, since
// they are logged, not the client; nothing is charged, and other counters go on.
func TestCorruptCounters(t *testing.T) {
	s := redistest.Start(t)
	for _, f := range foreigners() {
		for _, a := range f.algorithms {
			t.Run(f.name+"/"+a.Label(), func(t *testing.T) { f.meet(t, s, a) })
		}
	}
}

func (f *foreign) meet(t *testing.T, s *redistest.Server, a core.Algorithm) {
	ctx, client := t.Context(), s.Client()
	b, good, l := bareOn(t, s), mustLimit(t, core.FixedWindow, 5, core.Hour), mustLimit(t, a, 5, core.Minute)
	var do []any
	for _, arg := range f.plant {
		do = append(do, arg)
	}
	if err := client.Do(ctx, do...).Err(); err != nil {
		t.Fatal(err)
	}
	before := client.Dump(ctx, foreignKey).Val()
	checks := []core.Check{{Key: []byte("good"), Limit: &good, Cost: 2}, {Key: []byte(foreignKey), Limit: &l, Cost: 1}}
	err := b.Take(ctx, checks, make([]core.Result, 2))
	if !errors.Is(err, core.ErrUnavailable) || !strings.Contains(err.Error(), f.want) {
		t.Errorf("error %v, want one with %s", err, f.want)
	}
	if f.want == "CORRUPT" && !strings.Contains(err.Error(), `"rule:"`) || strings.Contains(err.Error(), "bad") {
		t.Errorf("error %v must name the rule and not the client", err)
	}
	if client.Dump(ctx, foreignKey).Val() != before {
		t.Error("the foreign value was changed")
	}
	var r [1]core.Result
	if err := b.Take(ctx, checks[:1], r[:]); err != nil || r[0].Remaining != 3 {
		t.Errorf("the counter beside it: %+v (%v), want 3 left: nothing was charged before", r[0], err)
	}
}

// TestLostSum evicts the sum of a log, and the log without its sum: neither gives a fresh allowance nor locks anybody out.
func TestLostSum(t *testing.T) {
	s := redistest.Start(t)
	b, l := bareOn(t, s), mustLimit(t, core.SlidingLog, 5, core.Minute)
	ask := func(cost, remaining int64) {
		t.Helper()
		var r [1]core.Result
		err := b.Take(t.Context(), []core.Check{{Key: []byte("k"), Limit: &l, Cost: cost}}, r[:])
		if err != nil || r[0].Remaining != remaining || r[0].Refused {
			t.Fatalf("%+v (%v), want %d left", r[0], err, remaining)
		}
	}
	ask(2, 3)
	ask(1, 2)
	s.Client().Del(t.Context(), "k:n")
	ask(1, 1)
	if got := s.Client().Get(t.Context(), "k:n").Val(); got != "4" {
		t.Errorf("the sum counted anew is %q, want 4", got)
	}
	s.Client().Del(t.Context(), "k")
	ask(1, 4) // the log itself is gone: what it held is lost, and the sum with it
}

// TestOutOfMemory takes from a server that may not write: nothing of the call is charged.
func TestOutOfMemory(t *testing.T) {
	s := redistest.Start(t)
	b, checks, results := bareOn(t, s), fourChecks(t), make([]core.Result, 4)
	if err := b.Take(t.Context(), checks, results); err != nil {
		t.Fatal(err)
	}
	for i, limit := range []string{"1", "0"} {
		if err := s.Client().ConfigSet(t.Context(), "maxmemory", limit).Err(); err != nil {
			t.Fatal(err)
		}
		err := b.Take(t.Context(), checks, results)
		if i == 0 && (err == nil || !strings.Contains(err.Error(), "OOM")) {
			t.Fatalf("a full server: %v, want its OOM error", err)
		}
		if i == 1 && err != nil {
			t.Fatal(err)
		}
	}
	for i, r := range results {
		if r.Remaining != 8 {
			t.Errorf("check %d: %d left, want 8: two of three calls were answered", i, r.Remaining)
		}
	}
}

// TestMemory holds a token bucket to what it may cost Redis.
func TestMemory(t *testing.T) {
	const counters, allowed = 100_000, 210
	s := redistest.Start(t)
	b, l := bareOn(t, s), mustLimit(t, core.TokenBucket, 100, core.Hour)
	pipe := s.Client().Pipeline()
	ask := func(i int) {
		check := core.Check{Key: []byte(benchKey(i, "tb")), Limit: &l, Cost: 1}
		if len(check.Key) != 36 {
			t.Fatalf("key %q has %d bytes, want 36", check.Key, len(check.Key))
		}
		_ = pipe.Process(t.Context(), newTake(t.Context(), core.Micros(b.pinned.Load()), []core.Check{check}))
	}
	exec := func() {
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// What one connection and the script cost is not the counters'.
	for i := range 1_000 {
		ask(counters + i)
	}
	exec()
	before := s.Memory()
	for i := range counters {
		if ask(i); i%1_000 == 999 {
			exec()
		}
	}
	each := float64(s.Memory()-before) / counters
	t.Logf("%.1f bytes a counter", each)
	if each > allowed {
		t.Errorf("a counter takes %.1f bytes, allowed are %d", each, allowed)
	}
}

// TestTimeToLive looks at the instant Redis will forget each counter at, on the real clock.
func TestTimeToLive(t *testing.T) {
	s := redistest.Start(t)
	window := 90 * core.Second
	tests := []struct {
		name    string
		limit   core.Limit
		forced  int64
		want    core.Micros // from the decision on
		further string      // a second key that lives as long
	}{
		{"fixed window", mustLimit(t, core.FixedWindow, 10, window), 1, 2 * window, ""},
		{"sliding window", mustLimit(t, core.SlidingWindow, 10, window), 1, 2 * window, ""},
		{"sliding log", mustLimit(t, core.SlidingLog, 10, window), 1, window, "k" + sumSuffix},
		{"token bucket", mustLimit(t, core.TokenBucket, 10, window), 1, 2 * window, ""},
		{"token bucket, empty", mustLimit(t, core.TokenBucket, 10, window), 10, 2 * window, ""},
		{"token bucket, in debt", mustLimit(t, core.TokenBucket, 10, window), 15, 3*window - window/2, ""},
		{"token bucket, fraction of a millisecond", mustLimit(t, core.TokenBucket, 7, 100*core.Second+1*core.Millisecond), 1,
			2 * (100*core.Second + core.Millisecond), ""},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			b := bareOn(t, s)
			check := []core.Check{{Key: []byte("k"), Limit: &c.limit, Op: core.OpForce, Cost: c.forced}}
			var r [1]core.Result
			if err := b.Take(t.Context(), check, r[:]); err != nil || r[0].Granted != c.forced {
				t.Fatalf("%+v (%v)", r, err)
			}
			expires := func(key string) core.Micros {
				return core.Micros(s.Client().PExpireTime(t.Context(), key).Val().Microseconds())
			}
			at := expires("k")
			// Redis reads its clock again for each expiry, in milliseconds, and may have lost the processor meanwhile.
			if late := at - r[0].At - c.want; late < -core.Millisecond || late > core.Second {
				t.Errorf("kept for %s, want %s", at-r[0].At, c.want)
			}
			if c.further != "" {
				if apart := expires(c.further) - at; apart < -core.Second || apart > core.Second {
					t.Errorf("%q is forgotten %s after the counter", c.further, apart)
				}
			}
			check[0].Op = core.OpLook
			if err := b.Take(t.Context(), check, r[:]); err != nil || expires("k") != at {
				t.Errorf("a look moved the expiry from %d to %d (%v)", at, expires("k"), err)
			}
		})
	}
}

// TestTimeToLiveAhead sets Redis' clock back in effect, by a counter that is ahead of it: it is kept for as long as its
// own instant asks.
func TestTimeToLiveAhead(t *testing.T) {
	s := redistest.Start(t)
	b, l := bareOn(t, s), mustLimit(t, core.SlidingLog, 10, core.Hour)
	ahead := core.Micros(time.Now().UnixMicro()) + 30*core.Minute
	b.pinned.Store(int64(ahead))
	check := []core.Check{{Key: []byte("k"), Limit: &l, Cost: 1}}
	var r [1]core.Result
	if err := b.Take(t.Context(), check, r[:]); err != nil {
		t.Fatal(err)
	}
	if left := s.Client().PTTL(t.Context(), "k").Val(); left < 24*time.Hour {
		t.Errorf("under a pinned clock a counter is kept for %s, want more than a day", left)
	}
	b.pinned.Store(0)
	if err := b.Take(t.Context(), check, r[:]); err != nil || r[0].Receipt != ahead {
		t.Fatalf("%+v (%v), want a charge at the counter's own instant", r, err)
	}
	left := s.Client().PTTL(t.Context(), "k").Val()
	if left < 89*time.Minute || left > 90*time.Minute+time.Second {
		t.Errorf("a log half an hour ahead is kept for %s, want 90 minutes", left)
	}
}
