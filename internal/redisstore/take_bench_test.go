// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/inturns"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/lua"
)

// byHand is a token bucket as one writes it for that alone: what take is measured against. Its numbers are whole, so
// that they are cheap to print.
const byHand = `
local key, capacity, rate, cost = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local bucket = redis.call('HMGET', key, 'tokens', 'at')
local tokens, at = tonumber(bucket[1]) or capacity, tonumber(bucket[2]) or now
tokens = math.min(capacity, tokens + math.floor(math.max(0, now - at) * rate))
local allowed = 0
if tokens >= cost then
  tokens, allowed = tokens - cost, 1
end
redis.call('HSET', key, 'tokens', tokens, 'at', now)
redis.call('PEXPIRE', key, ARGV[4])
return {allowed, tokens}
`

// benchClients is how many clients the calls are spread over; benchPipeline how many calls go out together.
const (
	benchClients  = 10_000
	benchPipeline = 500
)

// contender is a script under measurement.
type contender struct {
	name   string
	tag    string       // a letter that keeps its counters apart
	limits []core.Limit // none: by hand
	bounds *core.Bounds // of limits of a calendar day
	guard  *core.Penalty
	// Of each round, per call:
	server, cpu []float64
}

func (c *contender) command(ctx context.Context, client int, sha string) redis.Cmder {
	if c.limits == nil {
		return redis.NewCmd(ctx, "evalsha", sha, 1, benchKey(client, c.tag+"0"), 1_000_000, 0.001, 1, 120_000)
	}
	checks := make([]core.Check, len(c.limits))
	for i := range c.limits {
		key := benchKey(client, c.tag+strconv.Itoa(i))
		checks[i] = core.Check{Key: []byte(key), Limit: &c.limits[i], Cost: 1, Bounds: c.bounds}
	}
	if c.guard != nil {
		for i := range checks {
			checks[i].Guard, checks[i].Violation = 1, int64(i+1)
		}
		checks = append([]core.Check{{Key: []byte(benchKey(client, c.tag+"p")), Penalty: c.guard}}, checks...)
	}
	return newTake(ctx, 0, checks)
}

// benchKey is a key of 36 bytes, as the schema makes them.
func benchKey(client int, ending string) string {
	return fmt.Sprintf("rl1:shop:api:{user:u_%07d}:60s:%s", client, ending)
}

// run sends a pipeline of calls, half of them to counters that exist.
func (c *contender) run(b *testing.B, s *redistest.Server, sha string, from int) {
	ctx := context.Background()
	pipe := s.Client().Pipeline()
	for i := range benchPipeline {
		_ = pipe.Process(ctx, c.command(ctx, (from+i)%benchClients, sha))
	}
	server, cpu := s.ServerTime("evalsha"), s.CPU()
	if _, err := pipe.Exec(ctx); err != nil {
		b.Fatal(err)
	}
	c.server = append(c.server, float64((s.ServerTime("evalsha")-server).Nanoseconds())/benchPipeline)
	c.cpu = append(c.cpu, float64((s.CPU()-cpu).Nanoseconds())/benchPipeline)
}

// BenchmarkTakeServer compares what a call of take costs Redis with a script made by hand for one token bucket, in one
// run: the time of the command by Redis' own statistics, and the processor time of its main thread, which includes
// reading the command and writing the answer. Both are medians of rounds in which all have their turn.
func BenchmarkTakeServer(b *testing.B) {
	s := redistest.Start(b)
	bareOn(b, s)
	sha, err := s.Client().ScriptLoad(context.Background(), byHand).Result()
	if err != nil {
		b.Fatal(err)
	}
	tb := mustLimit(b, core.TokenBucket, 1_000_000, 16*core.Minute)
	sw := mustLimit(b, core.SlidingWindow, 1_000_000, core.Minute)
	fw := mustLimit(b, core.FixedWindow, 1_000_000, core.Hour)
	sl := mustLimit(b, core.SlidingLog, 1_000, core.Second)
	daily, err := core.NewCalendarLimit(1_000_000, core.CalendarDay)
	if err != nil {
		b.Fatal(err)
	}
	today := core.CalendarDay.Bounds(core.Micros(time.Now().UnixMicro()), time.UTC)
	punished := &core.Penalty{Window: core.Hour, Threshold: 3, Multipliers: []int64{1, 2, 4, 8}}
	contenders := []*contender{
		{name: "hand"},
		{name: "tb", limits: []core.Limit{tb}},
		{name: "tb×2", limits: []core.Limit{tb, tb}},
		{name: "tb×3", limits: []core.Limit{tb, tb, tb}},
		{name: "tb+sw", limits: []core.Limit{tb, sw}},
		{name: "tb+sw+fw", limits: []core.Limit{tb, sw, fw}},
		{name: "sw", limits: []core.Limit{sw}},
		{name: "fw", limits: []core.Limit{fw}},
		{name: "sl", limits: []core.Limit{sl}},
		{name: "day", limits: []core.Limit{daily}, bounds: &today},
		{name: "tb+penalty", limits: []core.Limit{tb}, guard: punished},
		{name: "tb+sw+fw+penalty", limits: []core.Limit{tb, sw, fw}, guard: punished},
		{name: "tb-refused", limits: []core.Limit{mustLimit(b, core.TokenBucket, 1, 16*core.Minute)}},
		{name: "tb-refused+penalty", limits: []core.Limit{mustLimit(b, core.TokenBucket, 1, 16*core.Minute)}, guard: punished},
	}
	for i, c := range contenders {
		c.tag = string(rune('a' + i))
	}
	round := 0
	for b.Loop() {
		for _, c := range contenders {
			c.run(b, s, sha, round*benchPipeline)
		}
		round++
	}
	hand := contenders[0]
	for _, c := range contenders {
		b.ReportMetric(inturns.Median(c.server), c.name+"-ns")
		b.ReportMetric(inturns.Median(c.server)/inturns.Median(hand.server), c.name+"-ratio")
		b.ReportMetric(inturns.Median(c.cpu)/inturns.Median(hand.cpu), c.name+"-cpu-ratio")
	}
	b.ReportMetric(0, "ns/op") // a round of all of them means nothing
	b.Logf("%d bytes of script", len(lua.Take))
}

func mustLimit(t testing.TB, a core.Algorithm, count int64, window core.Micros) core.Limit {
	t.Helper()
	l, err := core.NewLimit(a, count, window, 0)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
