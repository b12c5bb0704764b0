// SPDX-License-Identifier: Apache-2.0

package underrace

import "testing"

// TestFewer holds that a test never takes no step at all, and all of them without the detector.
func TestFewer(t *testing.T) {
	for n, fewer := range map[int]int{1: 1, 9: 1, 10: 1, 1000: 100} {
		if !detecting {
			fewer = n
		}
		if got := Fewer(n); got != fewer {
			t.Errorf("of %d: %d, want %d", n, got, fewer)
		}
	}
}
