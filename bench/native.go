// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// natives lists the benchmarks of Penstock's packages that measure a decision without a network.
// bench/run.sh builds them.
var natives = []struct {
	what, program, name string
	target              float64 // nanoseconds; 0 for no target
}{
	{"a decision from a lease, one limit", "leasestore", "BenchmarkHand/limits=1", 150},
	{"three limits", "leasestore", "BenchmarkHand/limits=3", 0},
	{"a remembered denial", "leasestore", "BenchmarkRecall/limits=1", 150},
	{"a decision in memory, token bucket", "memstore", "BenchmarkTake/token_bucket/checks=1", 0},
	{"identifying by address, matching and building the checks of 1,000 rules, of which three match", "core", "BenchmarkPlan/rules=1000", 0},
}

var benchmarkLine = regexp.MustCompile(`(?m)^(Benchmark\S+)\s+\d+\s+([\d.]+) ns/op.*?\s(\d+) allocs/op`)

// nativeDecisions runs the benchmarks of decisions without a network.
func nativeDecisions(o options, s *section) error {
	s.table("", "ns", "allocations", "")
	for _, n := range natives {
		out, err := exec.Command(".cache/bench/"+n.program+".test", "-test.run", "^$", "-test.bench", pattern(n.name), "-test.benchmem",
			"-test.benchtime", "0.3s", "-test.count", strconv.Itoa(o.rounds)).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", n.program, err, out)
		}
		seen, allocations, order := map[string][]float64{}, map[string]string{}, []string(nil)
		for _, m := range benchmarkLine.FindAllStringSubmatch(string(out), -1) {
			name := regexp.MustCompile(`-\d+$`).ReplaceAllString(m[1], "")
			nanos, err := strconv.ParseFloat(m[2], 64)
			if err != nil {
				return err
			}
			if seen[name] == nil {
				order = append(order, name)
			}
			seen[name], allocations[name] = append(seen[name], nanos), m[3]
		}
		if len(order) == 0 {
			return fmt.Errorf("%s %s said:\n%s", n.program, n.name, out)
		}
		for _, name := range order {
			what, target := n.what, ""
			if _, part, found := strings.Cut(strings.TrimPrefix(name, n.name), "/"); found {
				what += ": " + strings.ReplaceAll(part, "_", " ")
			}
			m := median(seen[name])
			if n.target > 0 {
				target = against(m <= n.target && allocations[name] == "0", fmt.Sprintf("%.0f ns, 0 allocations", n.target))
			}
			s.row(what, fmt.Sprintf("%.0f", m), allocations[name], target)
		}
	}
	return nil
}

// pattern returns a regular expression for the flag -test.bench that selects exactly one benchmark
// or sub-benchmark.
func pattern(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + p + "$"
	}
	return strings.Join(parts, "/")
}
