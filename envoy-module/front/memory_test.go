// SPDX-License-Identifier: Apache-2.0

package front

import (
	"log/slog"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock/internal/test/redistest"
)

// TestMemoryLimit tests that the greatest memory limit of the open configurations applies to the
// process. After all configurations have ended, the previous limit applies again.
func TestMemoryLimit(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	limit := func(want int64) {
		t.Helper()
		if got := debug.SetMemoryLimit(-1); got != want {
			t.Errorf("the limit is %d, want %d", got, want)
		}
	}
	p := NewProcess(slog.New(slog.DiscardHandler))
	open := func(settings string) *Front {
		t.Helper()
		s, err := ReadSettings([]byte(three + settings))
		if err != nil {
			t.Fatal(err)
		}
		f, err := p.Open(s)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	end := func(f *Front) {
		t.Helper()
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	limit(memoryLimitDefault)
	small, large, none := open("memory_limit: 512MiB"), open("memory_limit: 2GiB"), open("")
	limit(2 << 30)
	end(large)
	limit(512 << 20)
	end(small)
	end(none)
	limit(memoryLimitDefault)
}

// TestMemoryLimitsAreRead tests which limits are accepted, and that an error says what to write
// instead.
func TestMemoryLimitsAreRead(t *testing.T) {
	for text, want := range map[string]int64{"": 0, "64MiB": 64 << 20, "2GiB": 2 << 30, "1048576KiB": 1 << 30} {
		if got, err := parseMemory(text); got != want || err != nil {
			t.Errorf("%q: %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"1", "512", "512MB", "MiB", "-1GiB", "63MiB", "1.5GiB", "99999999999GiB", "0GiB", "512 MiB"} {
		if got, err := parseMemory(text); err == nil || !strings.Contains(err.Error(), "write ") {
			t.Errorf("%q: %d, %v, want an error that names what to write", text, got, err)
		}
	}
}

// TestDecidesAtTheMemoryLimit tests that requests are decided even if Go's memory exceeds its limit
// and garbage is therefore collected all the time.
func TestDecidesAtTheMemoryLimit(t *testing.T) {
	redis := redistest.Start(t)
	f := openFront(t, strings.Replace(three, "3/31d", "700/31d", 1)+"memory_limit: 64MiB\nstore: {type: redis, url: \""+redis.URL()+
		"\", timeout: 10s, remember_denials: false}\n")
	kept := make([]byte, 80<<20)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var all sync.WaitGroup
	var admitted atomic.Int64
	for range 16 {
		all.Go(func() {
			for range 50 {
				if v, _, _ := ask(t, f, request("/")); v == Continue {
					admitted.Add(1)
				}
			}
		})
	}
	all.Wait()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(kept)
	if n := after.NumGC - before.NumGC; admitted.Load() != 700 || n < 3 {
		t.Errorf("%d requests are admitted, want 700; garbage was collected %d times", admitted.Load(), n)
	}
}
