// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// process is a server under measurement.
type process struct {
	name    string
	command *exec.Cmd
	log     string // the file of what it says
	ended   chan struct{}
}

// startProcess runs a program whose output goes to a file in dir, with more environment.
func startProcess(name, dir string, environment []string, program string, args ...string) (*process, error) {
	p := &process{name: name, command: exec.Command(program, args...), log: filepath.Join(dir, name+".log"), ended: make(chan struct{})}
	out, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p.command.Env = append(os.Environ(), environment...)
	p.command.Stdout, p.command.Stderr = out, out
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	go func() { _ = p.command.Wait(); close(p.ended) }()
	return p, nil
}

func (p *process) stop() {
	_ = p.command.Process.Kill()
	<-p.ended
}

// until waits until ready says so; the error has what the process said.
func (p *process) until(patience time.Duration, what string, ready func() bool) error {
	for deadline := time.Now().Add(patience); !ready(); time.Sleep(5 * time.Millisecond) {
		select {
		case <-p.ended:
			return p.failure(what + ": it ended")
		default:
		}
		if time.Now().After(deadline) {
			return p.failure(what + ": not in time")
		}
	}
	return nil
}

func (p *process) failure(what string) error {
	text, _ := os.ReadFile(p.log)
	return fmt.Errorf("%s: %s:\n%s", p.name, what, text[max(0, len(text)-4096):])
}

// cpu returns the processor time the process has used, in clock ticks of 10 ms, from the kernel's accounting.
func (p *process) cpu() (time.Duration, error) { return cpuOf(p.command.Process.Pid) }

func cpuOf(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, err := strconv.Atoi(fields[11])
	if err != nil {
		return 0, err
	}
	system, err := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond, err
}

// residentMB returns how much memory the process has.
func (p *process) residentMB() (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.command.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "VmRSS:" {
			kb, err := strconv.ParseFloat(fields[1], 64)
			return kb / 1024, err
		}
	}
	return 0, errors.New("no VmRSS in the status of the process")
}

// laterPort is a port that is still free in a while: none of those that the system gives to connections.
func laterPort() (int, error) {
	const first, ports = 20_000, 12_000
	for range 100 {
		port := first + rand.IntN(ports)
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			return port, nil
		}
	}
	return 0, errors.New("no free port")
}

// figures are what one measurement of a system says.
type figures struct {
	perSecond float64
	p50       time.Duration
	cpu       []float64 // microseconds a request, by process
}

// total is the CPU of a request over all processes, in microseconds.
func (f *figures) total() (sum float64) {
	for _, c := range f.cpu {
		sum += c
	}
	return sum
}

// system is a server with all that it needs, under one address.
type system struct {
	name      string
	url       string
	processes []*process
	seen      []figures
}

func (s *system) stop() {
	for _, p := range s.processes {
		p.stop()
	}
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

// measured runs work, which says how many requests were answered in what time, and returns what each cost every process.
func (s *system) measured(work func() (requests int, f figures, err error)) (figures, error) {
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
	return f, nil
}

var (
	medianLine = regexp.MustCompile(`50%\s+([\d.]+)(us|ms|s)\n`)
	badLine    = regexp.MustCompile(`Non-2xx or 3xx responses: (\d+)`)
	rateLine   = regexp.MustCompile(`Requests/sec:\s+([\d.]+)`)
)

// failedMax is the part of requests that may be answered with an error: on a loaded machine some miss their deadline.
const failedMax = 0.02

// wrk sends requests from many connections for a while.
func wrk(url string, span time.Duration, connections int) (requests int, f figures, err error) {
	out, err := exec.Command("wrk", "-t1", "--latency", fmt.Sprintf("-c%d", connections), fmt.Sprintf("-d%ds", max(1, int(span.Seconds()))), url).Output()
	if err != nil {
		return 0, f, fmt.Errorf("wrk: %w", err)
	}
	count, half, rate := requestsLine.FindSubmatch(out), medianLine.FindSubmatch(out), rateLine.FindSubmatch(out)
	if count == nil || half == nil || rate == nil {
		return 0, f, fmt.Errorf("wrk said:\n%s", out)
	}
	requests, _ = strconv.Atoi(string(count[1]))
	f.perSecond, _ = strconv.ParseFloat(string(rate[1]), 64)
	if f.p50, err = time.ParseDuration(string(half[1]) + string(half[2])); err != nil {
		return 0, f, err
	}
	if bad := badLine.FindSubmatch(out); bad != nil {
		if n, _ := strconv.Atoi(string(bad[1])); float64(n) > failedMax*float64(requests) {
			return 0, f, fmt.Errorf("%d of %d requests were refused or failed", n, requests)
		}
	}
	return requests, f, nil
}

// of returns the median of what f says of every measurement.
func of(seen []figures, f func(*figures) float64) float64 {
	all := make([]float64, len(seen))
	for i := range seen {
		all[i] = f(&seen[i])
	}
	return median(all)
}

func perSecond(f *figures) float64 { return f.perSecond }
func p50Micros(f *figures) float64 { return float64(f.p50.Nanoseconds()) / 1e3 }
func totalCPU(f *figures) float64  { return f.total() }

// parts names the CPU of each process: "Envoy 91 + bridge 30".
func (s *system) parts() string {
	var text []string
	for i, p := range s.processes {
		text = append(text, fmt.Sprintf("%s %.0f", p.name, of(s.seen, func(f *figures) float64 { return f.cpu[i] })))
	}
	return strings.Join(text, " + ")
}

// loadAverage is that of the machine in the last minute: what else runs disturbs what is measured.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	one, _, _ := strings.Cut(string(text), " ")
	return one
}
