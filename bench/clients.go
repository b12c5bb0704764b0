// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// byUser identifies clients by a header.
const byUser = "\t\tidentify header X-User unverified\n"

// manyUsers writes a script for wrk in which successive requests come from different clients, n in
// all, and returns its path.
func (b *bench) manyUsers(n int) (string, error) {
	return b.file("clients.lua", fmt.Sprintf("local n = 0\nrequest = function()\n n = (n + 7919) %% %d\n return wrk.format(nil, nil, {[\"X-User\"] = \"u\" .. n})\nend\n", n))
}

// manyClients compares Caddys under requests from 100,000 clients. Each client sends few requests,
// so leases are of no use, and they must cost nothing.
func manyClients(o options, s *section) error {
	b, err := newBench(o)
	if err != nil {
		return err
	}
	defer b.close()
	script, err := b.manyUsers(100_000)
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
	s.targets(fmt.Sprintf("With few requests from each client, leases make %.2f × the Redis calls at %.2f × the CPU (%s).", calls, cpu,
		against(calls <= 1.02 && cpu <= 1.05, "no more than exact, within noise of 5 %")))
	return nil
}
