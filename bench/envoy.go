// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"
)

// threeEnvoyRules holds the same rules as threeRules, in the form of a policy for Envoy.
const threeEnvoyRules = `  - {name: one, limit: 1000000000/1m token_bucket}
  - {name: two, limit: 1000000000/1h}
  - {name: three, match: {path: /*}, limit: 1000000000/1d fixed_window}
`

// oneEnvoyRule returns a policy with one rule and the given limit. The argument named words holds
// further lines of the policy.
func oneEnvoyRule(limit int, words string) string {
	return fmt.Sprintf("  - {name: one, limit: %s fixed_window}\n%s", hourly(limit), words)
}

// plainEnvoy returns a function that starts Envoys that call no rate limit service.
func plainEnvoy(route string, filter func(limit int) string) func(*bench, int, int) (*system, error) {
	return func(b *bench, limit, nodes int) (*system, error) {
		return b.envoys(nodes, func() (*system, error) {
			return b.envoy("", envoySetting{route: route, filter: filter(limit)})
		})
	}
}

// bench.envoys starts several Envoys and returns them as one system.
func (b *bench) envoys(nodes int, start func() (*system, error)) (*system, error) {
	all := new(system)
	for range nodes {
		one, err := start()
		if err != nil {
			return nil, err
		}
		all.url, all.processes, all.nodes = one.url, append(all.processes, one.processes...), append(all.nodes, getting(one.url))
	}
	return all, nil
}

// serving waits until an Envoy admits requests. A filter gets its policy, or a connection to its
// service, only a moment after Envoy listens.
func serving(one *system, err error) (*system, error) {
	if err != nil {
		return nil, err
	}
	return one, one.processes[0].until(20*time.Second, "lets a request through", func() bool { return answersAnother(one.url) })
}

// bench.counting starts several Envoys that count in memory or, if withRedis is set, in one Redis.
// It starts each of them with start, to which it passes the address of the Redis, or "".
func (b *bench) counting(withRedis bool, nodes int, start func(address string) (*system, error)) (*system, error) {
	var store []*process
	address := ""
	if withRedis {
		p, at, err := b.redis()
		if err != nil {
			return nil, err
		}
		store, address = []*process{p}, at
	}
	s, err := b.envoys(nodes, func() (*system, error) { return serving(start(address)) })
	if err != nil {
		return nil, err
	}
	s.redis, s.sends, s.processes = address, []string{"evalsha"}, append(s.processes, store...)
	return s, nil
}

// asking starts Envoys with a filter that decides nothing. For each request, the filter requests
// the health of a bridge whose counters are in memory.
func asking(b *bench, limit, nodes int) (*system, error) {
	return b.envoys(nodes, func() (*system, error) {
		bridge, socket, err := b.bridge(oneEnvoyRule(limit, ""), "")
		if err != nil {
			return nil, err
		}
		return b.envoy("", envoySetting{route: routeProxied, filter: filterWasm(vmWasm, "asks"), service: socket, http1: true}, bridge)
	})
}

// ours returns a function that starts Envoys with Penstock's filter, each with its own bridge. The
// bridges count in memory or in one Redis.
func ours(route string, withRedis, http1 bool, rules func(limit int) string) func(*bench, int, int) (*system, error) {
	return func(b *bench, limit, nodes int) (*system, error) {
		return b.counting(withRedis, nodes, func(address string) (*system, error) {
			bridge, socket, err := b.bridge(rules(limit), address)
			if err != nil {
				return nil, err
			}
			return b.envoy("", envoySetting{route: route, filter: filterWasm(penstockWasm, filterSettings), service: socket, http1: http1}, bridge)
		})
	}
}

// served returns a function that starts Envoys with Envoy's own rate limit filter. Each Envoy calls
// its own node of a rate limit service.
func served(service func(b *bench, limit, nodes int) (*system, error)) func(*bench, int, int) (*system, error) {
	return servedBy(routeByRemote, filterRival, service)
}

// servedBy returns a function that starts Envoys with the given filter. Each Envoy calls its own
// node of a rate limit service.
func servedBy(route, filter string, service func(b *bench, limit, nodes int) (*system, error)) func(*bench, int, int) (*system, error) {
	return func(b *bench, limit, nodes int) (*system, error) {
		behind, err := service(b, limit, nodes)
		if err != nil {
			return nil, err
		}
		n := 0
		s, err := b.envoys(nodes, func() (*system, error) {
			n++
			return serving(b.envoy("", envoySetting{route: route, filter: filter, service: behind.addresses[n-1]}))
		})
		if err != nil {
			return nil, err
		}
		s.redis, s.sends, s.processes = behind.redis, behind.sends, append(s.processes, behind.processes...)
		return s, nil
	}
}

