// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// figures are the results of one measurement of a system.
type figures struct {
	perSecond float64
	p50, p99  time.Duration
	cpu       []float64 // microseconds per request, by process
	calls     float64   // Redis calls per request
	refused   float64   // the fraction of requests that were denied
}

// figures.total returns the CPU time of a request over all processes, in microseconds.
func (f *figures) total() (sum float64) {
	for _, c := range f.cpu {
		sum += c
	}
	return sum
}

// system is a server at one address, with the processes that it needs.
type system struct {
	name      string
	url       string
	processes []*process
	redis     string   // the address of its Redis; "" for none
	sends     []string // the commands that it sends to Redis
	traffic   traffic
	// settle is the time after which Redis calls are counted; 0 means from the beginning.
	settle time.Duration
	// load sends the requests. If it is nil, the program wrk sends HTTP requests.
	load      func(span time.Duration, connections int) (requests int, f figures, err error)
	nodes     []ask
	addresses []string // of a service's nodes
	seen      []figures
}

// traffic describes the requests sent to a system.
type traffic struct {
	header  string // a header of every request; "" for none
	script  string // a Lua script for wrk; "" for none
	refused bool   // answers other than 200 are expected
}

func (s *system) cpus() ([]time.Duration, error) {
	all := make([]time.Duration, len(s.processes))
	for i, p := range s.processes {
		var err error
		if all[i], err = p.cpu(); err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return all, nil
}

// system.measured runs the function work, which returns the number of answered requests and their
// figures. To these figures it adds the CPU time per request of every process, and the Redis calls
// per request.
func (s *system) measured(work func() (requests int, f figures, err error)) (figures, error) {
	callsBefore, err := redisCalls(s.redis, s.sends...)
	if err != nil {
		return figures{}, fmt.Errorf("%s: %w", s.name, err)
	}
	before, err := s.cpus()
	if err != nil {
		return figures{}, err
	}
	requests, f, err := work()
	if err != nil {
		return figures{}, fmt.Errorf("%s: %w", s.name, err)
	}
	after, err := s.cpus()
	if err != nil {
		return figures{}, err
	}
	for i := range after {
		f.cpu = append(f.cpu, float64((after[i]-before[i]).Microseconds())/float64(max(1, requests)))
	}
	callsAfter, err := redisCalls(s.redis, s.sends...)
	f.calls = float64(callsAfter-callsBefore) / float64(max(1, requests))
	return f, err
}

// system.once measures the system for the duration span.
func (s *system) once(span time.Duration, connections int) (figures, error) {
	load := s.load
	if load == nil {
		load = func(span time.Duration, connections int) (int, figures, error) {
			return wrk(s.url, span, connections, s.traffic)
		}
	}
	if s.settle == 0 || s.redis == "" {
		return s.measured(func() (int, figures, error) { return load(span, connections) })
	}
	settled := make(chan int, 1)
	time.AfterFunc(s.settle, func() {
		calls, _ := redisCalls(s.redis, s.sends...) // system.measured reports the error
		settled <- calls
	})
	f, err := s.measured(func() (int, figures, error) { return load(span, connections) })
	if err != nil {
		return f, err
	}
	calls, err := redisCalls(s.redis, s.sends...)
	f.calls = float64(calls-<-settled) / (span - s.settle).Seconds() / f.perSecond
	return f, err
}

// interleaved measures the systems in turn.
func interleaved(o options, systems []*system, connections int) error {
	for _, s := range systems {
		s.seen = nil
		// The first run opens connections and allocates memory, so its figures are not kept.
		if _, err := s.once(time.Second, connections); err != nil {
			return err
		}
	}
	for range o.rounds {
		for _, s := range systems {
			f, err := s.once(o.round, connections)
			if err != nil {
				return err
			}
			s.seen = append(s.seen, f)
		}
	}
	return nil
}

var (
	requestsLine = regexp.MustCompile(`(\d+) requests in`)
	medianLine   = regexp.MustCompile(`50%\s+([\d.]+)(us|ms|s)\n`)
	mostLine     = regexp.MustCompile(`99%\s+([\d.]+)(us|ms|s)\n`)
	badLine      = regexp.MustCompile(`Non-2xx or 3xx responses: (\d+)`)
	rateLine     = regexp.MustCompile(`Requests/sec:\s+([\d.]+)`)
)

// failedMax is the largest fraction of requests that may fail. On a loaded machine, some requests
// miss their deadline.
const failedMax = 0.02

// wrk runs the program of that name, which sends requests over many connections.
func wrk(url string, span time.Duration, connections int, t traffic) (requests int, f figures, err error) {
	args := []string{"-t1", "--latency", fmt.Sprintf("-c%d", connections), fmt.Sprintf("-d%ds", max(1, int(span.Seconds())))}
	if t.header != "" {
		args = append(args, "-H", t.header)
	}
	if t.script != "" {
		args = append(args, "-s", t.script)
	}
	out, err := exec.Command("wrk", append(args, url)...).Output()
	if err != nil {
		return 0, f, fmt.Errorf("wrk: %w", err)
	}
	count, half, most, rate := requestsLine.FindSubmatch(out), medianLine.FindSubmatch(out), mostLine.FindSubmatch(out), rateLine.FindSubmatch(out)
	if count == nil || half == nil || most == nil || rate == nil {
		return 0, f, fmt.Errorf("wrk said:\n%s", out)
	}
	requests, _ = strconv.Atoi(string(count[1]))
	f.perSecond, _ = strconv.ParseFloat(string(rate[1]), 64)
	if f.p50, err = time.ParseDuration(string(half[1]) + string(half[2])); err != nil {
		return 0, f, err
	}
	if f.p99, err = time.ParseDuration(string(most[1]) + string(most[2])); err != nil {
		return 0, f, err
	}
	if bad := badLine.FindSubmatch(out); bad != nil {
		n, _ := strconv.Atoi(string(bad[1]))
		f.refused = float64(n) / float64(max(1, requests))
	}
	if f.refused > failedMax && !t.refused {
		return 0, f, fmt.Errorf("%.0f %% of %d requests were denied or failed", 100*f.refused, requests)
	}
	return requests, f, nil
}

// of returns the median of the figure f over all measurements.
func of(seen []figures, f func(*figures) float64) float64 {
	all := make([]float64, len(seen))
	for i := range seen {
		all[i] = f(&seen[i])
	}
	return median(all)
}

func perSecond(f *figures) float64  { return f.perSecond }
func p50Micros(f *figures) float64  { return float64(f.p50.Nanoseconds()) / 1e3 }
func p99Micros(f *figures) float64  { return float64(f.p99.Nanoseconds()) / 1e3 }
func totalCPU(f *figures) float64   { return f.total() }
func redisUsed(f *figures) float64  { return f.calls }
func firstCPU(f *figures) float64   { return f.cpu[0] }
func refusedOf(f *figures) float64  { return f.refused }
func admittedOf(f *figures) float64 { return 1 - f.refused }

// system.parts returns the CPU time per request of each process, such as "Envoy 91 + bridge 30".
func (s *system) parts() string {
	if len(s.processes) < 2 {
		return ""
	}
	var text []string
	for i, p := range s.processes {
		text = append(text, fmt.Sprintf("%s %.1f", p.name, of(s.seen, func(f *figures) float64 { return f.cpu[i] })))
	}
	return strings.Join(text, " + ")
}

// loadAverage returns the machine's load average over the last minute. It is reported because other
// work disturbs the measurements.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	one, _, _ := strings.Cut(string(text), " ")
	return one
}
