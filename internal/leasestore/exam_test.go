// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/lease"
	"github.com/penstock/penstock/internal/storetest"
	"github.com/penstock/penstock/internal/underrace"
)

func examine(o Options) func(t testing.TB) storetest.Subject {
	return func(t testing.TB) storetest.Subject {
		var clock atomic.Int64
		o.Now, o.Timeout = func() core.Micros { return core.Micros(clock.Load()) }, patience
		subject := (&storetest.Model{}).Subject()
		pin := subject.Pin
		// The exam's clock goes back, this process's does not: nothing is remembered from one instant to the next.
		subject.Pin = func(now core.Micros) {
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

// TestPassesTheExamFromMemory leaves out the promises: the violation of a second limit waits for the next question.
func TestPassesTheExamFromMemory(t *testing.T) {
	open := examine(Options{})
	storetest.RunVectors(t, open)
	storetest.RunRandom(t, open, underrace.Fewer(storetest.RandomSteps))
	storetest.RunOracle(t, open, storetest.OracleSteps)
}

// leasing asks for every limit that may be leased as its rule would under lease: auto. Who looks finds nothing in hand: it
// is for what is left in the end.
type leasing struct{ *Store }

func (l leasing) Take(ctx context.Context, checks []core.Check, results []core.Result) error {
	if len(checks) > 0 && checks[0].Op == core.OpLook {
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

// TestPassesTheExamOverLeases is about cold counters: under a clock that stands nobody needs anything in advance.
func TestPassesTheExamOverLeases(t *testing.T) {
	for name, o := range map[string]Options{"alone": {DenialsMax: -1}, "with memory": {}} {
		t.Run(name, func(t *testing.T) {
			open := func(t testing.TB) storetest.Subject {
				subject := examine(o)(t)
				subject.Store = leasing{subject.Store.(*Store)}
				return subject
			}
			if o.DenialsMax < 0 {
				storetest.RunPromises(t, open)
			}
			storetest.RunVectors(t, open)
			storetest.RunRandom(t, open, underrace.Fewer(storetest.RandomSteps))
			storetest.RunOracle(t, open, storetest.OracleSteps)
		})
	}
}
