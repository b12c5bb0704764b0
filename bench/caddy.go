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
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/redisstore"
	"github.com/penstock/penstock/lua"
)

// handCheck is the script a bare EVALSHA runs in addedLatency: one counter and its expiry.
const handCheck = `local n = redis.call('INCR', KEYS[1]) redis.call('PEXPIRE', KEYS[1], ARGV[1]) return n`

// server is a running Caddy.
type server struct {
	process *exec.Cmd
	url     string
	dir     string
	header  string // that load sends with every request; "" for none
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// startCaddy starts a Caddy with the given directives in its one site, and global options if any.
func startCaddy(binary, global, site string) (*server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "penstock-bench")
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf("{\n\tadmin off\n\tauto_https off\n%s\n}\nhttp://127.0.0.1:%d {\n%s\n}\n", global, port, site)
	path := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		return nil, err
	}
	s := &server{url: fmt.Sprintf("http://127.0.0.1:%d/", port), dir: dir}
	s.process = exec.Command(binary, "run", "--config", path)
	s.process.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	logs, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	s.process.Stderr = logs
	if err := s.process.Start(); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if answer, err := http.Get(s.url); err == nil {
			_, _ = io.Copy(io.Discard, answer.Body)
			answer.Body.Close()
			return s, nil
		}
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(logs.Name())
			s.stop()
			return nil, fmt.Errorf("caddy did not answer:\n%s\n%s", config, text)
		}
	}
}

func (s *server) stop() {
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
	_ = os.RemoveAll(s.dir)
}

// cpu returns the processor time the server has used, in clock ticks of 10 ms, from the kernel's accounting.
func (s *server) cpu() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.process.Process.Pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, err := strconv.Atoi(fields[11])
	if err != nil {
		return 0, err
	}
	system, err := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond, err
}

var requestsLine = regexp.MustCompile(`(\d+) requests in`)

// load sends requests from many connections for a while and returns how many were answered and the CPU each cost.
func (s *server) load(span time.Duration, connections int) (requests int, cpu time.Duration, err error) {
	before, err := s.cpu()
	if err != nil {
		return 0, 0, err
	}
	args := []string{"-t1", fmt.Sprintf("-c%d", connections), fmt.Sprintf("-d%ds", int(span.Seconds())), s.url}
	if s.header != "" {
		args = append(args, "-H", s.header)
	}
	out, err := exec.Command("wrk", args...).Output()
	if err != nil {
		return 0, 0, fmt.Errorf("wrk: %w", err)
	}
	after, err := s.cpu()
	if err != nil {
		return 0, 0, err
	}
	match := requestsLine.FindSubmatch(out)
	if match == nil {
		return 0, 0, fmt.Errorf("wrk said:\n%s", out)
	}
	requests, err = strconv.Atoi(string(match[1]))
	return requests, (after - before) / time.Duration(max(1, requests)), err
}

const threeRules = `	penstock {
		rule one {
			limit %[1]s/1m token_bucket
		}
		rule two {
			limit %[1]s/1h
		}
		rule three {
			match path /*
			limit %[1]s/1d fixed_window
		}
	}
	respond "ok"`

// caddyCost compares what a request costs a Caddy's processor: the same headers without a decision, Penstock, and
// caddy-ratelimit, let through and refused.
func caddyCost(o options) error {
	body := `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded",` +
		`"status":429,"violated-policies":["one"],"error":"Rate limit exceeded"}`
	rival := "\trate_limit {\n\t\tzone one {\n\t\t\tkey {http.request.remote.host}\n\t\t\twindow 1m\n\t\t\tevents %d\n\t\t}\n\t}\n\trespond \"ok\""
	variants := []struct{ name, site string }{
		{"headers only (baseline)", "\tbench_headers\n\trespond \"ok\""},
		{"headers only, 429 with the same body", "\tbench_headers\n\trespond `" + body + "` 429"},
		{"nothing", "\trespond \"ok\""},
		{"penstock, 3 rules, memory", fmt.Sprintf(threeRules, "1000000000")},
		{"penstock, 3 rules, all refused", fmt.Sprintf(threeRules, "1")},
		{"caddy-ratelimit, 1 zone", fmt.Sprintf(rival, 10_000_000)},
		{"caddy-ratelimit, all refused", fmt.Sprintf(rival, 1)},
	}
	servers := make([]*server, len(variants))
	for i, v := range variants {
		s, err := startCaddy(o.caddy, "", v.site)
		if err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
		defer s.stop()
		servers[i] = s
	}
	cpu, rate := make([][]float64, len(variants)), make([][]float64, len(variants))
	for range o.rounds {
		for i, s := range servers {
			requests, c, err := s.load(o.round, callers)
			if err != nil {
				return err
			}
			cpu[i] = append(cpu[i], float64(c.Nanoseconds())/1e3)
			rate[i] = append(rate[i], float64(requests)/o.round.Seconds())
		}
	}
	fmt.Printf("\n## Caddy, %d connections: CPU per request\n\n| | requests/s | CPU µs/request | above the baseline |\n|---|---|---|---|\n", callers)
	for i, v := range variants {
		fmt.Printf("| %s | %.0f | %.1f | %+.1f |\n", v.name, median(rate[i]), median(cpu[i]), median(cpu[i])-median(cpu[0]))
	}
	return nil
}

