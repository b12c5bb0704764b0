// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package abi

import (
	"testing"
	"time"
)

// TestYields tests that a busy worker yields more often than every 10 ms, after which Go's monitor
// intervenes, and not more often than every yieldEvery. A worker with few requests does not yield
// after each of them.
func TestYields(t *testing.T) {
	for name, c := range map[string]struct {
		every       time.Duration // between requests
		least, most int           // yields in a second
	}{
		"busy":      {25 * time.Microsecond, 101, 200},
		"half load": {500 * time.Microsecond, 101, 200},
		"few":       {10 * time.Millisecond, 0, 100 / yieldAfter},
	} {
		t.Run(name, func(t *testing.T) {
			var p pace
			yields, last := 0, time.Duration(0)
			for now := time.Minute; now < time.Minute+time.Second; now += c.every {
				if !p.due(now) {
					continue
				}
				yields++
				if last != 0 && now-last < yieldEvery {
					t.Fatalf("two yields within %v", now-last)
				}
				last = now
			}
			if yields < c.least || yields > c.most {
				t.Errorf("%d yields in a second, want %d to %d", yields, c.least, c.most)
			}
		})
	}
}
