// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/penstock/penstock/core"
)

func openModel(testing.TB) Subject { return (&Model{}).Subject() }

func TestModelPassesTheExam(t *testing.T) { Run(t, openModel) }

// forgetful is a store that drops every counter as soon as it is equal to a fresh one, as stores may.
type forgetful struct {
	Model
	written map[string]core.Check // what each counter was asked about as when it was last kept
}

func (f *forgetful) Take(ctx context.Context, checks []core.Check, results []core.Result) error {
	f.mu.Lock()
	for key, c := range f.written {
		if nothing(kept(c, f.counters[key], f.now)) {
			delete(f.counters, key)
			delete(f.written, key)
		}
	}
	before := map[string]core.Slot{}
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

func TestAStoreMayForgetWhatIsFresh(t *testing.T) {
	Run(t, func(testing.TB) Subject {
		f := &forgetful{written: map[string]core.Check{}}
		return Subject{Store: f, Pin: f.Pin, Counter: f.Counter, Penalty: f.Penalty}
	})
}

// The traffic is worth nothing if everything in it is admitted, or nothing.
func TestTrafficIsVaried(t *testing.T) {
	tr, m := newTraffic(Seed(t)), &Model{}
	seen := map[string]int{}
	for range 20_000 {
		checks := tr.next()
		m.Pin(tr.now)
		results := make([]core.Result, len(checks))
		err := m.Take(t.Context(), checks, results)
		if errors.Is(err, core.ErrStale) {
			seen["stale"]++
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := range checks {
			observe(seen, &checks[i], &results[i], len(checks) > 1)
		}
		tr.heard(checks, results)
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

// observe counts what happened to a check.
func observe(seen map[string]int, c *core.Check, r *core.Result, several bool) {
	count := func(what string, when bool) {
		if when {
			seen[what]++
		}
	}
	seen["checks"]++
	if c.Penalty != nil {
		count("penalty in force", r.Refused)
		count("penalty not in force", !r.Refused)
		count("penalty imposed anew", r.Refused && r.Violations > c.Penalty.Threshold)
		count("several violations", r.Violations > 1)
		count("lifted", c.Op == core.OpReset && r.Granted > 0)
		return
	}
	seen[[...]string{"take", "up to", "look", "give back", "force", "reset"}[c.Op]]++
	count("refused", r.Refused)
	count([...]string{"taken", "taken up to n", "", "given back", "forced", "reset"}[c.Op], r.Granted > 0)
	count("taken with others", several && r.Granted > 0 && c.Op == core.OpTake)
	count("calendar taken", c.Bounds != nil && r.Granted > 0)
	count("calendar refused", c.Bounds != nil && r.Refused)
}
