// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/core"
)

// mutant is a store that breaks a promise: what it does instead of [Model.Take].
type mutant struct {
	name string
	take takeFunc
}

type takeFunc func(m *Model, ctx context.Context, checks []core.Check, results []core.Result) error

// broken is a store around a Model.
type broken struct {
	*Model
	how takeFunc
}

func (b broken) Take(ctx context.Context, checks []core.Check, results []core.Result) error {
	return b.how(b.Model, ctx, checks, results)
}

// recorder stands in for the test that examines a mutant.
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

// examine returns how the exam failed the mutant on the promise, "" if it passed.
func examine(t *testing.T, p *promise, how takeFunc) string {
	r := &recorder{TB: t}
	m := &Model{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		e := newExaminer(r, Subject{Store: broken{m, how}, Pin: m.Pin, Counter: m.Counter, Penalty: m.Penalty})
		e.patience = 300 * time.Millisecond
		p.ask(e)
	}()
	<-done
	return r.failed
}

// Every promise has a broken store that the exam finds out; a promise without one is not examined at all.
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

// Broken stores that random traffic must find out, besides those the promises find.
func TestRandomTrafficFailsBrokenStores(t *testing.T) {
	for promise, list := range mutants {
		if !strings.HasPrefix(promise, "give") && !strings.HasPrefix(promise, "up to") && !strings.HasPrefix(promise, "log_only") {
			continue
		}
		for _, mutant := range list {
			r, m := &recorder{TB: t}, &Model{}
			done := make(chan struct{})
			go func() {
				defer close(done)
				e := newExaminer(r, Subject{Store: broken{m, mutant.take}, Pin: m.Pin, Counter: m.Counter, Penalty: m.Penalty})
				compare(e, newTraffic(1), 20_000)
			}()
			<-done
			if r.failed == "" {
				t.Errorf("%s: a store that %s passes", promise, mutant.name)
			}
		}
	}
}

// The oracle knows nothing of the model, so it must find out broken ones by itself.
func TestOracleFailsBrokenStores(t *testing.T) {
	for _, promise := range []string{"all or nothing", "refused costs nothing", "log_only stands aside", "up to n",
		"a whole limit, and no more", "give back goes to its window", "never below zero", "debt of at most one window",
		"windows are aligned to the epoch", "waits are the truth", "reset and next say what they say"} {
		for _, mutant := range mutants[promise] {
			r, m := &recorder{TB: t}, &Model{}
			done := make(chan struct{})
			go func() {
				defer close(done)
				foretell(newExaminer(r, Subject{Store: broken{m, mutant.take}, Pin: m.Pin, Counter: m.Counter, Penalty: m.Penalty}), 1, 6_000)
			}()
			<-done
			if r.failed == "" {
				t.Errorf("%s: a store that %s passes", promise, mutant.name)
			}
		}
	}
}