// envoyDirect compares filters in Envoys that answer requests themselves, without an upstream.
func envoyDirect(o options, s *section) error {
	none := &contender{name: "no filter", unasked: true, start: plainEnvoy(routeDirect, func(int) string { return "" })}
	baseline := &contender{name: "a Go filter that only reads the headers and adds three", unasked: true,
		start: plainEnvoy(routeDirect, func(int) string { return filterWasm(vmWasm, "headers") })}
	calls := &contender{name: "a Go filter that calls Envoy as often as Penstock's, leased, and decides nothing", unasked: true,
		start: plainEnvoy(routeDirect, func(int) string { return filterWasm(vmWasm, "calls") })}
	local := &contender{name: "Envoy's local rate limit (one bucket, no headers)", start: plainEnvoy(routeDirect, filterLocal)}
	leased := &contender{name: "Penstock, bridge, Redis, `lease: auto`",
		start: ours(routeDirect, true, true, func(limit int) string { return oneEnvoyRule(limit, "lease: auto\n") })}
	exact := &contender{name: "Penstock, bridge, Redis", start: ours(routeDirect, true, true, func(limit int) string { return oneEnvoyRule(limit, "") })}
	memory := &contender{name: "Penstock, bridge in memory, 3 rules", unasked: true,
		start: ours(routeDirect, false, true, func(int) string { return threeEnvoyRules })}
	shim := &contender{name: "Kuadrant's wasm-shim, Limitador in memory", earlier: shimEarlier, start: shims}
	alike := &contender{name: "the same with the same three fields (`headers: [x-ratelimit]`)", unasked: true,
		start: ours(routeDirect, true, true, func(limit int) string { return oneEnvoyRule(limit, "lease: auto\nheaders: [x-ratelimit]\n") })}
	all := []*contender{none, baseline, calls, local, leased, alike, exact, memory, shim}
	if err := compare(o, all, callers); err != nil {
		return err
	}
	describe(s, all)
	ratio := of(leased.seen.seen, perSecond) / of(baseline.seen.seen, perSecond)
	floor := of(leased.seen.seen, perSecond) / of(calls.seen.seen, perSecond)
	three := of(alike.seen.seen, perSecond) / of(baseline.seen.seen, perSecond)
	s.targets(fmt.Sprintf("Leased, Penstock's filter serves %.2f × the requests of a Go filter that only reads and adds headers (%s), %.2f × with the same "+
		"three, and %.2f × of one that calls Envoy as often and decides nothing.", ratio, against(ratio >= 0.9, "0.9 ×"), three, floor),
		besideShim(memory, shim, none))
	return nil
}

// envoyProxied compares Envoys in front of an upstream.
func envoyProxied(o options, s *section) error {
	none := &contender{name: "no filter", unasked: true, start: plainEnvoy(routeProxied, func(int) string { return "" })}
	theirs := &contender{name: "Envoy's filter, envoyproxy/ratelimit, Redis", start: served(rateLimits(forPrometheus))}
	silent := &contender{name: "the same without statistics", unasked: true, start: served(rateLimits(noStatistics))}
	ours3 := &contender{name: "Penstock, bridge, Redis, 3 rules", unasked: true, start: ours(routeProxied, true, true, func(int) string { return threeEnvoyRules })}
	http2 := &contender{name: "the same, bridge by HTTP/2", unasked: true, start: ours(routeProxied, true, false, func(int) string { return threeEnvoyRules })}
	leased := &contender{name: "Penstock, bridge, Redis, `lease: auto`", start: ours(routeProxied, true, true, func(limit int) string { return oneEnvoyRule(limit, "lease: auto\n") })}
	service := &contender{name: "Envoy's filter, Penstock's rate limit service, Redis", start: served(bridges(true, ""))}
	memory := &contender{name: "Envoy's filter, Limitador in memory", start: served(limitadors("memory")),
		earlier: []string{"12,000", "0.50", "5,255", "95", "Envoy 76 + Limitador 19", "", "1,000", ""}}
	redis := &contender{name: "Envoy's filter, Limitador, Redis", start: served(limitadors("redis")),
		earlier: []string{"7,600", "0.32", "8,470", "153", "Envoy 91 + Limitador 55 + Redis 7", "2", "1,000", "1,000 (two nodes)"}}
	cached := &contender{name: "Envoy's filter, Limitador, Redis cached", start: served(limitadors("redis_cached")),
		earlier: []string{"8,600", "0.36", "7,290", "132", "Envoy 93 + Limitador 38 + Redis 1", "0.0004", "1,000", "1,302 (two nodes)"}}
	all := []*contender{none, theirs, silent, ours3, http2, leased, service, memory, redis, cached}
	if err := compare(o, all, callers); err != nil {
		return err
	}
	describe(s, all)
	var said []string
	for _, than := range []struct {
		rival *contender
		which string
	}{{theirs, "envoyproxy/ratelimit, both with statistics for Prometheus,"}, {silent, "envoyproxy/ratelimit that keeps no statistics"}} {
		ratio := of(ours3.seen.seen, perSecond) / of(than.rival.seen.seen, perSecond)
		cpu := of(ours3.seen.seen, totalCPU) / of(than.rival.seen.seen, totalCPU)
		said = append(said, fmt.Sprintf("Three rules of Penstock serve %.2f × the requests of one of %s (%s) at %.2f × the CPU (%s).",
			ratio, than.which, against(ratio >= 1.5, "1.5 ×"), cpu, against(cpu <= 0.65, "0.65 ×")))
	}
	s.targets(said...)
	return nil
}
