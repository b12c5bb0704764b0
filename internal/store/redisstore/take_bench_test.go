// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/benchpair"
	"github.com/penstock/penstock/internal/test/redistest"
	"github.com/penstock/penstock/lua"
)

// byHand is a minimal script for one token bucket, used as the baseline. Its numbers are integers,
// which are cheap to format.
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

// benchClients is the number of clients that share the calls, and benchPipeline the number of calls
// in a pipeline.
const (
	benchClients  = 10_000
	benchPipeline = 500
)

// contender is a script under measurement.
type contender struct {
	name   string
	tag    string          // a letter that distinguishes the counters of the contender
	limits []counter.Limit // the checks; nil for the script byHand
	bounds *counter.Bounds // the boundaries for limits of a calendar day
	guard  *counter.Penalty
	// The figures of each round, for one call:
	server, cpu []float64
}

func (c *contender) command(ctx context.Context, client int, sha string) redis.Cmder {
	if c.limits == nil {
		return redis.NewCmd(ctx, "evalsha", sha, 1, benchKey(client, c.tag+"0"), 1_000_000, 0.001, 1, 120_000)
	}
	checks := make([]counter.Check, len(c.limits))
	for i := range c.limits {
		key := benchKey(client, c.tag+strconv.Itoa(i))
		checks[i] = counter.Check{Key: []byte(key), Limit: &c.limits[i], Cost: 1, Bounds: c.bounds}
	}
	if c.guard != nil {
		for i := range checks {
			checks[i].Guard, checks[i].Violation = 1, int64(i+1)
		}
		checks = append([]counter.Check{{Key: []byte(benchKey(client, c.tag+"p")), Penalty: c.guard}}, checks...)
	}
	return newTake(ctx, 0, checks)
}

// benchKey returns a key of 36 bytes in the form that policies create.
func benchKey(client int, ending string) string {
	return fmt.Sprintf("rl1:shop:api:{user:u_%07d}:60s:%s", client, ending)
}

// contender.run sends a pipeline of calls, half of them to existing counters.
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

// BenchmarkTakeServer compares the cost of a call for Redis with that of a minimal script for one
// token bucket. The benchmark reports the command's time by Redis' statistics, and the processor
// time of Redis' main thread, which includes reading the command and writing the reply. Both times
// are medians of rounds in which all contenders take turns.
func BenchmarkTakeServer(b *testing.B) {
	s := redistest.Start(b)
	bareOn(b, s)
	sha, err := s.Client().ScriptLoad(context.Background(), byHand).Result()
	if err != nil {
		b.Fatal(err)
	}
	tb := mustLimit(b, counter.TokenBucket, 1_000_000, 16*counter.Minute)
	sw := mustLimit(b, counter.SlidingWindow, 1_000_000, counter.Minute)
	fw := mustLimit(b, counter.FixedWindow, 1_000_000, counter.Hour)
	sl := mustLimit(b, counter.SlidingLog, 1_000, counter.Second)
	daily, err := counter.NewCalendarLimit(1_000_000, counter.CalendarDay)
	if err != nil {
		b.Fatal(err)
	}
	today := counter.CalendarDay.Bounds(counter.Micros(time.Now().UnixMicro()), time.UTC)
	punished := &counter.Penalty{Window: counter.Hour, Threshold: 3, Multipliers: []int64{1, 2, 4, 8}}
	contenders := []*contender{
		{name: "hand"},
		{name: "tb", limits: []counter.Limit{tb}},
		{name: "tb×2", limits: []counter.Limit{tb, tb}},
		{name: "tb×3", limits: []counter.Limit{tb, tb, tb}},
		{name: "tb+sw", limits: []counter.Limit{tb, sw}},
		{name: "tb+sw+fw", limits: []counter.Limit{tb, sw, fw}},
		{name: "sw", limits: []counter.Limit{sw}},
		{name: "fw", limits: []counter.Limit{fw}},
		{name: "sl", limits: []counter.Limit{sl}},
		{name: "day", limits: []counter.Limit{daily}, bounds: &today},
		{name: "tb+penalty", limits: []counter.Limit{tb}, guard: punished},
		{name: "tb+sw+fw+penalty", limits: []counter.Limit{tb, sw, fw}, guard: punished},
		{name: "tb-refused", limits: []counter.Limit{mustLimit(b, counter.TokenBucket, 1, 16*counter.Minute)}},
		{name: "tb-refused+penalty", limits: []counter.Limit{mustLimit(b, counter.TokenBucket, 1, 16*counter.Minute)}, guard: punished},
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
		b.ReportMetric(benchpair.Median(c.server), c.name+"-ns")
		b.ReportMetric(benchpair.Median(c.server)/benchpair.Median(hand.server), c.name+"-ratio")
		b.ReportMetric(benchpair.Median(c.cpu)/benchpair.Median(hand.cpu), c.name+"-cpu-ratio")
	}
	b.ReportMetric(0, "ns/op") // the time of a whole round has no meaning
	b.Logf("%d bytes of script", len(lua.Take))
}

func mustLimit(t testing.TB, a counter.Algorithm, count int64, window counter.Micros) counter.Limit {
	t.Helper()
	l, err := counter.NewLimit(a, count, window, 0)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
