// SPDX-License-Identifier: Apache-2.0

// Command bench compares Penstock with its rivals on one machine, in one run, and writes the
// results into docs/explanation/benchmarks.md. Rounds of all variants are interleaved, and the
// medians are reported. On a small or shared machine a difference below 5 % is noise.
//
// Each comparison has its own file. start.go and rivals.go start the systems, measure.go measures
// them, contender.go compares them, section.go and chart.go write the results.
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

// options are the command's options.
type options struct {
	caddy   string
	before  string
	rounds  int
	round   time.Duration
	workers int
	quick   bool
	images  string // the folder for charts
	// The sizes of three measurements of the control plane. The value 0 stands for the default
	// size.
	customers, events, archived int
	part                        string // the beginning of the names of the measurements to make
}

// comparison is a measurement that the flag -only can select by its name.
type comparison struct {
	name   string
	run    func(options, *section) error
	asking bool // runs only if it is selected by -only
}

// comparisons holds all comparisons, in the order in which the document shows them.
var comparisons = []comparison{
	{"caddy", caddyCompared, false},
	{"clients", manyClients, false},
	{"attack", attacked, false},
	{"envoy-direct", envoyDirect, false},
	{"envoy-proxied", envoyProxied, false},
	{"module-direct", moduleDirect, false},
	{"module-proxied", moduleProxied, false},
	{"module-one", moduleOne, false},
	{"module-attack", moduleAttack, false},
	{"module-half", moduleHalf, false},
	{"module-workers", moduleWorkers, false},
	{"module-start", moduleStart, false},
	{"services", servicesCompared, false},
	{"store", storeThroughput, false},
	{"local", localCompared, false},
	{"native", nativeDecisions, false},
	{"growth-limits", growthOfLimits, false},
	{"growth-rules", growthOfRules, false},
	{"growth-clients", growthOfClients, false},
	{"growth-nodes", growthOfNodes, false},
	{"control", controlMeasured, false},
	{"rules", rulesLatency, true},
	{"features", featureCost, true},
	{"added", addedLatency, true},
	{"envoy-one", envoyOne, true},
	{"envoy-start", envoyStart, true},
	{"envoy-vm", envoyVM, true},
}

func main() {
	var o options
	flag.StringVar(&o.caddy, "caddy", ".cache/bench/caddy", "the Caddy built from bench/caddy")
	flag.StringVar(&o.before, "before", "", "an older Caddy of that kind, to measure its three rules beside")
	flag.IntVar(&o.rounds, "rounds", 5, "interleaved rounds of each variant")
	flag.DurationVar(&o.round, "round", time.Second, "length of one measurement")
	flag.IntVar(&o.workers, "workers", 1, "Envoy's workers")
	flag.BoolVar(&o.quick, "quick", false, "two rounds, only three nodes are asked what they let through, and fewer clients in Redis")
	flag.IntVar(&o.customers, "customers", 0, "customers of the control plane; 10000000 is the size of the target")
	flag.IntVar(&o.events, "events", 0, "events among which those of a customer are found; 100000000 is the size of the target")
	flag.IntVar(&o.archived, "archived", 0, "events of the month that is archived; 10000000 is the size of the target")
	flag.StringVar(&o.part, "part", "", "of the control plane, measure only what has a name that begins so, and write nothing")
	flag.StringVar(&o.images, "images", "docs/images", "the folder of the charts")
	file := flag.String("write", "docs/explanation/benchmarks.md", "the document to write into; \"\" only prints")
	only := flag.String("only", "", "run what has a name that begins so: "+names())
	flag.Parse()
	if o.quick {
		o.rounds = min(o.rounds, 2)
	}
	if o.part != "" {
		*file = ""
	}
	if err := run(o, *only, *file); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

func names() string {
	var all []string
	for _, c := range comparisons {
		all = append(all, c.name)
	}
	return strings.Join(all, ", ")
}

// run makes the comparisons, and writes the section of each as soon as it is finished.
func run(o options, only, file string) error {
	begin := time.Now()
	named := func(c comparison) bool { return strings.HasPrefix(c.name, only) }
	if !slices.ContainsFunc(comparisons, named) {
		return fmt.Errorf("no comparison's name begins with %q; there are %s", only, names())
	}
	for _, c := range comparisons {
		if !named(c) || c.asking && only == "" {
			continue
		}
		o := o
		if strings.HasPrefix(c.name, "growth-") { // these have many steps each
			o = o.fewer()
		}
		if c.name == "control" { // controlSizes has its sizes
			o.rounds = 0
		}
		s := &section{name: c.name}
		s.say("%s", provenance(o))
		if err := c.run(o, s); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		fmt.Printf("\n## %s (%v since the start)\n\n%s", c.name, time.Since(begin).Round(time.Second), s.text.String())
		if file == "" {
			continue
		}
		if _, err := s.write(file); err != nil {
			return err
		}
	}
	return nil
}

// median returns the median of the figures.
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
