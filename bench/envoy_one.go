// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// envoyOne compares the latency of requests that pass through Envoy to an upstream, over one
// connection.
func envoyOne(o options, s *section) error {
	three := func(int) string { return threeEnvoyRules }
	none := &contender{name: "no filter", unasked: true, start: plainEnvoy(routeProxied, func(int) string { return "" })}
	theirs := &contender{name: "Envoy's filter, envoyproxy/ratelimit, Redis, 1 rule", unasked: true, start: served(rateLimits(forPrometheus))}
	silent := &contender{name: "the same without statistics", unasked: true, start: served(rateLimits(noStatistics))}
	http1 := &contender{name: "Penstock, bridge by HTTP/1.1, Redis, 3 rules", unasked: true, start: ours(routeProxied, true, true, three)}
	one := &contender{name: "the same, 1 rule", unasked: true, start: ours(routeProxied, true, true, func(limit int) string { return oneEnvoyRule(limit, "") })}
	leased := &contender{name: "the same, 3 rules, `lease: auto`", unasked: true,
		start: ours(routeProxied, true, true, func(int) string { return threeEnvoyRules + "lease: auto\n" })}
	http2 := &contender{name: "the same, 3 rules, bridge by HTTP/2", unasked: true, start: ours(routeProxied, true, false, three)}
	memory := &contender{name: "the same, 3 rules, bridge in memory", unasked: true, start: ours(routeProxied, false, true, three)}
	health := &contender{name: "a Go filter that asks the bridge for its health and decides nothing", unasked: true, start: asking}
	all := []*contender{none, theirs, silent, http1, one, leased, http2, memory, health}
	if err := compare(o, all, 1); err != nil {
		return err
	}
	s.table("", "p50 µs", "×")
	than := of(theirs.seen.seen, p50Micros)
	for _, c := range all {
		p50 := of(c.seen.seen, p50Micros)
		s.row(c.name, thousands(p50), fmt.Sprintf("%.2f", p50/than))
	}
	ratio := of(http1.seen.seen, p50Micros) / than
	s.targets(fmt.Sprintf("At one connection Penstock takes %.2f × as long as envoyproxy/ratelimit (%s).", ratio, against(ratio <= 1, "1 ×")))
	return nil
}
