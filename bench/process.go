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
	"strconv"
	"strings"
	"time"
)

// process is a server that is measured.
type process struct {
	name    string
	command *exec.Cmd
	log     string // the file of its output
	ended   chan struct{}
}

// startProcess runs a program with additional environment variables. Its output goes to a file.
func startProcess(name, log string, environment []string, program string, args ...string) (*process, error) {
	p := &process{name: name, command: exec.Command(program, args...), log: log, ended: make(chan struct{})}
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

// process.until waits until ready() returns true. If the process ends or the wait takes too long,
// it returns an error that contains the process's output.
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

// process.cpu returns the CPU time that the process has used. The kernel counts the CPU time of
// other processes in ticks of 10 ms.
func (p *process) cpu() (time.Duration, error) {
	if p.command == nil { // the benchmark itself, whose accounting is finer
		return ownCPU(), nil
	}
	return cpuOf(p.command.Process.Pid)
}

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

// residentMB returns the resident memory of the process.
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

// laterPort returns a free port outside the range that the system uses for outgoing connections, so
// the port will still be free a little later.
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
