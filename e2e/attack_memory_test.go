// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// killAbove is the size at which the test kills a process, so that an attack under which a process
// grows without bound does not exhaust the machine's memory. The test of such an attack then fails.
const killAbove = 1 << 20 // KB

// memoryWatch samples the memory of a front's processes during an attack.
type memoryWatch struct {
	front *front
	end   chan struct{}
	once  sync.Once
	group sync.WaitGroup
	most  map[string]int // by process, the maximum in KB
}

func (f *front) watchMemory() *memoryWatch {
	g := &memoryWatch{front: f, end: make(chan struct{}), most: map[string]int{}}
	g.group.Go(func() {
		pace := time.NewTicker(50 * time.Millisecond)
		defer pace.Stop()
		for {
			g.sample()
			select {
			case <-g.end:
				return
			case <-pace.C:
			}
		}
	})
	return g
}

func (g *memoryWatch) sample() {
	for name, s := range g.front.parts {
		kb := residentOf(s.command.Process.Pid)
		g.most[name] = max(g.most[name], kb)
		if kb > killAbove {
			s.signal(syscall.SIGKILL)
		}
	}
}

// memoryWatch.stop ends the sampling and returns the maximum of each process.
func (g *memoryWatch) stop() map[string]int {
	g.once.Do(func() { close(g.end) })
	g.group.Wait()
	return g.most
}

// residentOf returns the resident memory of a process in KB, or 0 if the process does not exist.
func residentOf(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "VmRSS:" {
			n, _ := strconv.Atoi(fields[1])
			return n
		}
	}
	return 0
}
