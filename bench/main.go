// SPDX-License-Identifier: Apache-2.0

// Command bench measures Penstock beside its rivals on one machine, in one run, and prints ratios. Rounds of all
// variants are interleaved and medians quoted: on a small or shared machine a ratio below 5 % is noise.
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are what a run can be told.
type options struct {
	caddy   string
	before  string
	rounds  int
	round   time.Duration
	workers int
}

func main() {
	var o options
	flag.StringVar(&o.caddy, "caddy", ".cache/bench/caddy", "the Caddy built from bench/caddy")
	flag.StringVar(&o.before, "before", "", "an older Caddy of that kind, to measure its three rules beside")
	flag.IntVar(&o.rounds, "rounds", 5, "interleaved rounds of each variant")
	flag.DurationVar(&o.round, "round", 2*time.Second, "length of one measurement")
	flag.IntVar(&o.workers, "workers", 1, "Envoy's workers")
	only := flag.String("only", "", "run the parts whose names begin so: store, rules, caddy, features, added, envoy-proxied,\nenvoy-direct, envoy-start, envoy-vm, envoy-rls")
	flag.Parse()

	for _, part := range []struct {
		name string
		run  func(options) error
	}{
		{"store", storeThroughput}, {"rules", rulesLatency}, {"caddy", caddyCost},
		{"features", featureCost}, {"added", addedLatency},
		{"envoy-proxied", envoyProxied}, {"envoy-direct", envoyDirect}, {"envoy-start", envoyStart}, {"envoy-vm", envoyVM}, {"envoy-rls", rateLimitServices},
	} {
		if !strings.HasPrefix(part.name, *only) {
			continue
		}
		if err := part.run(o); err != nil {
			fmt.Fprintf(os.Stderr, "bench: %s: %v\n", part.name, err)
			os.Exit(1)
		}
	}
}

// median returns the middle of the figures.
func median[T int64 | float64 | time.Duration](figures []T) T {
	sorted := slices.Sorted(slices.Values(figures))
	return sorted[len(sorted)/2]
}

// percentile returns the p-th percentile of sorted spans.
func percentile(sorted []time.Duration, p float64) time.Duration {
	return sorted[min(len(sorted)-1, int(p*float64(len(sorted))/100))]
}

// ownCPU returns the processor time this process has used.
func ownCPU() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err) // cannot fail for RUSAGE_SELF
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
