// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/lua"
)

// handCheck is the script that addedLatency compares with. It increments one key and sets the key's
// expiry.
const handCheck = `local n = redis.call('INCR', KEYS[1]) redis.call('PEXPIRE', KEYS[1], ARGV[1]) return n`

// addedLatency measures the latency that three rules over Redis add to a request, and compares it
// with the latency of one bare EVALSHA. Each variant uses one connection.
func addedLatency(o options, out *section) error {
	b, err := newBench(o)
	if err != nil {
		return err
	}
	defer b.close()
	_, address, err := b.redis()
	if err != nil {
		return err
	}
	named := strings.Replace(fmt.Sprintf(threeRules, "1000000000"), "penstock {", "penstock {\n\t\tname bench-site", 1)
	_, plain, err := b.caddyNode(caddySetting{site: "\tbench_headers\n\trespond \"ok\""})
	if err != nil {
		return err
	}
	_, trip, err := b.caddyNode(caddySetting{site: "\tbench_round_trip " + address + "\n\trespond \"ok\""})
	if err != nil {
		return err
	}
	_, limited, err := b.caddyNode(caddySetting{global: overRedis(address), site: named})
	if err != nil {
		return err
	}
	client := redis.NewClient(&redis.Options{Addr: address})
	defer client.Close()
	ctx := context.Background()
	sha, err := client.ScriptLoad(ctx, handCheck).Result()
	if err != nil {
		return err
	}
	store, err := redisstore.New(redisstore.Options{URL: "redis://" + address, Timeout: time.Second})
	if err != nil {
		return err
	}
	defer store.Close()
	variants := []struct {
		name string
		call func() error
	}{
		{"EVALSHA by go-redis", func() error { return client.EvalSha(ctx, sha, []string{"hand"}, 60_000).Err() }},
		{"EVALSHA by go-redis of penstock's script, 3 checks", bareTake(client)},
		{"penstock's store, 3 checks", threeChecks(store)},
		{"Caddy, headers only", keepAlive(plain)},
		{"Caddy, penstock, 3 rules over Redis", keepAlive(limited)},
		{"Caddy, a handler that sends one EVALSHA", keepAlive(trip)},
	}
	figures := make([][]time.Duration, len(variants))
	for range o.rounds {
		for i, v := range variants {
			p50, err := medianSpan(o.round/2, v.call)
			if err != nil {
				return fmt.Errorf("%s: %w", v.name, err)
			}
			figures[i] = append(figures[i], p50)
		}
	}
	bare, same, base, with := median(figures[0]), median(figures[1]), median(figures[3]), median(figures[4])
	out.table("", "p50")
	for i, v := range variants {
		out.say("| %s | %v |\n", v.name, median(figures[i]))
	}
	out.say("\nadded: %v, %.2f × a bare EVALSHA of two commands, %.2f × a bare EVALSHA of the same checks, %.2f × what an\n"+
		"EVALSHA of two commands adds inside Caddy\n", with-base, float64(with-base)/float64(bare),
		float64(with-base)/float64(same), float64(with-base)/float64(median(figures[5])-base))
	return nil
}

// bareTake returns a function that calls Penstock's script for the three limits with nothing but
// go-redis. The argument of the script has the format that lua/take.lua documents.
func bareTake(client *redis.Client) func() error {
	ctx := context.Background()
	sha := client.ScriptLoad(ctx, lua.Take).Val()
	number := func(plan []byte, values ...float64) []byte {
		for _, v := range values {
			plan = binary.LittleEndian.AppendUint64(plan, math.Float64bits(v))
		}
		return plan
	}
	plan := number(nil, 0)
	var keys []string
	for i, text := range limits {
		limit, err := counter.ParseLimit(text)
		if err != nil {
			panic(err) // limits is valid, or the benchmark has a bug
		}
		keys = append(keys, fmt.Sprintf("rl1:bench:rule%d:{ip:127.0.0.2}:x", i))
		plan = append(plan, byte(limit.Algorithm()), byte(counter.OpTake))
		plan = number(plan, 1, float64(limit.Count()), float64(limit.Window()), float64(limit.TTL()/counter.Millisecond))
		if limit.Algorithm() == counter.TokenBucket {
			unit, refill, tick := limit.Arithmetic()
			plan = number(plan, float64(limit.Capacity()), float64(unit), float64(refill), float64(tick))
		}
	}
	return func() error { return client.EvalSha(ctx, sha, keys, plan).Err() }
}

// limits holds the limits of threeRules, which no request exceeds.
var limits = []string{"1000000000/1m token_bucket", "1000000000/1h", "1000000000/1d fixed_window"}

// threeChecks returns a function that sends to the store the same checks as the handler sends for
// threeRules.
func threeChecks(store counter.Store) func() error {
	var checks, results = make([]counter.Check, 3), make([]counter.Result, 3)
	for i, text := range limits {
		limit, err := counter.ParseLimit(text)
		if err != nil {
			panic(err) // the texts above are valid, or the benchmark has a bug
		}
		checks[i] = counter.Check{Key: fmt.Appendf(nil, "rl1:bench:rule%d:{ip:127.0.0.1}:x", i), Limit: &limit, Cost: 1}
	}
	return func() error { return store.Take(context.Background(), checks, results) }
}

func medianSpan(span time.Duration, call func() error) (time.Duration, error) {
	var spans []time.Duration
	for begin := time.Now(); time.Since(begin) < span; {
		t := time.Now()
		if err := call(); err != nil {
			return 0, err
		}
		spans = append(spans, time.Since(t))
	}
	slices.Sort(spans)
	return percentile(spans, 50), nil
}

// keepAlive returns a function that sends one GET over its own connection and reads the response.
// This client uses little CPU time, so it hardly changes the result.
func keepAlive(url string) func() error {
	host := strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/")
	var connection net.Conn
	var reader *bufio.Reader
	request := []byte("GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n")
	return func() error {
		if connection == nil {
			c, err := net.Dial("tcp", host)
			if err != nil {
				return err
			}
			connection, reader = c, bufio.NewReader(c)
		}
		if _, err := connection.Write(request); err != nil {
			return err
		}
		answer, err := http.ReadResponse(reader, nil)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("answered %s", answer.Status)
		}
		_, err = io.Copy(io.Discard, answer.Body)
		return err
	}
}
