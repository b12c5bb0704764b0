// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
)

// TestAPenaltyBesideLeases: a penalty costs an occasional check, not a call per request. A penalty
// imposed through another process takes effect within AbsenceMax, and one imposed through this
// process at once.
func TestAPenaltyBesideLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, books := newFar(t, time.Millisecond), &ledger{}
		s, other := f.node(Options{}), f.node(Options{})
		defer f.close(s)
		defer f.close(other)
		penalty := &counter.Penalty{Window: counter.Hour, Threshold: 1, Multipliers: []int64{1}}
		hot := punishedChecks(penalty, leasedOf("hot", limittest.New(t, "100000/1h"), 1))
		const span = 2 * time.Second
		ask := func() (refused bool) {
			denied := books.denied
			_ = books.ask(s, hot...)
			return books.denied > denied
		}
		for start := time.Now(); time.Since(start) < span; time.Sleep(400 * time.Microsecond) {
			ask()
		}
		calls, _ := f.calls()
		t.Logf("%d calls for %d requests", calls, books.requests)
		if most := 2 * 25 * int(span/time.Second); calls > most+200 || books.denied+books.failed > 0 || s.Stats().Leased == 0 {
			t.Errorf("%d calls, %d denied, %d failed, %d from the hand", calls, books.denied, books.failed, s.Stats().Leased)
		}
		offend := func(s *Store, key string) {
			small := punishedChecks(penalty, takeOf(key, limittest.New(t, "1/500ms"), 1))
			for range 2 {
				_ = (&ledger{}).ask(s, small...)
			}
		}
		offend(other, "a")
		imposed := time.Now()
		for !ask() {
			if time.Since(imposed) > time.Second {
				t.Fatal("a penalty that was imposed elsewhere is not felt")
			}
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(imposed); took > time.Duration(AbsenceMax)*time.Microsecond {
			t.Errorf("a penalty that was imposed elsewhere is felt after %v", took)
		}
		for time.Sleep(time.Second); ask(); time.Sleep(time.Second) { // the test waits until the penalty has ended
		}
		for range 100 {
			ask()
			time.Sleep(time.Millisecond)
		}
		offend(s, "b")
		if !ask() {
			t.Error("a penalty that was imposed here is not felt at once")
		}
	})
}

// TestAbsencesAreBounded: a bounded number of clients is remembered as having no penalty.
func TestAbsencesAreBounded(t *testing.T) {
	known, ids := newAbsences(64), newSeeds()
	for i := range 10_000 {
		id := ids.identify(fmt.Appendf(nil, "client %d", i))
		if absent, _ := known.known(1, id); absent {
			t.Fatalf("client %d is known before anybody asked", i)
		}
		known.learn(id, counter.Micros(10+i))
		if absent, look := known.known(1, id); !absent || look && i > int(AbsenceMax) {
			t.Fatalf("client %d is not known", i)
		}
	}
	n := 0
	for i := range 10_000 {
		if absent, _ := known.known(1, ids.identify(fmt.Appendf(nil, "client %d", i))); absent {
			n++
		}
	}
	if n > 64 || n < 32 {
		t.Errorf("%d clients are known, want at most 64", n)
	}
}

// TestOneLooks: only one request checks again when half of the time has passed. A late or missing
// answer does not prolong the absence.
func TestOneLooks(t *testing.T) {
	known, id := newAbsences(64), identity{1, 2}
	known.learn(id, AbsenceMax)
	for _, step := range []struct {
		now          counter.Micros
		absent, look bool
	}{{0, true, false}, {AbsenceMax / 2, true, true}, {AbsenceMax/2 + 1, true, false}, {AbsenceMax, false, false}} {
		if absent, look := known.known(step.now, id); absent != step.absent || look != step.look {
			t.Errorf("at %v: %v, look %v", step.now, absent, look)
		}
	}
	known.learn(id, -1)
	if absent, look := known.known(AbsenceMax-1, id); !absent || !look {
		t.Error("after a look that failed nobody looks")
	}
	known.learn(id, 0)
	if absent, _ := known.known(0, id); absent {
		t.Error("a penalty in force is not known")
	}
	known.learn(id, 2*AbsenceMax)
	if absent, _ := known.known(AbsenceMax, id); !absent {
		t.Error("a penalty that is over is")
	}
}
