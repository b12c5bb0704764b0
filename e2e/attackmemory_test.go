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

// killAbove is how much memory a process may have before the suite kills it: a row that makes it grow without a bound would
// take the machine with it. A process that was killed has ended, and so the row has failed.
const killAbove = 1 << 20 // KB

// guard looks at the memory of a front's processes while a row runs.
type guard struct {
	front *front
	end   chan struct{}
	once  sync.Once
	group sync.WaitGroup
	most  map[string]int // KB, by process
}

func (f *front) guard() *guard {
	g := &guard{front: f, end: make(chan struct{}), most: map[string]int{}}
	g.group.Go(func() {
		pace := time.NewTicker(50 * time.Millisecond)
		defer pace.Stop()
		for {
			g.look()
			select {
			case <-g.end:
				return
			case <-pace.C:
			}
		}
	})
	return g
}

func (g *guard) look() {
	for name, s := range g.front.parts {
		kb := residentOf(s.command.Process.Pid)
		g.most[name] = max(g.most[name], kb)
		if kb > killAbove {
			s.signal(syscall.SIGKILL)
		}
	}
}

// stop returns the most that each process had.
func (g *guard) stop() map[string]int {
	g.once.Do(func() { close(g.end) })
	g.group.Wait()
	return g.most
}

// residentOf returns how many KB a process has in memory; 0 if there is none.
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
