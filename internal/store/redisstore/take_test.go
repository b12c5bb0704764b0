// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/redistest"
	"github.com/penstock/penstock/internal/test/seed"
	"github.com/penstock/penstock/internal/test/storetest"
)

// TestMulDiv compares the exact division of lua/intmath.lua with math/big, at its documented bounds
// and at random.
func TestMulDiv(t *testing.T) {
	text, err := os.ReadFile("../../../lua/intmath.lua")
	if err != nil {
		t.Fatal(err)
	}
	const most, factor = 1 << 53, 1<<42 - 1
	cases := [][3]int64{{most, 1, 1}, {most, factor, factor}, {most - 1, factor, factor}, {most, factor - 1, factor},
		{1 << 41, factor, factor - 1}, {0, factor, 1}, {1, 1, factor}, {94906267, 94906266, 7}, {most / 3, 3, 3},
		{1<<40 - 1, 2_678_400_000_000, 2_678_399_999_999}, {1<<50 + 1, 1024, 1023}}
	rng := seed.Random(t)
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
		if quotient.Cmp(big.NewInt(most)) > 0 { // in that case the exact value is not promised
			number, err := strconv.ParseFloat(strings.Fields(answers[i])[0], 64)
			if err != nil || number < most {
				t.Errorf("%d × %d / %d = %s, want more than 2^53 (%s)", c[0], c[1], c[2], answers[i], want)
			}
		} else if answers[i] != want {
			t.Errorf("%d × %d / %d = %s, want %s", c[0], c[1], c[2], answers[i], want)
		}
	}
}

// edge is one check near the limits of a double's precision.
type edge struct {
	at    counter.Micros
	limit counter.Limit
	op    counter.Op
	cost  int64
}

