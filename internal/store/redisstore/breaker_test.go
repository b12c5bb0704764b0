// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// story is a sequence of steps for a breaker. Each step is a report, a probe or a call, with the
// state expected after it.
type story []struct {
	do   string
	want BreakerState
}

func (s story) tell(t *testing.T) {
	t.Helper()
	b := &breaker{}
	for i, step := range s {
		switch step.do {
		case "fails":
			b.report(b.epoch.Load(), true)
		case "works":
			b.report(b.epoch.Load(), false)
		case "old batch fails":
			b.report(b.epoch.Load()-1, true)
		case "old batch works":
			b.report(b.epoch.Load()-1, false)
		case "probe answered":
			b.tryAgain()
		case "call tried":
			if admitted, trial := b.admit(); !admitted || !trial {
				t.Errorf("step %d: admitted %v, trial %v: want the call to be tried", i, admitted, trial)
			}
		case "call admitted":
			if admitted, trial := b.admit(); !admitted || trial {
				t.Errorf("step %d: admitted %v, trial %v: want the call admitted as usual", i, admitted, trial)
			}
		case "call refused":
			if admitted, _ := b.admit(); admitted {
				t.Errorf("step %d: the call was admitted", i)
			}
		case "trial not sent":
			b.release()
		default:
			t.Fatalf("step %d: %q is unknown", i, step.do)
		}
		if got := b.State(); got != step.want {
			t.Fatalf("step %d: after %q the breaker is %s, want %s", i, step.do, got, step.want)
		}
	}
}

func TestBreakerOpensAfterFiveFailuresInARow(t *testing.T) {
	story{
		{"call admitted", BreakerClosed},
		{"fails", BreakerClosed}, {"fails", BreakerClosed}, {"fails", BreakerClosed}, {"fails", BreakerClosed},
		{"works", BreakerClosed},
		{"fails", BreakerClosed}, {"fails", BreakerClosed}, {"fails", BreakerClosed}, {"fails", BreakerClosed},
		{"call admitted", BreakerClosed},
		{"fails", BreakerOpen},
		{"call refused", BreakerOpen},
	}.tell(t)
}

func TestBreakerTriesOneCallAtATime(t *testing.T) {
	fall := story{{"fails", BreakerClosed}, {"fails", BreakerClosed}, {"fails", BreakerClosed}, {"fails", BreakerClosed},
		{"fails", BreakerOpen}, {"probe answered", BreakerHalfOpen}}
	append(fall[:len(fall):len(fall)], story{
		{"call tried", BreakerHalfOpen},
		{"call refused", BreakerHalfOpen},
		{"trial not sent", BreakerHalfOpen},
		{"call tried", BreakerHalfOpen},
		{"works", BreakerClosed},
		{"call admitted", BreakerClosed},
		{"fails", BreakerClosed}, // failures before the outage are forgotten
	}...).tell(t)
	append(fall[:len(fall):len(fall)], story{
		{"call tried", BreakerHalfOpen},
		{"fails", BreakerOpen},
		{"call refused", BreakerOpen},
		{"probe answered", BreakerHalfOpen},
		{"call tried", BreakerHalfOpen},
	}...).tell(t)
}

func TestBreakerIgnoresBatchesFromBefore(t *testing.T) {
	story{
		{"fails", BreakerClosed}, {"fails", BreakerClosed}, {"fails", BreakerClosed}, {"fails", BreakerClosed},
		{"fails", BreakerOpen},
		{"old batch works", BreakerOpen},
		{"probe answered", BreakerHalfOpen},
		{"old batch fails", BreakerHalfOpen},
		{"old batch works", BreakerHalfOpen},
		{"probe answered", BreakerHalfOpen},
	}.tell(t)
}

func TestBreakerOpensWhenHalfOfTheBatchesFail(t *testing.T) {
	b := &breaker{}
	for i := range failuresOfLast64 {
		if b.State() != BreakerClosed {
			t.Fatalf("open after %d of %d failures", i, failuresOfLast64)
		}
		b.report(0, false)
		b.report(0, true)
	}
	if b.State() != BreakerOpen {
		t.Errorf("the breaker is %s after every other batch of 64 failed, want open", b.State())
	}
}

func TestBreakerStaysClosedWhenFewBatchesFail(t *testing.T) {
	b := &breaker{}
	for i := range 10_000 {
		b.report(0, i%3 == 0)
	}
	if b.State() != BreakerClosed {
		t.Errorf("the breaker is %s after a third of the batches failed, want closed", b.State())
	}
}

func TestBreakerReportsEachChange(t *testing.T) {
	var told []BreakerState
	b := &breaker{changed: func(s BreakerState) { told = append(told, s) }}
	for range failuresInRow {
		b.report(0, true)
	}
	b.tryAgain()
	b.admit()
	b.report(b.epoch.Load(), false)
	want := []BreakerState{BreakerOpen, BreakerHalfOpen, BreakerClosed}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("states told (-want +got):\n%s", diff)
	}
}

func TestWorse(t *testing.T) {
	const closed, open, half = BreakerClosed, BreakerOpen, BreakerHalfOpen
	for _, c := range [][3]BreakerState{{closed, closed, closed}, {closed, half, half}, {half, closed, half}, {half, open, open},
		{open, half, open}, {open, closed, open}, {closed, open, open}} {
		if got := Worse(c[0], c[1]); got != c[2] {
			t.Errorf("of %v and %v the worse is %v, want %v", c[0], c[1], got, c[2])
		}
	}
}
