// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/lease"
	"github.com/penstock/penstock/internal/test/racescale"
	"github.com/penstock/penstock/internal/test/storetest"
)

func examine(o Options) func(t testing.TB) storetest.Subject {
	return func(t testing.TB) storetest.Subject {
		var clock atomic.Int64
		o.Reports, o.Timeout = NewReports(func() counter.Micros { return counter.Micros(clock.Load()) }), patience
		subject := (&storetest.Model{}).Subject()
		pin := subject.Pin
		// In the exam, the store's clock can go back, but this process's clock cannot. So this
		// process's clock advances until no denial is remembered.
		subject.Pin = func(now counter.Micros) {
			clock.Add(int64(2 * DenialMax))
			pin(now)
		}
		s, err := New(subject.Store, o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close(t.Context()) })
		subject.Store = s
		return subject
	}
}

func TestPassesTheExam(t *testing.T) { storetest.Run(t, examine(Options{DenialsMax: -1})) }

// TestPassesTheExamFromMemory omits one promise of the exam, because the violation of a second
// limit is recorded only at the next call.
func TestPassesTheExamFromMemory(t *testing.T) {
	open := examine(Options{})
	storetest.RunVectors(t, open)
	storetest.RunRandom(t, open, racescale.Fewer(storetest.RandomSteps))
	storetest.RunOracle(t, open, storetest.OracleSteps)
}

// leaseAll leases every limit that may be leased, as its rule would under lease: auto. An OpLook is
// not leased, because it checks how many units are left in the end.
type leaseAll struct{ *Store }

func (l leaseAll) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	if len(checks) > 0 && checks[0].Op == counter.OpLook {
		l.sweep(ctx, (*lease.Counter).Release)
	}
	leased := slices.Clone(checks)
	for i := range leased {
		if c := &leased[i]; c.Limit != nil {
			c.Lease = c.Limit.Leasable()
		}
	}
	return l.Store.Take(ctx, leased, results)
}

// TestPassesTheExamOverLeases covers no units that are leased in advance, because none are leased
// while the clock stands still.
func TestPassesTheExamOverLeases(t *testing.T) {
	for name, o := range map[string]Options{"alone": {DenialsMax: -1}, "with memory": {}} {
		t.Run(name, func(t *testing.T) {
			open := func(t testing.TB) storetest.Subject {
				subject := examine(o)(t)
				subject.Store = leaseAll{subject.Store.(*Store)}
				return subject
			}
			if o.DenialsMax < 0 {
				storetest.RunPromises(t, open)
			}
			storetest.RunVectors(t, open)
			storetest.RunRandom(t, open, racescale.Fewer(storetest.RandomSteps))
			storetest.RunOracle(t, open, storetest.OracleSteps)
		})
	}
}
