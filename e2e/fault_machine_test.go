// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// machine simulates a machine of its own for the processes of one node, with a clock that can be
// set and a DNS resolver. In fact, all nodes run on the test's machine.
type machine struct {
	t     testing.TB
	clock string // the path of a file that says how many seconds the clock is ahead
	env   []string
}

// newMachine returns a machine with the correct time. The argument resolver is the address of its
// DNS server. If it is "", the machine uses the real resolver.
func newMachine(t testing.TB, resolver string) *machine {
	t.Helper()
	m := &machine{t: t, clock: filepath.Join(t.TempDir(), "clock")}
	if err := os.WriteFile(m.clock, make([]byte, 8), 0o600); err != nil {
		t.Fatal(err)
	}
	m.env = []string{"PENSTOCK_TEST_CLOCK=" + m.clock}
	if resolver != "" {
		m.env = append(m.env, "PENSTOCK_TEST_RESOLVER="+resolver, "GODEBUG=netdns=go")
	}
	return m
}

// machine.jump sets the clock ahead of the correct time. Processes map the file into their memory,
// so it must never be truncated.
func (m *machine) jump(ahead time.Duration) {
	m.t.Helper()
	seconds := make([]byte, 8)
	for i := range seconds { // little endian
		seconds[i] = byte(int64(ahead/time.Second) >> (8 * i))
	}
	file, err := os.OpenFile(m.clock, os.O_WRONLY, 0)
	if err == nil {
		_, err = file.WriteAt(seconds, 0)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// The patches make a Go program take the time and the resolver from its machine. Go programs call
// the kernel without a C library, so the standard library itself is patched.
var patches = []struct{ file, old, new string }{
	{"time/time.go", "sec, nsec, mono := runtimeNow()\n", "sec, nsec, mono := runtimeNow()\n\tsec += aheadSeconds()\n"},
	{"time/testclock.go", "", `package time

import (
	"syscall"
	"unsafe"
)

var ahead *int64

func init() {
	path, ok := syscall.Getenv("PENSTOCK_TEST_CLOCK")
	if !ok {
		return
	}
	file, err := syscall.Open(path, syscall.O_RDONLY, 0)
	if err != nil {
		panic(err)
	}
	memory, err := syscall.Mmap(file, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	ahead = (*int64)(unsafe.Pointer(&memory[0]))
}

func aheadSeconds() int64 {
	if ahead == nil {
		return 0
	}
	return *ahead
}
`},
	{"net/dnsconfig_unix.go", "file, err := open(filename)\n",
		"if server := testResolver(); server != \"\" {\n\t\tconf.servers, conf.noReload = []string{server}, true\n\t\treturn conf\n\t}\n" +
			"\tfile, err := open(filename)\n"},
	{"net/testresolver.go", "", `package net

import "syscall"

func testResolver() string {
	server, _ := syscall.Getenv("PENSTOCK_TEST_RESOLVER")
	return server
}
`},
}

// The patched programs, which run on a machine. Each is built as soon as a test needs it. This
// compiles everything again and takes minutes, so only "make faults" uses these programs.
var (
	machineCaddy    = buildOnce("machine-caddy", "-o", "../cmd/caddy")
	machinePenstock = buildOnce("machine-penstock", "-o", "../cmd/penstock")
	machineModule   = buildOnce("machine/libpenstock.so", "-buildmode=c-shared", "-o", "../envoy-module")
	machineClock    = sync.OnceValues(func() (string, error) {
		path := filepath.Join(built, "clock.so")
		return path, run(exec.Command("cc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", path, "testdata/clock.c"))
	})
	machineOverlay = sync.OnceValues(func() (string, error) { return writeOverlay(built) })
)

// buildOnce returns a function that builds a program at its first call, and always returns the
// program's path. The last of args is the package of the program. The path is inserted before it.
func buildOnce(name string, args ...string) func() (string, error) {
	return sync.OnceValues(func() (string, error) {
		overlay, err := machineOverlay()
		if err != nil {
			return "", err
		}
		path, last := filepath.Join(built, name), len(args)-1
		all := append([]string{"build", "-overlay", overlay}, args[:last]...)
		return path, run(exec.Command("go", append(all, path, args[last])...))
	})
}

// writeOverlay writes the patched files, and an overlay file that names them. It fails if a patch
// does not match the standard library.
func writeOverlay(dir string) (path string, err error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for i, patch := range patches {
		original, text := filepath.Join(strings.TrimSpace(string(root)), "src", patch.file), patch.new
		if patch.old != "" {
			source, err := os.ReadFile(original)
			if err != nil {
				return "", err
			}
			if strings.Count(string(source), patch.old) != 1 {
				return "", fmt.Errorf("%s does not have %q once: write another patch for this version of Go", original, patch.old)
			}
			text = strings.Replace(string(source), patch.old, patch.new, 1)
		}
		replace[original] = filepath.Join(dir, fmt.Sprintf("patched-%d.go", i))
		if err := os.WriteFile(replace[original], []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, text, 0o600)
}
