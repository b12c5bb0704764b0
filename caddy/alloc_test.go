// SPDX-License-Identifier: Apache-2.0

//go:build !race

// TestServingAllocatesLittle runs without the race detector, under which a sync.Pool drops values
// at random.

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
		// An admitted request takes four allocations: the record, the function for placeholders,
		// the header texts, and a new key in the map of variables.
		"admitted": {"1000000000", 4},
		// A denied request takes the same four and two more, one of them for the length of the
		// body.
		"refused": {"1", 6},
	} {
		t.Run(name, func(t *testing.T) {
			ask := newAsker(t, newProvisioned(t, strings.Replace(threeRules, "COUNT", c.count, 1)))
			ask()
			if got := testing.AllocsPerRun(1000, ask); got > c.most {
				t.Errorf("%v allocations, want at most %v", got, c.most)
			} else {
				t.Logf("%v allocations", got)
			}
		})
	}
}
