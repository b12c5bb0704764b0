// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// benchPolicy is what the bridge decides by: %s is the rules.
const benchPolicy = "name: bench\non_error: deny\nrules:\n%s"

// threeEnvoyRules are those of threeRules.
const threeEnvoyRules = `  - {name: one, limit: 1000000000/1m token_bucket}
  - {name: two, limit: 1000000000/1h}
  - {name: three, match: {path: /*}, limit: 1000000000/1d fixed_window}
`

// oneEnvoyRule is what a rate limit service is set up with.
const oneEnvoyRule = "  - {name: one, limit: 1000000000/1m fixed_window}\n"

// rivalRules is the same for envoyproxy/ratelimit.
const rivalRules = "domain: bench\ndescriptors:\n  - key: remote_address\n    rate_limit: {unit: minute, requests_per_unit: 1000000000}\n"

// filterSettings is the filter's configuration.
const filterSettings = "cluster: service\ndeadline: 500ms\non_error: deny\npoll: 1s\n"

// bench is a directory for one part, with the processes that were started for it.
type bench struct {
	options
	dir      string
	upstream int
	http1    bool // from Envoy to the bridge
	started  []*process
}

func newBench(o options) (b *bench, err error) {
	b = &bench{options: o}
	if b.dir, err = os.MkdirTemp("", "penstock-bench"); err != nil {
		return nil, err
	}
	b.upstream, err = startUpstream()
	return b, err
}

func (b *bench) close() {
	for _, p := range b.started {
		p.stop()
	}
	_ = os.RemoveAll(b.dir)
}

// start runs a program until the part is done.
func (b *bench) start(name string, environment []string, program string, args ...string) (*process, error) {
	p, err := startProcess(name, b.dir, environment, program, args...)
	if err == nil {
		b.started = append(b.started, p)
	}
	return p, err
}

func (b *bench) redis() (p *process, address string, err error) {
	port, err := laterPort()
	if err != nil {
		return nil, "", err
	}
	if p, err = b.start("Redis", nil, "redis-server", "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--save", "",
		"--appendonly", "no", "--dir", b.dir); err != nil {
		return nil, "", err
	}
	address = fmt.Sprintf("127.0.0.1:%d", port)
	client := redis.NewClient(&redis.Options{Addr: address})
	defer client.Close()
	return p, address, p.until(5*time.Second, "answers", func() bool { return client.Ping(context.Background()).Err() == nil })
}

// bridge runs a bridge with rules; in memory without a Redis. It listens at a socket of its own.
func (b *bench) bridge(rules, redisAddress string, more ...string) (p *process, socket string, err error) {
	number := strconv.Itoa(len(b.started))
	file := filepath.Join(b.dir, "policy-"+number+".yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, benchPolicy, rules), 0o600); err != nil {
		return nil, "", err
	}
	socket = filepath.Join(b.dir, number+".sock")
	args := append([]string{"bridge", "--policy", file, "--listen", "unix:" + socket}, more...)
	if redisAddress != "" {
		args = append(args, "--redis", "redis://"+redisAddress, "--redis-timeout", "500ms")
	}
	if p, err = b.start("bridge", nil, penstockProgram, args...); err != nil {
		return nil, "", err
	}
	return p, socket, p.until(10*time.Second, "listens", func() bool { _, err := os.Stat(socket); return err == nil })
}

// rival runs envoyproxy/ratelimit over a Redis.
func (b *bench) rival(redisAddress string) (p *process, address string, err error) {
	folder := filepath.Join(b.dir, "rival", "bench", "config")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, "", err
	}
	if err := os.WriteFile(filepath.Join(folder, "bench.yaml"), []byte(rivalRules), 0o600); err != nil {
		return nil, "", err
	}
	var ports [3]int
	for i := range ports {
		if ports[i], err = laterPort(); err != nil {
			return nil, "", err
		}
	}
	environment := []string{"USE_STATSD=false", "LOG_LEVEL=error", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + redisAddress,
		"RUNTIME_ROOT=" + filepath.Join(b.dir, "rival"), "RUNTIME_SUBDIRECTORY=bench", "RUNTIME_WATCH_ROOT=false",
		fmt.Sprintf("PORT=%d", ports[0]), fmt.Sprintf("DEBUG_PORT=%d", ports[1]), fmt.Sprintf("GRPC_PORT=%d", ports[2])}
	if p, err = b.start("ratelimit", environment, rivalProgram); err != nil {
		return nil, "", err
	}
	health := fmt.Sprintf("http://127.0.0.1:%d/healthcheck", ports[0])
	return p, fmt.Sprintf("127.0.0.1:%d", ports[2]), p.until(10*time.Second, "healthy", func() bool { return answers(health) })
}

