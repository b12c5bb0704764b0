// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
)

// penstockModule is Penstock's native module. bench/run.sh builds bench/module into the same
// folder.
const penstockModule = modules + "/libpenstock.so"

// filterModule returns the part of Envoy's configuration that loads a native module as an HTTP
// filter, with the filter's own configuration.
func filterModule(name, configuration string) string {
	return fmt.Sprintf(`{name: module, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter,
  dynamic_module_config: {name: %s, do_not_close: true}, filter_name: %[1]s,
  filter_config: {"@type": type.googleapis.com/google.protobuf.StringValue, value: %q}}},`, name, configuration)
}

// native returns a function that starts Envoys with the native module. They count in memory or in
// one Redis.
func native(route string, withRedis bool, rules func(limit int) string) func(*bench, int, int) (*system, error) {
	return func(b *bench, limit, nodes int) (*system, error) {
		return b.counting(withRedis, nodes, func(address string) (*system, error) {
			settings := fmt.Sprintf(benchPolicy, rules(limit))
			if withRedis {
				settings += "store: {type: redis, url: \"redis://" + address + "\", timeout: 500ms}\n"
			}
			return b.envoy("", envoySetting{route: route, filter: filterModule("penstock", settings)})
		})
	}
}

// leasedRule returns a policy with one rule and leases.
func leasedRule(limit int) string { return oneEnvoyRule(limit, "lease: auto\n") }

// exactRule returns a policy with one rule and without leases.
func exactRule(limit int) string { return oneEnvoyRule(limit, "") }

// baselineModule returns a function that starts Envoys with the module of bench/module in the given
// mode.
func baselineModule(route, mode string) func(*bench, int, int) (*system, error) {
	return plainEnvoy(route, func(int) string { return filterModule("baseline", mode) })
}

// moduleDirect compares modules in Envoys that answer requests themselves, without an upstream.
func moduleDirect(o options, s *section) error {
	none := &contender{name: "no filter", unasked: true, start: plainEnvoy(routeDirect, always(""))}
	nothing := &contender{name: "a Go module that does nothing", unasked: true, start: baselineModule(routeDirect, "nothing")}
	baseline := &contender{name: "a Go module that reads all headers and the address, and sets five fields", unasked: true,
		start: baselineModule(routeDirect, "reads")}
	calls := &contender{name: "a Go module that calls Envoy as often as Penstock's, and decides nothing", unasked: true,
		start: baselineModule(routeDirect, "calls")}
	memory := &contender{name: "Penstock's module, memory", start: native(routeDirect, false, exactRule)}
	leased := &contender{name: "Penstock's module, Redis, `lease: auto`", start: native(routeDirect, true, leasedRule)}
	exact := &contender{name: "Penstock's module, Redis", start: native(routeDirect, true, exactRule)}
	filter := &contender{name: "Penstock's filter, bridge, Redis, `lease: auto`", unasked: true, start: ours(routeDirect, true, true, leasedRule)}
	all := []*contender{none, nothing, baseline, calls, memory, leased, exact, filter}
	if err := compare(o, all, callers); err != nil {
		return err
	}
	describe(s, all)
	var said []string
	for _, c := range []*contender{memory, leased} {
		cpu := of(c.seen.seen, totalCPU) / of(none.seen.seen, totalCPU)
		beside, floor := of(baseline.seen.seen, totalCPU)/of(c.seen.seen, totalCPU), of(calls.seen.seen, totalCPU)/of(none.seen.seen, totalCPU)
		said = append(said, fmt.Sprintf("%s: %.2f × the CPU of no filter (%s; the calls alone take %.2f ×), and %.2f × as many requests by CPU as the Go module that sets five fields (%s).",
			c.name, cpu, against(cpu <= 1.65, "1.65 ×"), floor, beside, against(beside >= 0.9, "0.9 ×")))
	}
	s.targets(said...)
	return nil
}

// moduleProxied compares rate limiters in an Envoy with an upstream.
func moduleProxied(o options, s *section) error {
	all := proxiedContenders()
	if err := compare(o, all, callers); err != nil {
		return err
	}
	describe(s, all)
	exact, silent, filter := all[2].seen.seen, all[1].seen.seen, all[3].seen.seen
	theirs, rate := of(exact, totalCPU)/of(silent, totalCPU), of(exact, perSecond)/of(silent, perSecond)
	ours := of(exact, totalCPU) / of(filter, totalCPU)
	s.targets(
		fmt.Sprintf("Exact, the module takes %.2f × the CPU of envoyproxy/ratelimit without statistics (%s) for %.2f × its requests (%s).",
			theirs, against(theirs <= 0.42, "0.42 ×"), rate, against(rate >= 2.2, "2.2 ×")),
		fmt.Sprintf("It takes %.2f × the CPU of Penstock's filter with its bridge (%s).", ours, against(ours <= 0.65, "0.65 ×")))
	return nil
}

// proxiedContenders returns the contenders of moduleProxied and moduleOne.
func proxiedContenders() []*contender {
	return []*contender{
		{name: "no filter", unasked: true, start: plainEnvoy(routeProxied, always(""))},
		{name: "Envoy's filter, envoyproxy/ratelimit without statistics, Redis", unasked: true, start: served(rateLimits(noStatistics))},
		{name: "Penstock's module, Redis", start: native(routeProxied, true, exactRule)},
		{name: "Penstock's filter, bridge, Redis", unasked: true, start: ours(routeProxied, true, true, exactRule)},
		{name: "Penstock's module, Redis, `lease: auto`", start: native(routeProxied, true, leasedRule)},
	}
}

