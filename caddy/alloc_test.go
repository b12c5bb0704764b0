// SPDX-License-Identifier: Apache-2.0

//go:build !race

// Under the race detector a sync.Pool drops what it holds at random, so allocations are counted without it.

package penstockcaddy

import (
	"strings"
	"testing"
)

func TestServingAllocatesLittle(t *testing.T) {
	for name, c := range map[string]struct {
		count string
		most  float64
	}{
		// The record, the placeholder's function, the header texts; a map of variables that gains a key.
		"admitted": {"1000000000", 4},
		// The same, and the length of the body.
		"refused": {"1", 6},
	} {
		t.Run(name, func(t *testing.T) {
			ask := asked(t, provisioned(t, strings.Replace(threeRules, "COUNT", c.count, 1)))
			ask()
			if got := testing.AllocsPerRun(1000, ask); got > c.most {
				t.Errorf("%v allocations, want at most %v", got, c.most)
			} else {
				t.Logf("%v allocations", got)
			}
		})
	}
}