// TestEdgeOf53Bits uses products beyond 2^53 and counts of 2^40, and compares each step with the
// model.
func TestEdgeOf53Bits(t *testing.T) {
	const start counter.Micros = 1_700_049_600 * counter.Second
	of := func(a counter.Algorithm, count int64, window counter.Micros, burst int64) counter.Limit {
		l, err := counter.NewLimit(a, count, window, burst)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	huge := of(counter.SlidingWindow, counter.CountMax, counter.WindowMax, 0)
	prime := of(counter.TokenBucket, 999_999_937, counter.WindowMax, 2_000)
	whole := of(counter.TokenBucket, counter.CountMax, counter.WindowMax, counter.CountMax)
	short := of(counter.TokenBucket, counter.CountMax, counter.WindowMin, counter.CountMax)
	aligned := start - start%counter.WindowMax
	stories := map[string][]edge{
		"a full window of 2^41 fades": {
			{aligned + counter.WindowMax - 1, huge, counter.OpTake, counter.CountMax}, {aligned + counter.WindowMax - 1, huge, counter.OpForce, counter.CountMax},
			{aligned + counter.WindowMax + 1, huge, counter.OpTake, 1}, {aligned + counter.WindowMax*3/2 - 1, huge, counter.OpTake, 1},
			{aligned + counter.WindowMax*3/2, huge, counter.OpTake, 1}, {aligned + counter.WindowMax*3/2 + 1, huge, counter.OpTake, 1},
			{aligned + 2*counter.WindowMax - 1, huge, counter.OpTake, counter.CountMax + 1}, {aligned + 2*counter.WindowMax - 1, huge, counter.OpTake, counter.CountMax},
		},
		"parts convert there and back": {
			{start, prime, counter.OpTake, 1_999}, {start + 1, whole, counter.OpTake, counter.CountMax - 2_000},
			{start + 2, short, counter.OpLook, 1}, {start + 2, prime, counter.OpForce, counter.CountMax},
			{start + 3, whole, counter.OpForce, counter.CountMax}, {start + 4, short, counter.OpTake, 1},
			{start + 5, prime, counter.OpTake, 1}, {start + counter.Day, whole, counter.OpTake, 1},
		},
		"debt of a whole window": {
			{start, whole, counter.OpTake, counter.CountMax}, {start, whole, counter.OpForce, counter.CountMax + 1},
			{start + counter.WindowMax - 1, whole, counter.OpTake, 1}, {start + counter.WindowMax, whole, counter.OpTake, 1},
			{start + counter.WindowMax + 3, whole, counter.OpTake, 1}, {start + 2*counter.WindowMax, whole, counter.OpTake, counter.CountMax},
		},
	}
	s := redistest.Start(t)
	for name, story := range stories {
		t.Run(name, func(t *testing.T) {
			script, model := bareOn(t, s), &storetest.Model{}
			for i, step := range story {
				check := []counter.Check{{Key: []byte("k"), Limit: &step.limit, Op: step.op, Cost: step.cost}}
				script.pinned.Store(int64(step.at))
				model.Pin(step.at)
				got, want := make([]counter.Result, 1), make([]counter.Result, 1)
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

// foreignKey is a key in the form that package core builds, with the client in the braces.
const foreignKey = "rule:{bad}"

// foreignValue is a value at a counter's key that Penstock did not write.
type foreignValue struct {
	name       string
	algorithms []counter.Algorithm
	want       string   // the text expected in the error
	plant      []string // the command that writes it, with key foreignKey
}

func foreignClients() []foreignValue {
	texts := []counter.Algorithm{counter.FixedWindow, counter.SlidingWindow, counter.TokenBucket}
	logs, bucket := []counter.Algorithm{counter.SlidingLog}, []counter.Algorithm{counter.TokenBucket}
	all := append(logs, texts...)
	return []foreignValue{
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
		{"a sum too small for its expired marks", logs, "CORRUPT", []string{"EVAL", plantExpired(11, 1), "0"}},
		{"a foreign member among expired marks", logs, "CORRUPT", []string{"EVAL",
			"redis.call('ZADD', 'rule:{bad}', 11.5, 'hello') " + plantExpired(20, 40), "0"}},
	}
}

// plantExpired returns a script that writes a log with some marks that have expired and some that
// have not, and the sum 5.
func plantExpired(gone, stay int) string {
	return fmt.Sprintf(`local now = redis.call('TIME')[1] .. '000000'
for i = 1, %d do redis.call('ZADD', 'rule:{bad}', i, i .. ':1') end
for i = 1, %d do redis.call('ZADD', 'rule:{bad}', now + i, string.format('%%d:1', now + i)) end
return redis.call('SET', 'rule:{bad}:n', '5')`, gone, stay)
}

// TestCorruptCounters: if a counter's key has a value that Penstock did not write, the call fails.
// The error is logged, so it names the rule but not the client. Nothing is charged, and other
// counters continue to work.
func TestCorruptCounters(t *testing.T) {
	s := redistest.Start(t)
	for _, f := range foreignClients() {
		for _, a := range f.algorithms {
			t.Run(f.name+"/"+a.Label(), func(t *testing.T) { f.meet(t, s, a) })
		}
	}
}

func (f *foreignValue) meet(t *testing.T, s *redistest.Server, a counter.Algorithm) {
	ctx, client := t.Context(), s.Client()
	b, good, l := bareOn(t, s), mustLimit(t, counter.FixedWindow, 5, counter.Hour), mustLimit(t, a, 5, counter.Minute)
	var do []any
	for _, arg := range f.plant {
		do = append(do, arg)
	}
	if err := client.Do(ctx, do...).Err(); err != nil {
		t.Fatal(err)
	}
	before := client.Dump(ctx, foreignKey).Val()
	checks := []counter.Check{{Key: []byte("good"), Limit: &good, Cost: 2}, {Key: []byte(foreignKey), Limit: &l, Cost: 1}}
	err := b.Take(ctx, checks, make([]counter.Result, 2))
	if !errors.Is(err, counter.ErrUnavailable) || !strings.Contains(err.Error(), f.want) {
		t.Errorf("error %v, want one with %s", err, f.want)
	}
	if f.want == "CORRUPT" && !strings.Contains(err.Error(), `"rule:"`) || strings.Contains(err.Error(), "bad") {
		t.Errorf("error %v must name the rule and not the client", err)
	}
	if client.Dump(ctx, foreignKey).Val() != before {
		t.Error("the foreign value was changed")
	}
	var r [1]counter.Result
	if err := b.Take(ctx, checks[:1], r[:]); err != nil || r[0].Remaining != 3 {
		t.Errorf("the counter beside it: %+v (%v), want 3 left: nothing was charged before", r[0], err)
	}
}

// TestLostSum: losing the sum of a log, or the log without its sum, neither grants a fresh limit
// nor denies forever.
func TestLostSum(t *testing.T) {
	s := redistest.Start(t)
	b, l := bareOn(t, s), mustLimit(t, counter.SlidingLog, 5, counter.Minute)
	ask := func(cost, remaining int64) {
		t.Helper()
		var r [1]counter.Result
		err := b.Take(t.Context(), []counter.Check{{Key: []byte("k"), Limit: &l, Cost: cost}}, r[:])
		if err != nil || r[0].Remaining != remaining || r[0].Denied {
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
	ask(1, 4) // the log itself was deleted: its contents are lost, and so is the sum
}

// TestMemory checks that a token bucket takes no more memory in Redis than documented.
func TestMemory(t *testing.T) {
	const counters, allowed = 100_000, 210
	s := redistest.Start(t)
	b, l := bareOn(t, s), mustLimit(t, counter.TokenBucket, 100, counter.Hour)
	pipe := s.Client().Pipeline()
	ask := func(i int) {
		check := counter.Check{Key: []byte(benchKey(i, "tb")), Limit: &l, Cost: 1}
		if len(check.Key) != 36 {
			t.Fatalf("key %q has %d bytes, want 36", check.Key, len(check.Key))
		}
		_ = pipe.Process(t.Context(), newTake(t.Context(), counter.Micros(b.pinned.Load()), []counter.Check{check}))
	}
	exec := func() {
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// The memory of a connection and of the script is excluded.
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

// TestTimeToLive checks when Redis will expire each counter, on the real clock.
func TestTimeToLive(t *testing.T) {
	s := redistest.Start(t)
	window := 90 * counter.Second
	tests := []struct {
		name    string
		limit   counter.Limit
		forced  int64
		want    counter.Micros // the span since the decision
		further string         // a second key with the same lifetime
	}{
		{"fixed window", mustLimit(t, counter.FixedWindow, 10, window), 1, 2 * window, ""},
		{"sliding window", mustLimit(t, counter.SlidingWindow, 10, window), 1, 2 * window, ""},
		{"sliding log", mustLimit(t, counter.SlidingLog, 10, window), 1, window, "k" + sumSuffix},
		{"token bucket", mustLimit(t, counter.TokenBucket, 10, window), 1, 2 * window, ""},
		{"token bucket, empty", mustLimit(t, counter.TokenBucket, 10, window), 10, 2 * window, ""},
		{"token bucket, in debt", mustLimit(t, counter.TokenBucket, 10, window), 15, 3*window - window/2, ""},
		{"token bucket, fraction of a millisecond", mustLimit(t, counter.TokenBucket, 7, 100*counter.Second+1*counter.Millisecond), 1,
			2 * (100*counter.Second + counter.Millisecond), ""},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			b := bareOn(t, s)
			check := []counter.Check{{Key: []byte("k"), Limit: &c.limit, Op: counter.OpForce, Cost: c.forced}}
			var r [1]counter.Result
			if err := b.Take(t.Context(), check, r[:]); err != nil || r[0].Granted != c.forced {
				t.Fatalf("%+v (%v)", r, err)
			}
			expires := func(key string) counter.Micros {
				return counter.Micros(s.Client().PExpireTime(t.Context(), key).Val().Microseconds())
			}
			at := expires("k")
			// Redis reads its clock again for each expiry, in milliseconds, and might be
			// descheduled in the meantime.
			if late := at - r[0].At - c.want; late < -counter.Millisecond || late > counter.Second {
				t.Errorf("kept for %s, want %s", at-r[0].At, c.want)
			}
			if c.further != "" {
				if apart := expires(c.further) - at; apart < -counter.Second || apart > counter.Second {
					t.Errorf("%q is forgotten %s after the counter", c.further, apart)
				}
			}
			check[0].Op = counter.OpLook
			if err := b.Take(t.Context(), check, r[:]); err != nil || expires("k") != at {
				t.Errorf("a look moved the expiry from %d to %d (%v)", at, expires("k"), err)
			}
		})
	}
}

// TestTimeToLiveAhead: if a counter is ahead of the clock because the clock went back, the time to
// live follows from the counter's own instant.
func TestTimeToLiveAhead(t *testing.T) {
	s := redistest.Start(t)
	b, l := bareOn(t, s), mustLimit(t, counter.SlidingLog, 10, counter.Hour)
	ahead := counter.Micros(time.Now().UnixMicro()) + 30*counter.Minute
	b.pinned.Store(int64(ahead))
	check := []counter.Check{{Key: []byte("k"), Limit: &l, Cost: 1}}
	var r [1]counter.Result
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