// moduleOne compares the latency of the same rate limiters over one connection.
func moduleOne(o options, s *section) error {
	all := proxiedContenders()
	for _, c := range all {
		c.unasked = true
	}
	if err := compare(o, all, 1); err != nil {
		return err
	}
	s.table("", "p50 µs", "×", "p99 µs", "×")
	half, most := of(all[1].seen.seen, p50Micros), of(all[1].seen.seen, p99Micros)
	for _, c := range all {
		p50, p99 := of(c.seen.seen, p50Micros), of(c.seen.seen, p99Micros)
		s.row(c.name, thousands(p50), fmt.Sprintf("%.2f", p50/half), thousands(p99), fmt.Sprintf("%.2f", p99/most))
	}
	p50, p99 := of(all[2].seen.seen, p50Micros)/half, of(all[2].seen.seen, p99Micros)/most
	s.targets(fmt.Sprintf("At one connection, the module's p50 is %.2f × that of envoyproxy/ratelimit (%s), and its p99 %.2f × (%s).",
		p50, against(p50 <= 0.85, "0.85 ×"), p99, against(p99 <= 1, "1 ×")))
	return nil
}

// deniedBody is the body of a response that denies a request under one rule.
const deniedBody = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"violated-policies":["one"]}`

// routeDenies makes Envoy itself deny every request, with as many header fields as Penstock.
var routeDenies = fmt.Sprintf(`direct_response: {status: 429, body: {inline_string: %q}}, response_headers_to_add: [%s]`, deniedBody,
	strings.Join(fieldsToAdd("x-ratelimit-limit", "1000", "x-ratelimit-remaining", "0", "x-ratelimit-reset", "1795420980", "ratelimit",
		`\"one\";r=0;t=3600`, "ratelimit-policy", `\"one\";q=1000;w=86400`, "retry-after", "3600", "cache-control", "no-store"), ", "))

func fieldsToAdd(texts ...string) (all []string) {
	for i := 0; i < len(texts); i += 2 {
		all = append(all, fmt.Sprintf(`{header: {key: %s, value: "%s"}, append_action: OVERWRITE_IF_EXISTS_OR_ADD}`, texts[i], texts[i+1]))
	}
	return all
}

// moduleAttack compares the cost of denied requests, all of one client that exceeds its limit.
func moduleAttack(o options, s *section) error {
	denied := func(limit int) string { return "  - {name: one, limit: 1000/1d fixed_window}\n" }
	none := &contender{name: "no filter, 200", unasked: true, start: plainEnvoy(routeDirect, always(""))}
	itself := &contender{name: "Envoy denies by itself: 429 with a body and as many fields", unasked: true, start: refusing(plainEnvoy(routeDenies, always("")))}
	module := &contender{name: "Penstock's module, Redis, all denied until the end of the window", unasked: true, start: refusing(native(routeDirect, true, denied))}
	filter := &contender{name: "Penstock's filter, bridge, Redis, the same", unasked: true, start: refusing(ours(routeDirect, true, true, denied))}
	all := []*contender{none, itself, module, filter}
	if err := compare(o, all, callers); err != nil {
		return err
	}
	s.table("", "requests/s", "denied", "CPU µs/request", "of it", "Redis calls/s after the first 0.2 s")
	for _, c := range all {
		seen, calls := c.seen.seen, ""
		if c.seen.redis != "" {
			calls = thousands(of(seen, func(f *figures) float64 { return f.calls * f.perSecond }))
		}
		s.row(c.name, thousands(of(seen, perSecond)), fmt.Sprintf("%.0f %%", 100*of(seen, refusedOf)), fmt.Sprintf("%.1f", of(seen, totalCPU)), c.seen.parts(), calls)
	}
	own, most := of(module.seen.seen, totalCPU), 1.1*of(itself.seen.seen, totalCPU)+8
	s.targets(fmt.Sprintf("A remembered denial takes %.1f µs (%s).", own, against(own <= most, fmt.Sprintf("1.1 × that of Envoy's own and 8 µs, here %.1f µs", most))))
	return nil
}

// moduleStart measures the size of the module, how long Envoy takes to be ready with it, and
// Envoy's memory after a second of requests from one client.
func moduleStart(o options, out *section) error {
	b, err := newBench(o)
	if err != nil {
		return err
	}
	defer b.close()
	file, err := os.Stat(penstockModule)
	if err != nil {
		return err
	}
	_, address, err := b.redis()
	if err != nil {
		return err
	}
	over := fmt.Sprintf(benchPolicy, leasedRule(unlimited)) + "store: {type: redis, url: \"redis://" + address + "\"}\n"
	later, more, err := b.starts(2*o.rounds, out, "Penstock's module", envoySetting{route: routeDirect, filter: filterModule("penstock", over), workers: o.workers})
	if err != nil {
		return err
	}
	size := float64(file.Size()) / 1e6
	out.targets(fmt.Sprintf("With the module, Envoy is ready %.2f s later (%s), and takes %.0f MB more (%s). The module has %.1f MB (%s).",
		later, against(later <= 0.3, "0.3 s"), more, against(more <= 60, "60 MB"), size, against(size <= 25, "25 MB")))
	return nil
}
