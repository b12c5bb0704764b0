// SPDX-License-Identifier: Apache-2.0

package front

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
)

const (
	// memoryLimitDefault is the soft limit of Go's memory in Envoy's process. Half of it suffices
	// for two full stores in memory, one for usual requests and one for an outage of Redis.
	memoryLimitDefault = 1 << 30
	// memoryLimitMin is the smallest limit that can be configured. With less memory, garbage
	// collection would take more time than requests.
	memoryLimitMin = 64 << 20
	// memoryVariable is the environment variable with which Go itself sets the limit.
	memoryVariable = "GOMEMLIMIT"
)

// memory applies the greatest memory limit of the open configurations to the process.
type memory struct {
	mu     sync.Mutex
	limits map[*Front]int64
	set    func(limit int64) int64 // debug.SetMemoryLimit
	usual  int64                   // the limit while no front sets one
}

func newMemory() *memory {
	m := &memory{limits: map[*Front]int64{}, set: debug.SetMemoryLimit, usual: memoryLimitDefault}
	if os.Getenv(memoryVariable) != "" {
		m.usual = debug.SetMemoryLimit(-1)
	}
	m.apply()
	return m
}

// memory.hold applies a front's memory limit, in bytes, until release(f) is called. If the limit is
// 0, the front sets no limit.
func (m *memory) hold(f *Front, limit int64) {
	if limit == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limits[f] = limit
	m.apply()
}

func (m *memory) release(f *Front) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, held := m.limits[f]; held {
		delete(m.limits, f)
		m.apply()
	}
}

func (m *memory) apply() {
	limit := int64(0)
	for _, each := range m.limits {
		limit = max(limit, each)
	}
	if limit == 0 {
		limit = m.usual
	}
	m.set(limit)
}

// memoryUnits holds the units in which a limit can be written. GOMEMLIMIT has the same units.
var memoryUnits = []struct {
	name  string
	bytes int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}}

// parseMemory reads a memory limit, such as 512MiB. It returns 0 for "".
func parseMemory(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	for _, unit := range memoryUnits {
		digits := text[:max(0, len(text)-len(unit.name))]
		if text[len(digits):] != unit.name {
			continue
		}
		n, err := strconv.ParseInt(digits, 10, 32)
		if err != nil || n <= 0 {
			break
		}
		if n *= unit.bytes; n < memoryLimitMin {
			return 0, fmt.Errorf("memory_limit %q is too little: write %dMiB or more, or leave it out for %dMiB", text,
				memoryLimitMin>>20, memoryLimitDefault>>20)
		}
		return n, nil
	}
	return 0, errors.New("memory_limit " + strconv.Quote(text) + " is not a size: write 512MiB or 2GiB")
}
