// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"
)

// attacked compares Caddys under the requests of one client that exceeds its limit.
func attacked(o options, s *section) error {
	b, err := newBench(o)
	if err != nil {
		return err
	}
	defer b.close()
	answering := func(name, site string) *contender {
		return &contender{name: name, unasked: true, start: refusing(ofCaddy(false, always(site)))}
	}
	accepted := answering("a handler that only sets the same headers", "\tbench_headers\n\trespond \"ok\"")
	body := answering("the same, with status 429 and the body of a denial", "\tbench_headers\n\trespond `"+refusal+"` 429")
	redis := func(name, limit string) *contender {
		return &contender{name: name, unasked: true, start: refusing(ofCaddy(true, always(oneRule(limit, ""))))}
	}
	exact := redis("Penstock, Redis, all admitted", hourly(unlimited))
	refused := redis("Penstock, Redis, all denied until the end of the window", "1000/1d fixed_window")
	over := tenTimes(redis("Penstock, Redis, `100/1s`, 1,000 a second", "100/1s"))
	overBucket := tenTimes(redis("Penstock, Redis, `100/1s burst 10`, 1,000 a second", "100/1s burst 10"))
	rival := &contender{name: "caddy-ratelimit, all denied", unasked: true, start: refusing(ofCaddy(false, func(int) string { return zoned(1) }))}
	all := []*contender{accepted, body, exact, refused, over, overBucket, rival}
	if err := compare(o, all, callers); err != nil {
		return err
	}
	s.table("", "requests/s", "denied", "CPU µs/request", "of it", "Redis calls/s after the first 0.2 s", "admitted/s")
	for _, c := range all {
		seen := c.seen.seen
		calls := ""
		if c.seen.redis != "" {
			calls = thousands(of(seen, func(f *figures) float64 { return f.calls * f.perSecond }))
		}
		s.row(c.name, thousands(of(seen, perSecond)), fmt.Sprintf("%.0f %%", 100*of(seen, refusedOf)), fmt.Sprintf("%.1f", of(seen, totalCPU)),
			c.seen.parts(), calls, thousands(of(seen, func(f *figures) float64 { return admittedOf(f) * f.perSecond })))
	}
	path := of(refused.seen.seen, firstCPU) - of(body.seen.seen, firstCPU)
	through := of(exact.seen.seen, firstCPU) - of(accepted.seen.seen, firstCPU)
	sum := func(f *figures) float64 { return f.calls * f.perSecond }
	letThrough := func(f *figures) float64 { return admittedOf(f) * f.perSecond }
	s.targets(
		fmt.Sprintf("While a client must wait, there are %s Redis calls a second for %s denials a second (%s).", small(of(refused.seen.seen, sum)),
			thousands(of(refused.seen.seen, perSecond)), against(of(refused.seen.seen, sum) < 2, "at most one call for each wait, and one a second to check again")),
		fmt.Sprintf("At ten times `100/1s`, there are %s Redis calls a second: %.1f for each admitted request (%s).",
			thousands(of(over.seen.seen, sum)), of(over.seen.seen, sum)/of(over.seen.seen, letThrough), against(of(over.seen.seen, sum)/of(over.seen.seen, letThrough) <= 2.2,
				"2: one call that denies, and after the wait one that admits")),
		fmt.Sprintf("A denial costs Caddy %+.1f µs more than a handler that answers with the same body; an admitted request costs %+.1f µs more than a handler that answers ok (%s).",
			path, through, against(path <= through, "no more than an admitted request")))
	return nil
}

// tenfoldRate is the number of requests that tenTimes sends per second.
const tenfoldRate = 1_000

// tenTimes makes a contender receive tenfoldRate requests a second.
func tenTimes(c *contender) *contender {
	start := c.start
	c.start = func(b *bench, limit, nodes int) (*system, error) {
		s, err := start(b, limit, nodes)
		if err != nil {
			return nil, err
		}
		s.load = func(span time.Duration, connections int) (int, figures, error) {
			begin, n := time.Now(), int(span.Seconds()*tenfoldRate)
			admitted, err := steady(s.nodes, n, connections, tenfoldRate)
			rate := float64(n) / time.Since(begin).Seconds()
			return n, figures{perSecond: rate, refused: 1 - float64(admitted)/float64(n)}, err
		}
		return s, nil
	}
	return c
}

// attackSettles is the time after which all connections of an attack are in use. A node can
// remember a denial only after the first request was denied.
const attackSettles = 200 * time.Millisecond

// refusing marks a system as expected to deny requests.
func refusing(start func(*bench, int, int) (*system, error)) func(*bench, int, int) (*system, error) {
	return func(b *bench, limit, nodes int) (*system, error) {
		s, err := start(b, limit, nodes)
		if err == nil {
			s.traffic.refused, s.settle = true, attackSettles
		}
		return s, err
	}
}
