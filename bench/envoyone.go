// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// envoyOne compares, at one connection, how long a request takes through Envoys in front of an upstream.
func envoyOne(o options, s *section) error {
	three := func(int) string { return threeEnvoyRules }
	none := &contender{name: "no filter", unasked: true, start: plainEnvoy(routeProxied, func(int) string { return "" })}
	theirs := &contender{name: "Envoy's filter, envoyproxy/ratelimit, Redis, 1 rule", unasked: true, start: served(rateLimits)}
	http1 := &contender{name: "Penstock, bridge by HTTP/1.1, Redis, 3 rules", unasked: true, start: ours(routeProxied, true, true, three)}
	http2 := &contender{name: "the same, bridge by HTTP/2", unasked: true, start: ours(routeProxied, true, false, three)}
	all := []*contender{none, theirs, http1, http2}
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
