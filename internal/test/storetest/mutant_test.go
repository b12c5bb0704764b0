// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	corecounter "github.com/penstock/penstock/core/counter"
)

// mutant is a store that breaks a promise on purpose. It has a name, and a function that replaces
// [Model.Take].
type mutant struct {
	name string
	take takeFunc
}

type takeFunc func(m *Model, ctx context.Context, checks []corecounter.Check, results []corecounter.Result) error

// brokenStore is a Model that answers calls with the function of a mutant.
type brokenStore struct {
	*Model
	how takeFunc
}

func (b brokenStore) Take(ctx context.Context, checks []corecounter.Check, results []corecounter.Result) error {
	return b.how(b.Model, ctx, checks, results)
}

// recorder is the testing.TB of an exam that is expected to fail. It records the failure instead of
// failing the test.
type recorder struct {
	testing.TB
	failed string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) { r.failed = fmt.Sprintf(format, args...) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }

// examine tests whether a mutant keeps one promise. It returns the message of the failure, or "" if
// the mutant passed.
func examine(t *testing.T, p *promise, how takeFunc) string {
	r := &recorder{TB: t}
	m := &Model{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		e := newExaminer(r, Subject{Store: brokenStore{m, how}, Pin: m.Pin, Counter: m.Counter, Penalty: m.Penalty})
		e.patience = 300 * time.Millisecond
		p.ask(e)
	}()
	<-done
	return r.failed
}

// TestExamFailsBrokenStores tests that every promise has at least one mutant, and that each mutant
// fails the exam of the promise that it breaks.
func TestExamFailsBrokenStores(t *testing.T) {
	known := map[string]bool{}
	for i := range promises {
		p := &promises[i]
		known[p.name] = true
		t.Run(p.name, func(t *testing.T) {
			if len(mutants[p.name]) == 0 {
				t.Fatal("no broken store shows that the exam asks for this promise")
			}
			if failed := examine(t, p, (*Model).Take); failed != "" {
				t.Fatalf("the model fails: %s", failed)
			}
			for _, mutant := range mutants[p.name] {
				failed := examine(t, p, mutant.take)
				if failed == "" {
					t.Errorf("a store that %s passes", mutant.name)
				}
				t.Logf("a store that %s: %s", mutant.name, failed)
			}
		})
	}
	for name := range mutants {
		if !known[name] {
			t.Errorf("mutants of %q, which is no promise", name)
		}
	}
}

// TestRandomTrafficFailsBrokenStores tests that every mutant of these promises also fails when
// random traffic compares it with the model.
func TestRandomTrafficFailsBrokenStores(t *testing.T) {
	checkMutants(t, []string{"a refund goes to its window", "a late refund is dropped", "up to n", "log_only decides nothing",
		"a calendar window is the zone's", "the store's clock says which period it is", "stale boundaries are no answer",
		"a clock back over a boundary goes on", "yesterday's receipt buys nothing today", "a changed zone keeps the day",
		"a penalty grows with the violations", "a penalty lasts as long as it says", "one violation until its wait is over",
		"the longest wait is multiplied", "no violation of the client's", "violations decay", "a penalty can be lifted",
		"a penalty survives a wrong clock", "a reset forgets", "how long units may be out is known",
		"a bucket holds back what a lease's time brings", "a lease comes back without what was refilled"},
		func(e *examiner) { compare(e, newTraffic(1), 20_000) })
}

// TestOracleFailsBrokenStores tests that every mutant of these promises also fails when it is
// compared with the oracle, which does not use the model.
func TestOracleFailsBrokenStores(t *testing.T) {
	checkMutants(t, []string{"all or nothing", "a denial costs nothing", "log_only decides nothing", "up to n",
		"a whole limit, and no more", "a refund goes to its window", "never below zero", "debt of at most one window",
		"windows are aligned to the epoch", "waits are the truth", "reset and next say what they say",
		"a calendar window is the zone's", "the store's clock says which period it is", "yesterday's receipt buys nothing today",
		"a penalty grows with the violations", "a penalty lasts as long as it says", "one violation until its wait is over",
		"the longest wait is multiplied", "no violation of the client's", "violations decay", "a penalty can be lifted",
		"a reset forgets", "how long units may be out is known", "a bucket holds back what a lease's time brings",
		"a lease comes back without what was refilled"},
		func(e *examiner) { foretell(e, 1, 6_000) })
}

// checkMutants fails the test if a mutant of one of the promises passes the function examine.
func checkMutants(t *testing.T, promises []string, examine func(e *examiner)) {
	for _, promise := range promises {
		if len(mutants[promise]) == 0 {
			t.Errorf("no broken store of %q", promise)
		}
		for _, mutant := range mutants[promise] {
			r, m := &recorder{TB: t}, &Model{}
			done := make(chan struct{})
			go func() {
				defer close(done)
				examine(newExaminer(r, Subject{Store: brokenStore{m, mutant.take}, Pin: m.Pin, Counter: m.Counter, Penalty: m.Penalty}))
			}()
			<-done
			if r.failed == "" {
				t.Errorf("%s: a store that %s passes", promise, mutant.name)
			}
		}
	}
}
