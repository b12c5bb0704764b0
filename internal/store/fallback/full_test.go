// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
)

// noMemory is a store that, while full is set, has no memory for counters with "new" in their keys.
type noMemory struct {
	counter.Store
	full bool
}

func (s *noMemory) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	for i := range checks {
		if s.full && checks[i].Op != counter.OpLook && fresh(checks[i].Key) {
			return refusal{notExecuted{counter.ErrUnavailable}}
		}
	}
	return s.Store.Take(ctx, checks, results)
}

func fresh(key []byte) bool { return strings.Contains(string(key), "new") }

// refusal is the error of a call that needs a new counter.
type refusal struct{ notExecuted }

func (refusal) NewCounter(key []byte) bool { return fresh(key) }

// TestKnownCountersAreChargedBesideNew: a store without memory for new counters still charges the
// known counters of a call. The calls are requests, charges of debts, and further charges. A denied
// request charges nothing, neither in the store nor in memory.
func TestKnownCountersAreChargedBesideNew(t *testing.T) {
	w := newWorld(t, 1)
	inner := &noMemory{Store: w.inner.Store}
	w.Store = New(inner, Options{Counts: NewCounts(w.local)})
	known, other := limited(t, "x", 20, 1, counter.OnErrorAllow), limited(t, "new", 8, 1, counter.OnErrorAllow)
	w.admits(t, 1, known)
	inner.full = true
	if got := w.admits(t, 3, other, known); got != 3 || w.used(&known) != 4 {
		t.Errorf("%d of 3 were admitted, the store has charged %d units, want 4", got, w.used(&known))
	}
	big := known
	big.Cost = 17
	if got := w.admits(t, 20, other, big); got != 0 || w.used(&known) != 4 {
		t.Errorf("%d were admitted above the known limit, the store has charged %d units, want 4", got, w.used(&known))
	}
	if got := w.admits(t, 20, known, other); got != 5 || w.used(&known) != 9 {
		t.Errorf("%d of 5 were admitted by the new counter, the store has charged %d units, want 9", got, w.used(&known))
	}
	s := w.Store
	s.addDebt(known.Key, s.options.Now(), due{units: 2, until: s.options.Now().Add(time.Minute)})
	if got := w.admits(t, 1, other, known); got != 0 || w.used(&known) != 11 {
		t.Errorf("the store has charged %d units, want 11 with a debt", w.used(&known))
	}
	more := []counter.Check{other, known}
	more[0].Op, more[1].Op = counter.OpForce, counter.OpForce
	if err := s.Corrections().Take(context.Background(), more, make([]counter.Result, 2)); err != nil || w.used(&known) != 12 {
		t.Errorf("%v, the store has charged %d units, want 12", err, w.used(&known))
	}
	if inner.full = false; w.admits(t, 1, other, known) != 0 || w.used(&other) != 8 {
		t.Errorf("with memory, %d units of the new counter are charged, want all 8", w.used(&other))
	}
}