// envoy runs an Envoy as a system by itself, to which what it calls is added.
func (b *bench) envoy(name string, s envoySetting, behind ...*process) (*system, error) {
	s.upstream, s.workers = b.upstream, b.workers
	p, url, _, _, err := startEnvoy(b.dir, s)
	if err != nil {
		return nil, err
	}
	b.started = append(b.started, p)
	sys := &system{name: name, url: url, processes: append([]*process{p}, behind...)}
	// The filter has its policy a moment after Envoy listens.
	return sys, p.until(10*time.Second, "lets a request through", func() bool { return answers(url) })
}

// ours runs Envoy with the filter, the bridge, and Redis unless it is in memory.
func (b *bench) ours(name, route, rules string, inMemory bool) (*system, error) {
	var behind []*process
	address := ""
	if !inMemory {
		store, at, err := b.redis()
		if err != nil {
			return nil, err
		}
		behind, address = append(behind, store), at
	}
	bridge, socket, err := b.bridge(rules, address)
	if err != nil {
		return nil, err
	}
	return b.envoy(name, envoySetting{route: route, filter: filterWasm(penstockWasm, filterSettings), service: socket, http1: b.http1},
		append([]*process{bridge}, behind...)...)
}

// theirs runs Envoy with its own filter, envoyproxy/ratelimit, and Redis.
func (b *bench) theirs(name string) (*system, error) {
	store, address, err := b.redis()
	if err != nil {
		return nil, err
	}
	service, at, err := b.rival(address)
	if err != nil {
		return nil, err
	}
	return b.envoy(name, envoySetting{route: routeByRemote, filter: filterRival, service: at}, service, store)
}

// served runs Envoy with its own filter, the bridge's rate limit service, and Redis.
func (b *bench) served(name string) (*system, error) {
	store, address, err := b.redis()
	if err != nil {
		return nil, err
	}
	service, at, err := b.service(address)
	if err != nil {
		return nil, err
	}
	return b.envoy(name, envoySetting{route: routeByRemote, filter: filterRival, service: at}, service, store)
}