// addedLatency compares, at one connection, what three rules over Redis add to a request with one bare EVALSHA.
func addedLatency(o options) error {
	address, stop, err := startRedis()
	if err != nil {
		return err
	}
	defer stop()
	global := fmt.Sprintf("\tpenstock {\n\t\tname bench\n\t\tstore redis redis://%s {\n\t\t\ttimeout 1s\n\t\t}\n\t}", address)
	named := strings.Replace(fmt.Sprintf(threeRules, "1000000000"), "penstock {", "penstock {\n\t\tname bench-site", 1)
	plain, err := startCaddy(o.caddy, "", "\tbench_headers\n\trespond \"ok\"")
	if err != nil {
		return err
	}
	defer plain.stop()
	trip, err := startCaddy(o.caddy, "", "\tbench_round_trip "+address+"\n\trespond \"ok\"")
	if err != nil {
		return err
	}
	defer trip.stop()
	limited, err := startCaddy(o.caddy, global, named)
	if err != nil {
		return err
	}
	defer limited.stop()
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
		{"Caddy, headers only", keepAlive(plain.url)},
		{"Caddy, penstock, 3 rules over Redis", keepAlive(limited.url)},
		{"Caddy, a handler that sends one EVALSHA", keepAlive(trip.url)},
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
	fmt.Printf("\n## One connection: what three rules over Redis add\n\n| | p50 |\n|---|---|\n")
	for i, v := range variants {
		fmt.Printf("| %s | %v |\n", v.name, median(figures[i]))
	}
	fmt.Printf("\nadded: %v, %.2f × a bare EVALSHA of two commands, %.2f × a bare EVALSHA of the same checks, %.2f × what an\n"+
		"EVALSHA of two commands adds inside Caddy\n", with-base, float64(with-base)/float64(bare),
		float64(with-base)/float64(same), float64(with-base)/float64(median(figures[5])-base))
	return nil
}

// bareTake sends penstock's script for the same three limits, as lua/take.lua states its argument, and does nothing else.
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
		limit, err := core.ParseLimit(text)
		if err != nil {
			panic(err) // limits is right or the benchmark is wrong
		}
		keys = append(keys, fmt.Sprintf("rl1:bench:rule%d:{ip:127.0.0.2}:x", i))
		plan = append(plan, byte(limit.Algorithm()), byte(core.OpTake))
		plan = number(plan, 1, float64(limit.Count()), float64(limit.Window()), float64(limit.TTL()/core.Millisecond))
		if limit.Algorithm() == core.TokenBucket {
			unit, refill, tick := limit.Arithmetic()
			plan = number(plan, float64(limit.Capacity()), float64(unit), float64(refill), float64(tick))
		}
	}
	return func() error { return client.EvalSha(ctx, sha, keys, plan).Err() }
}

// limits are those of threeRules, which let everything through.
var limits = []string{"1000000000/1m token_bucket", "1000000000/1h", "1000000000/1d fixed_window"}

// threeChecks asks the store what the handler asks it for threeRules.
func threeChecks(store core.Store) func() error {
	var checks, results = make([]core.Check, 3), make([]core.Result, 3)
	for i, text := range limits {
		limit, err := core.ParseLimit(text)
		if err != nil {
			panic(err) // the texts above are right or the benchmark is wrong
		}
		checks[i] = core.Check{Key: fmt.Appendf(nil, "rl1:bench:rule%d:{ip:127.0.0.1}:x", i), Limit: &limit, Cost: 1}
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

// keepAlive returns a call that sends one GET over one connection of its own and reads the answer: a client light enough
// not to hide what it measures.
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
