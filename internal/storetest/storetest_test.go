// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"testing"

	"github.com/penstock/penstock/core"
)

func openModel(testing.TB) Subject { return (&Model{}).Subject() }

func TestModelPassesTheExam(t *testing.T) { Run(t, openModel) }

// forgetful is a store that drops every counter as soon as it is equal to a fresh one, as stores may.
type forgetful struct {
	Model
	limits map[string]*core.Limit
}

func (f *forgetful) Take(ctx context.Context, checks []core.Check, results []core.Result) error {
	f.mu.Lock()
	for key, l := range f.limits {
		s := f.counters[key]
		if nothing(kept(s.State, s.Marks, l, f.now)) {
			delete(f.counters, key)
			delete(f.limits, key)
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
			f.limits[string(checks[i].Key)] = checks[i].Limit
		}
	}
	return err
}

func TestAStoreMayForgetWhatIsFresh(t *testing.T) {
	Run(t, func(testing.TB) Subject {
		f := &forgetful{limits: map[string]*core.Limit{}}
		return Subject{Store: f, Pin: f.Pin, Counter: f.Counter}
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
		if err := m.Take(t.Context(), checks, results); err != nil {
			t.Fatal(err)
		}
		for i := range checks {
			seen["checks"]++
			if results[i].Refused {
				seen["refused"]++
			}
			seen[[...]string{"take", "up to", "look", "give back", "force"}[checks[i].Op]]++
			if results[i].Granted > 0 {
				seen[[...]string{"taken", "taken up to n", "", "given back", "forced"}[checks[i].Op]]++
			}
			if len(checks) > 1 && results[i].Granted > 0 && checks[i].Op == core.OpTake {
				seen["taken with others"]++
			}
		}
		tr.heard(checks, results)
	}
	for _, what := range []string{"refused", "taken", "taken up to n", "given back", "forced", "taken with others"} {
		if seen[what] < 500 {
			t.Errorf("%d %s of %d checks: the traffic tests nothing", seen[what], what, seen["checks"])
		}
	}
	t.Log(seen)
}