// interleaved measures the systems in turn.
func (b *bench) interleaved(systems []*system, connections int) error {
	for _, s := range systems {
		s.seen = nil
		if _, _, err := wrk(s.url, time.Second, connections); err != nil { // connections are made, memory is taken
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	for range b.rounds {
		for _, s := range systems {
			f, err := s.measured(func() (int, figures, error) { return wrk(s.url, b.round, connections) })
			if err != nil {
				return err
			}
			s.seen = append(s.seen, f)
		}
	}
	return nil
}

// tell prints what was seen, beside one of the systems.
func tell(systems []*system, beside int) {
	fmt.Printf("| | requests/s | × | p50 µs | × | CPU µs/request | × | of it |\n|---|---|---|---|---|---|---|---|\n")
	base := systems[beside].seen
	for _, s := range systems {
		fmt.Printf("| %s | %.0f | %.2f | %.0f | %.2f | %.0f | %.2f | %s |\n", s.name,
			of(s.seen, perSecond), of(s.seen, perSecond)/of(base, perSecond),
			of(s.seen, p50Micros), of(s.seen, p50Micros)/of(base, p50Micros),
			of(s.seen, totalCPU), of(s.seen, totalCPU)/of(base, totalCPU), s.parts())
	}
}

// envoyProxied compares the filter with Envoy's own, both over Redis, in front of an upstream.
func envoyProxied(o options) error {
	b, err := newBench(o)
	if err != nil {
		return err
	}
	defer b.close()
	none, err := b.envoy("no filter", envoySetting{route: routeProxied})
	if err != nil {
		return err
	}
	theirs, err := b.theirs("Envoy's filter, envoyproxy/ratelimit, Redis, 1 rule")
	if err != nil {
		return err
	}
	ours, err := b.ours("penstock, bridge, Redis, 3 rules", routeProxied, threeEnvoyRules, false)
	if err != nil {
		return err
	}
	b.http1 = true
	byHTTP1, err := b.ours("penstock, bridge by HTTP/1.1, Redis, 3 rules", routeProxied, threeEnvoyRules, false)
	if err != nil {
		return err
	}
	bare, err := b.ours("the same, no header fields in the response", routeProxied, threeEnvoyRules+"headers: none\n", false)
	if err != nil {
		return err
	}
	served, err := b.served("Envoy's filter, the bridge's rate limit service, Redis, 1 rule")
	if err != nil {
		return err
	}
	systems := []*system{none, theirs, ours, byHTTP1, bare, served}
	for _, connections := range []int{callers, 1} {
		if err := b.interleaved(systems, connections); err != nil {
			return err
		}
		fmt.Printf("\n## Envoy, %d workers, proxied, %d connections (load %s)\n\n", o.workers, connections, loadAverage())
		tell(systems, 1)
	}
	return nil
}

// What Kuadrant's wasm-shim with Limitador in memory was once measured to reach on a direct_response with 64 connections, on
// a machine of this kind with one worker, beside Envoy without a filter: it is built with tools that this benchmark cannot
// ask for. 2,500 of 57,400 requests a second; 397 and 17.3 µs.
const (
	shimRate = 0.044
	shimCPU  = 22.9
)

// envoyDirect measures the filter where Envoy answers by itself.
func envoyDirect(o options) error {
	b, err := newBench(o)
	if err != nil {
		return err
	}
	defer b.close()
	none, err := b.envoy("no filter", envoySetting{route: routeDirect})
	if err != nil {
		return err
	}
	memory, err := b.ours("penstock, bridge in memory, 3 rules", routeDirect, threeEnvoyRules, true)
	if err != nil {
		return err
	}
	ours, err := b.ours("penstock, bridge, Redis, 3 rules", routeDirect, threeEnvoyRules, false)
	if err != nil {
		return err
	}
	systems := []*system{none, memory, ours}
	if err := b.interleaved(systems, callers); err != nil {
		return err
	}
	fmt.Printf("\n## Envoy, %d workers, direct_response, %d connections (load %s)\n\n", o.workers, callers, loadAverage())
	tell(systems, 0)
	fmt.Printf("\nKuadrant's wasm-shim with Limitador in memory, as once measured: %.3f × the requests without a filter, %.1f × the CPU.\n", shimRate, shimCPU)
	base := none.seen
	for _, s := range systems[1:] {
		rate, cpu := of(s.seen, perSecond)/of(base, perSecond), of(s.seen, totalCPU)/of(base, totalCPU)
		fmt.Printf("%s: %.1f × that of its requests, %.2f × of its CPU.\n", s.name, rate/shimRate, cpu/shimCPU)
	}
	return nil
}

// envoyStart measures how large the filter is, how long Envoy takes to be ready with it, and how much memory it has then.
func envoyStart(o options) error {
	b, err := newBench(o)
	if err != nil {
		return err
	}
	defer b.close()
	module, err := os.Stat(penstockWasm)
	if err != nil {
		return err
	}
	_, socket, err := b.bridge(threeEnvoyRules, "")
	if err != nil {
		return err
	}
	settings := []envoySetting{{route: routeDirect}, {route: routeDirect, filter: filterWasm(penstockWasm, filterSettings), service: socket}}
	ready, work, resident := make([][]time.Duration, 2), make([][]time.Duration, 2), make([][]float64, 2)
	for range o.rounds {
		for i, s := range settings {
			s.workers = o.workers
			took, cpu, memory, err := b.startOnce(s)
			if err != nil {
				return err
			}
			ready[i], work[i], resident[i] = append(ready[i], took), append(work[i], cpu), append(resident[i], memory)
		}
	}
	fmt.Printf("\n## Envoy's start, %d workers (load %s)\n\n| | ready, s | CPU until then, s | memory, MB |\n|---|---|---|---|\n", o.workers, loadAverage())
	for i, name := range []string{"no filter", "penstock"} {
		fmt.Printf("| %s | %.2f | %.2f | %.0f |\n", name, median(ready[i]).Seconds(), median(work[i]).Seconds(), median(resident[i]))
	}
	fmt.Printf("\npenstock.wasm is %.2f MB\n", float64(module.Size())/1e6)
	return nil
}

// startOnce starts an Envoy, sends it requests for a second, and ends it. cpu is what it took until it was ready: on a loaded
// machine that says more than the time.
func (b *bench) startOnce(s envoySetting) (took, cpu time.Duration, memory float64, err error) {
	p, url, _, took, err := startEnvoy(b.dir, s)
	if err != nil {
		return 0, 0, 0, err
	}
	defer p.stop()
	if cpu, err = p.cpu(); err != nil {
		return 0, 0, 0, err
	}
	if err := p.until(10*time.Second, "lets a request through", func() bool { return answers(url) }); err != nil {
		return 0, 0, 0, err
	}
	if _, _, err := wrk(url, time.Second, 1); err != nil {
		return 0, 0, 0, err
	}
	memory, err = p.residentMB()
	return took, cpu, memory, err
}
