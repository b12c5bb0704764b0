// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/storetest"
	"github.com/penstock/penstock/internal/underrace"
)

func examine(o Options) func(t testing.TB) storetest.Subject {
	return func(t testing.TB) storetest.Subject {
		var clock atomic.Int64
		o.Now = func() core.Micros { return core.Micros(clock.Load()) }
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
