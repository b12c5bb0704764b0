// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// nginxStart returns a function that starts several nginx servers. If limited is set, limit_req
// admits as many requests as the limit at once, and almost none after that.
func nginxStart(limited bool) func(*bench, int, int) (*system, error) {
	return func(b *bench, limit, nodes int) (*system, error) {
		s := new(system)
		for range nodes {
			zone, use := "", ""
			if limited {
				zone, use = "limit_req_zone $binary_remote_addr zone=one:1m rate=1r/m; limit_req_status 429;", fmt.Sprintf("limit_req zone=one burst=%d nodelay;", limit-1)
				if limit == unlimited {
					zone, use = "limit_req_zone $binary_remote_addr zone=one:1m rate=1000000r/s;", "limit_req zone=one burst=1000000 nodelay;"
				}
			}
			p, url, err := b.nginx(zone, use)
			if err != nil {
				return nil, err
			}
			s.url, s.processes, s.nodes = url, append(s.processes, p), append(s.nodes, getting(url))
		}
		return s, nil
	}
}

// localCompared compares limiters that count in the memory of the server's process. The row before
// each limiter shows the same server without the limiter.
func localCompared(o options, s *section) error {

	all := []*contender{
		{name: "nginx", unasked: true, start: nginxStart(false)},
		{name: "nginx, `limit_req`", start: nginxStart(true), earlier: []string{"110,000", "0.92", "564", "9.1", "", "", "", ""}},
		{name: "Envoy", unasked: true, start: plainEnvoy(routeDirect, always(""))},
		{name: "Envoy, local rate limit", start: plainEnvoy(routeDirect, filterLocal)},
		{name: "Caddy", unasked: true, start: ofCaddy(false, always("\trespond \"ok\""))},
		{name: "Caddy, caddy-ratelimit", start: ofCaddy(false, zoned)},
		{name: "Caddy, Penstock in memory, all headers", start: ofCaddy(false, func(limit int) string { return oneRule(hourly(limit), "") })},
	}
	if err := compare(o, all, callers); err != nil {
		return err
	}
	s.table("", "requests/s", "relative to no limiter", "p50 µs", "CPU µs/request", "more than no limiter", "admitted of 1,000 allowed: one node", "three nodes")
	var base *contender
	for _, c := range all {
		if c.unasked {
			base = c
		}
		if c.seen == nil {
			s.row(append([]string{c.name + " (not installed; **measured earlier**)"}, c.earlier...)...)
			continue
		}
		seen := c.seen.seen
		rate, cpu := of(seen, perSecond), of(seen, totalCPU)
		beside, beyond := "", ""
		if !c.unasked && base.seen != nil {
			beside, beyond = fmt.Sprintf("%.2f", rate/of(base.seen.seen, perSecond)), fmt.Sprintf("%+.1f", cpu-of(base.seen.seen, totalCPU))
		}
		s.row(c.name, thousands(rate), beside, thousands(of(seen, p50Micros)), fmt.Sprintf("%.1f", cpu), beyond, c.one, c.three)
	}
	return nil
}
