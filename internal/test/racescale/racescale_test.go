// SPDX-License-Identifier: Apache-2.0

package racescale

import "testing"

// TestFewer checks that a test always takes at least one step, and by default takes all steps.
func TestFewer(t *testing.T) {
	for _, c := range []struct{ steps, underRace, isShort int }{
		{steps: 1, underRace: 1, isShort: 1},
		{steps: 9, underRace: 1, isShort: 1},
		{steps: 10, underRace: 1, isShort: 1},
		{steps: 1000, underRace: 100, isShort: 50},
	} {
		want := c.steps
		switch {
		case testing.Short():
			want = c.isShort
		case detecting:
			want = c.underRace
		}
		if got := Fewer(c.steps); got != want {
			t.Errorf("of %d: %d, want %d", c.steps, got, want)
		}
	}
}

// TestLong checks that a long walk has its full length in the exam, and that Long never returns
// more than Fewer.
func TestLong(t *testing.T) {
	for _, steps := range []int{1, 4, 10, 1000, 10_000_000} {
		t.Setenv(ExamVariable, "")
		if got, most := Long(steps), max(1, steps/longDivisor); got < 1 || got > most || got > Fewer(steps) {
			t.Errorf("of %d: %d, want 1 to %d", steps, got, most)
		}
		t.Setenv(ExamVariable, "1")
		if got := Long(steps); got != Fewer(steps) {
			t.Errorf("of %d in the exam: %d, want %d", steps, got, Fewer(steps))
		}
	}
}
