// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"testing"

	corecounter "github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/seed"
)

func openModel(testing.TB) Subject { return (&Model{}).Subject() }

func TestModelPassesTheExam(t *testing.T) { Run(t, openModel) }

// forgetfulStore is a store that drops every counter as soon as the counter equals a new one, which
// stores are free to do.
type forgetfulStore struct {
	Model
	written map[string]corecounter.Check // the check with which each counter was last stored
}

func (f *forgetfulStore) Take(ctx context.Context, checks []corecounter.Check, results []corecounter.Result) error {
	f.mu.Lock()
	for key, c := range f.written {
		if isZero(keptSlot(c, f.counters[key], f.now)) {
			delete(f.counters, key)
			delete(f.written, key)
		}
	}
	before := map[string]corecounter.Slot{}
	for i := range checks {
		before[string(checks[i].Key)] = f.slot(checks[i].Key)
	}
	f.mu.Unlock()
	err := f.Model.Take(ctx, checks, results)
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range checks {
		was, is := before[string(checks[i].Key)], f.slot(checks[i].Key)
		if !sameSlot(&was, &is) {
			f.written[string(checks[i].Key)] = checks[i]
		}
	}
	return err
}

func TestAStoreMayForgetFreshCounters(t *testing.T) {
	Run(t, func(testing.TB) Subject {
		f := &forgetfulStore{written: map[string]corecounter.Check{}}
		return Subject{Store: f, Pin: f.Pin, Counter: f.Counter, Penalty: f.Penalty}
	})
}

// TestTrafficIsVaried checks that random traffic leads to all kinds of outcomes, for example that
// it is neither always admitted nor always denied.
func TestTrafficIsVaried(t *testing.T) {
	tr, m := newTraffic(seed.First(t)), &Model{}
	seen := map[string]int{}
	for range 20_000 {
		checks := tr.next()
		m.Pin(tr.now)
		results := make([]corecounter.Result, len(checks))
		err := m.Take(t.Context(), checks, results)
		if errors.Is(err, corecounter.ErrStale) {
			seen["stale"]++
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := range checks {
			observe(seen, &checks[i], &results[i], len(checks) > 1)
		}
		tr.learn(checks, results)
	}
	for what, least := range map[string]int{"refused": 500, "taken": 500, "taken up to n": 500, "given back": 500, "forced": 500,
		"taken with others": 500, "reset": 200, "calendar taken": 500, "calendar refused": 500, "penalty in force": 500,
		"penalty imposed anew": 100, "several violations": 100, "lifted": 40, "stale": 50} {
		if seen[what] < least {
			t.Errorf("%d %s of %d checks, want %d: the traffic tests nothing", seen[what], what, seen["checks"], least)
		}
	}
	t.Log(seen)
}

// observe counts the outcomes of a check.
func observe(seen map[string]int, c *corecounter.Check, r *corecounter.Result, several bool) {
	count := func(what string, when bool) {
		if when {
			seen[what]++
		}
	}
	seen["checks"]++
	if c.Penalty != nil {
		count("penalty in force", r.Denied)
		count("penalty not in force", !r.Denied)
		count("penalty imposed anew", r.Denied && r.Violations > c.Penalty.Threshold)
		count("several violations", r.Violations > 1)
		count("lifted", c.Op == corecounter.OpReset && r.Granted > 0)
		return
	}
	seen[[...]string{"take", "up to", "look", "give back", "force", "reset"}[c.Op]]++
	count("refused", r.Denied)
	count([...]string{"taken", "taken up to n", "", "given back", "forced", "reset"}[c.Op], r.Granted > 0)
	count("taken with others", several && r.Granted > 0 && c.Op == corecounter.OpTake)
	count("calendar taken", c.Bounds != nil && r.Granted > 0)
	count("calendar refused", c.Bounds != nil && r.Denied)
}
