// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"time"
)

// envoyStart measures the size of the filter, how long Envoy takes to be ready with it, and Envoy's
// memory after a second of requests.
func envoyStart(o options, out *section) error {
	b, err := newBench(o)
	if err != nil {
		return err
	}
	defer b.close()
	module, err := os.Stat(penstockWasm)
	if err != nil {
		return err
	}
	_, socket, err := b.bridge(threeEnvoyRules, "")
	if err != nil {
		return err
	}
	if _, _, err := b.starts(o.rounds, out, "Penstock", envoySetting{route: routeDirect, filter: filterWasm(penstockWasm, filterSettings), service: socket,
		workers: o.workers}); err != nil {
		return err
	}
	out.say("\nThe filter is %.2f MB.\n", float64(module.Size())/1e6)
	return nil
}

// bench.starts runs Envoys without a filter and Envoys with a given setting, alternately, and
// prints a table of the medians. It returns how many seconds later an Envoy with the setting is
// ready, and how many MB more it takes.
func (b *bench) starts(times int, out *section, name string, with envoySetting) (later, more float64, err error) {
	settings := []envoySetting{{route: with.route, workers: with.workers}, with}
	ready, work, resident := make([][]time.Duration, 2), make([][]time.Duration, 2), make([][]float64, 2)
	for range times {
		for i, s := range settings {
			took, cpu, memory, err := b.startOnce(s)
			if err != nil {
				return 0, 0, err
			}
			ready[i], work[i], resident[i] = append(ready[i], took), append(work[i], cpu), append(resident[i], memory)
		}
	}
	out.table("", "ready, s", "CPU until then, s", "memory, MB")
	for i, name := range []string{"no filter", name} {
		out.row(name, fmt.Sprintf("%.2f", median(ready[i]).Seconds()), fmt.Sprintf("%.2f", median(work[i]).Seconds()), fmt.Sprintf("%.0f", median(resident[i])))
	}
	return (median(ready[1]) - median(ready[0])).Seconds(), median(resident[1]) - median(resident[0]), nil
}

// startOnce starts an Envoy, sends it requests for a second, and stops it. The result cpu is the
// CPU time that Envoy used until it was ready. On a loaded machine, this says more than the elapsed
// time.
func (b *bench) startOnce(s envoySetting) (took, cpu time.Duration, memory float64, err error) {
	p, url, _, took, err := startEnvoy(b, s)
	if err != nil {
		return 0, 0, 0, err
	}
	defer p.stop()
	if cpu, err = p.cpu(); err != nil {
		return 0, 0, 0, err
	}
	if err := p.until(10*time.Second, "lets a request through", func() bool { return answers(url) }); err != nil {
		return 0, 0, 0, err
	}
	if _, _, err := wrk(url, time.Second, 1, traffic{}); err != nil {
		return 0, 0, 0, err
	}
	memory, err = p.residentMB()
	return took, cpu, memory, err
}
