// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// halfRate is a request rate at about half load, for an Envoy with an upstream and exact limits on
// two cores. It is far below half of the rate at full load: a request that comes by itself takes
// five times the CPU, because it wakes every process that handles it.
const halfRate = 2_000

// paced sends requests at a steady rate over several connections, and returns their number and the
// percentiles of their latency.
func paced(url string, span time.Duration, connections, perSecond int) (requests int, f figures, err error) {
	address := strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/")
	spans, failures := make([][]time.Duration, connections), make([]error, connections)
	var wait sync.WaitGroup
	begin := time.Now()
	for i := range connections {
		wait.Go(func() { spans[i], failures[i] = pacedOn(address, begin, span, i, connections, perSecond) })
	}
	wait.Wait()
	took := time.Since(begin)
	if err := errors.Join(failures...); err != nil {
		return 0, f, err
	}
	all := slices.Concat(spans...)
	if len(all) == 0 {
		return 0, f, errNoAnswer
	}
	slices.Sort(all)
	return len(all), figures{perSecond: float64(len(all)) / took.Seconds(), p50: percentile(all, 50), p99: percentile(all, 99)}, nil
}

// pacedOn sends the requests of one connection. With n connections, this is every nth request of
// the test.
func pacedOn(address string, begin time.Time, span time.Duration, first, connections, perSecond int) (spans []time.Duration, err error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	in := bufio.NewReader(c)
	request := []byte("GET / HTTP/1.1\r\nhost: " + address + "\r\n\r\n")
	for turn := first; ; turn += connections {
		at := begin.Add(time.Duration(turn) * time.Second / time.Duration(perSecond))
		if at.Sub(begin) >= span {
			return spans, nil
		}
		time.Sleep(time.Until(at))
		sent := time.Now()
		if _, err := c.Write(request); err != nil {
			return nil, err
		}
		response, err := http.ReadResponse(in, nil)
		if err != nil {
			return nil, err
		}
		_, err = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		if err != nil {
			return nil, err
		}
		if response.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("status %d", response.StatusCode)
		}
		spans = append(spans, time.Since(sent))
	}
}

// atHalfLoad makes a contender receive halfRate requests a second.
func atHalfLoad(c *contender) *contender {
	start := c.start
	c.unasked = true
	c.start = func(b *bench, limit, nodes int) (*system, error) {
		s, err := start(b, limit, nodes)
		if err == nil {
			s.load = func(span time.Duration, connections int) (int, figures, error) {
				return paced(s.url, span, connections, halfRate)
			}
		}
		return s, err
	}
	return c
}

// moduleHalf compares the latency at half load, including the effect of garbage collections. It
// measures two Envoys without a filter. The difference between these two is noise, so smaller
// differences in the table mean nothing.
func moduleHalf(o options, s *section) error {
	every := proxiedContenders()
	again := &contender{name: "no filter, a second Envoy", start: plainEnvoy(routeProxied, always(""))}
	calls := &contender{name: "a Go module that calls Envoy as often as Penstock's, and decides nothing", start: baselineModule(routeProxied, "calls")}
	all := []*contender{every[0], again, calls, every[2], every[4]}
	for _, c := range all {
		atHalfLoad(c)
	}
	if err := compare(o, all, callers); err != nil {
		return err
	}
	s.say("%s requests a second over %d connections.\n\n", thousands(halfRate), callers)
	s.table("", "p50 µs", "p99 µs", "CPU µs/request", "of it")
	for _, c := range all {
		seen := c.seen.seen
		s.row(c.name, thousands(of(seen, p50Micros)), thousands(of(seen, p99Micros)), fmt.Sprintf("%.1f", of(seen, totalCPU)), c.seen.parts())
	}
	none := of(all[0].seen.seen, p99Micros)
	var said []string
	beside := func(c *contender) float64 { return (of(c.seen.seen, p99Micros) - none) / 1e3 }
	for _, c := range all[3:] {
		said = append(said, fmt.Sprintf("%s: the p99 is %+.2f ms beside no filter (%s; a second Envoy without a filter: %+.2f ms, a module that decides nothing: %+.2f ms).",
			c.name, beside(c), against(beside(c) <= 0.5, "0.5 ms"), beside(again), beside(calls)))
	}
	s.targets(said...)
	return nil
}

// moduleWorkers compares how often fronts with leases call Redis: one Caddy, a module with four
// workers, and a filter with four workers. In the filter, each worker has leases of its own.
func moduleWorkers(o options, s *section) error {
	o.workers = 4
	caddy := &contender{name: "one Caddy", unasked: true, start: ofCaddy(true, always(oneRule(hourly(unlimited), leasing)))}
	module := &contender{name: "Penstock's module, four workers", unasked: true, start: native(routeDirect, true, leasedRule)}
	filter := &contender{name: "Penstock's filter, four workers", unasked: true, start: ours(routeDirect, true, true, leasedRule)}
	all := []*contender{caddy, module, filter}
	if err := compare(o, all, callers); err != nil {
		return err
	}
	s.table("", "requests/s", "Redis calls/s")
	sum := func(f *figures) float64 { return f.calls * f.perSecond }
	for _, c := range all {
		s.row(c.name, thousands(of(c.seen.seen, perSecond)), small(of(c.seen.seen, sum)))
	}
	return nil
}
