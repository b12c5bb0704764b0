// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
)

// byUser tells clients apart by a header.
const byUser = "\t\tidentify header X-User unverified\n"

// strangers is a script for wrk under which each request is of another of n clients.
func (b *bench) strangers(n int) (string, error) {
	return b.file("clients.lua", fmt.Sprintf("local n = 0\nrequest = function()\n n = (n + 7919) %% %d\n return wrk.format(nil, nil, {[\"X-User\"] = \"u\" .. n})\nend\n", n))
}

// manyClients compares Caddys with 100,000 clients, each of which asks seldom: leases must cost nothing there.
func manyClients(o options, s *section) error {
	b, err := newBench(o)
	if err != nil {
		return err
	}
	defer b.close()
	script, err := b.strangers(100_000)
	if err != nil {
		return err
	}
	seldom := func(name string, redis bool, words string) *contender {
		start := ofCaddy(redis, func(limit int) string { return oneRule(hourly(limit), byUser+words) })
		return &contender{name: name, unasked: true, start: func(b *bench, limit, nodes int) (*system, error) {
			sys, err := start(b, limit, nodes)
			if err == nil {
				sys.traffic.script = script
			}
			return sys, err
		}}
	}
	memory, exact, leased := seldom("Penstock, memory", false, ""), seldom("Penstock, Redis", true, ""), seldom("Penstock, Redis, `lease: auto`", true, leasing)
	all := []*contender{memory, exact, leased}
	if err := compare(o, all, callers); err != nil {
		return err
	}
	describe(s, all)
	calls := of(leased.seen.seen, redisUsed) / of(exact.seen.seen, redisUsed)
	cpu := of(leased.seen.seen, totalCPU) / of(exact.seen.seen, totalCPU)
	s.targets(fmt.Sprintf("Where each client asks seldom, leases make %.2f × the calls of Redis at %.2f × the CPU (%s).", calls, cpu,
		against(calls <= 1.02 && cpu <= 1.05, "no more than exact, but for noise of 5 %")))
	return nil
}

// attacked compares Caddys under one client who asks for more than there is.
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
	body := answering("the same, with status 429 and the body of a refusal", "\tbench_headers\n\trespond `"+refusal+"` 429")
	redis := func(name, limit string) *contender {
		return &contender{name: name, unasked: true, start: refusing(ofCaddy(true, always(oneRule(limit, ""))))}
	}
	exact := redis("Penstock, Redis, all let through", hourly(unlimited))
	refused := redis("Penstock, Redis, all refused until the end of the window", "1000/1d fixed_window")
	over := redis("Penstock, Redis, `2000/1s`: about ten times over", "2000/1s")
	overBucket := redis("Penstock, Redis, `2000/1s burst 100`: the same", "2000/1s burst 100")
	rival := &contender{name: "caddy-ratelimit, all refused", unasked: true, start: refusing(ofCaddy(false, func(int) string { return zoned(1) }))}
	all := []*contender{accepted, body, exact, refused, over, overBucket, rival}
	if err := compare(o, all, callers); err != nil {
		return err
	}
	s.table("", "requests/s", "refused", "CPU µs/request", "of it", "Redis calls/s", "let through/s")
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
	s.targets(
		fmt.Sprintf("While a client's own wait lasts, Redis is asked %s times a second for %s refusals a second (%s).", small(of(refused.seen.seen, sum)),
			thousands(of(refused.seen.seen, perSecond)), against(of(refused.seen.seen, sum) < 2, "no calls beyond one per wait, and one a second to look again")),
		fmt.Sprintf("A refusal costs Caddy %+.1f µs beside a handler that answers with the same body; a request that is let through %+.1f µs beside one that answers ok (%s).",
			path, through, against(path <= through, "no more than the accepted path")))
	return nil
}

// refusing is a start of a system that is expected to refuse.
func refusing(start func(*bench, int, int) (*system, error)) func(*bench, int, int) (*system, error) {
	return func(b *bench, limit, nodes int) (*system, error) {
		s, err := start(b, limit, nodes)
		if err == nil {
			s.traffic.refused = true
		}
		return s, err
	}
}
