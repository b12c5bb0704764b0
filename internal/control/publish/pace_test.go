// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"testing"
	"time"
)

// TestThePaceFollowsTheAnswersOfRedis tests that pauses are half as long as the writing, are
// doubled while Redis answers late, become shorter when it answers in time, and have bounds.
func TestThePaceFollowsTheAnswersOfRedis(t *testing.T) {
	t.Parallel()
	const wrote, soon, far = 8 * time.Millisecond, time.Millisecond, 100 * time.Millisecond
	for _, least := range []time.Duration{soon, far} {
		inTime, late := least+answerMax, least+answerMax+1
		var p pace
		for i, step := range []struct{ answer, want time.Duration }{
			{least, wrote / 2}, {inTime, wrote / 2}, {late, wrote}, {inTime, 6_400 * time.Microsecond}, {late, 12_800 * time.Microsecond},
			{late, 25_600 * time.Microsecond}, {late, 4 * wrote}, {late, 4 * wrote},
		} {
			if got := p.after(wrote, step.answer); got.Round(time.Microsecond) != step.want {
				t.Errorf("step %d with answers from %v: a pause of %v, want %v", i, least, got, step.want)
			}
		}
		if got := p.after(time.Minute, late); got != pauseMax {
			t.Errorf("a pause of %v after a part that took a minute, want %v", got, pauseMax)
		}
		for range 100 {
			p.after(wrote, inTime)
		}
		if got := p.after(wrote, inTime); got != wrote/2 {
			t.Errorf("while Redis answers in time, a pause of %v, want %v", got, wrote/2)
		}
	}
}
