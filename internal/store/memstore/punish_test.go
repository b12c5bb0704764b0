// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
)

// request returns the checks of a client under a penalty and a limit of one an hour.
func request(t testing.TB, client string) []counter.Check {
	p := &counter.Penalty{Window: counter.Hour, Threshold: 1, Multipliers: []int64{1, 2}, Max: 10 * counter.Minute}
	key := fmt.Sprintf("rl1:shop:~penalty:{user:%s}", client)
	c := takeOf(client, limittest.New(t, "1/1h fixed_window"), 1)
	c.Guard, c.Violation = 1, 7
	return []counter.Check{{Key: []byte(key), ScopeLen: len("rl1:shop:~penalty:"), Penalty: p}, c}
}

// dailyCheck returns a check under a limit of a calendar day. Its boundaries are those of a caller
// whose clock shows the given time.
func dailyCheck(t testing.TB, client string, now counter.Micros) counter.Check {
	c := takeOf(client, limittest.New(t, "3/day"), 1)
	b := counter.CalendarDay.Bounds(now, time.UTC)
	c.Bounds = &b
	return c
}

// TestRecordIsMadeAtTheFirstViolation: a client without violations takes room only for its counter.
func TestRecordIsMadeAtTheFirstViolation(t *testing.T) {
	p := open(t, 10)
	p.ask(request(t, "a")...)
	if p.Len() != 1 {
		t.Errorf("%d held after an admitted request, want its counter", p.Len())
	}
	if r := p.ask(request(t, "a")...); !r[0].Denied || r[0].Wait != 10*counter.Minute || p.Len() != 2 {
		t.Errorf("%+v, %d held", r[0], p.Len())
	}
	reset := request(t, "a")
	reset[0].Op, reset[1].Op, reset[1].Guard = counter.OpReset, counter.OpReset, 0
	if r := p.ask(reset...); r[0].Granted != 1 || r[1].Granted != 1 || p.Len() != 0 {
		t.Errorf("a reset: %+v, %d held", r, p.Len())
	}
	if r := p.ask(reset...); r[0].Granted != 0 || r[1].Granted != 0 || p.Len() != 0 {
		t.Errorf("a reset of nothing: %+v, %d held", r, p.Len())
	}
}

// TestTwentyParallelRequestsAreOneViolation: twenty simultaneous requests are one violation.
func TestTwentyParallelRequestsAreOneViolation(t *testing.T) {
	p, checks := open(t, 10), request(t, "a")
	checks[0].Penalty.Threshold = 2
	p.ask(checks...)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			results := make([]counter.Result, len(checks))
			err := p.Take(context.Background(), checks, results)
			if err != nil || results[0].Violations != 1 || results[0].Denied || !results[1].Denied {
				t.Errorf("%+v (%v)", results, err)
			}
		})
	}
	wg.Wait()
	if _, violations := p.penalty(t, checks[0].Key); len(violations) != 1 {
		t.Errorf("%+v are remembered", violations)
	}
}

// TestRecordThatIsOverIsDropped: an expired record makes room for a new client, and its violations
// are dropped.
func TestRecordThatIsOverIsDropped(t *testing.T) {
	p := open(t, 2)
	p.ask(request(t, "a")...)
	p.ask(request(t, "a")...)
	p.at(noon + counter.Hour - 1)
	if r := p.ask(takeOf("b", limittest.New(t, "1/1h"), 1)); !r[0].Overflow {
		t.Errorf("a newcomer while the record counts: %+v", r[0])
	}
	p.at(noon + 3*counter.Hour)
	for _, client := range []string{"b", "c"} {
		if r := p.ask(takeOf(client, limittest.New(t, "1/1h"), 1)); r[0].Overflow {
			t.Errorf("%s: %+v", client, r[0])
		}
	}
	for i := range p.shards {
		for _, violations := range p.shards[i].records.items {
			if violations != nil {
				t.Errorf("violations are left: %+v", violations)
			}
		}
	}
}

// TestNoPenaltyWithoutRoom: a full store records no violations of new clients, because shared
// records would punish clients without violations.
func TestNoPenaltyWithoutRoom(t *testing.T) {
	p := open(t, 1)
	if r := p.ask(request(t, "a")...); r[1].Overflow {
		t.Fatalf("%+v", r[1])
	}
	for range 2 {
		r := p.ask(request(t, "a")...)
		if !r[1].Denied || r[0] != (counter.Result{At: noon, Overflow: true}) {
			t.Errorf("%+v", r)
		}
	}
	if p.Len() != 1 || p.Overflows() != 2 {
		t.Errorf("%d held, %d overflows", p.Len(), p.Overflows())
	}
}

// TestSharedCounterIsNoViolation: a denial by an overflow counter, which several clients share, is
// not a violation.
func TestSharedCounterIsNoViolation(t *testing.T) {
	p := open(t, 2)
	p.ask(request(t, "a")...)
	p.ask(request(t, "a")...) // the counter and the record of client a fill the store
	ofClient := func(client string) []counter.Result { return p.ask(request(t, client)...) }
	for i := range 3 * overflowPerRule {
		if r := ofClient(fmt.Sprint("c", i)); r[0].Denied || r[0].Violations != 0 || !r[1].Overflow {
			t.Fatalf("client %d: %+v", i, r)
		}
	}
	p.at(noon + 30*counter.Minute)
	if r := p.ask(request(t, "a")...); r[0].Denied || !r[1].Denied || r[0].Violations != 1 {
		t.Errorf("a, whose first violation has half an hour to go: %+v", r)
	}
}

// TestResetOfASharedCounter: a reset does not refund an overflow counter, which several clients
// share.
func TestResetOfASharedCounter(t *testing.T) {
	p := open(t, 1)
	p.ask(takeOf("a", limittest.New(t, "1/1h"), 1))
	p.ask(takeOf("b", limittest.New(t, "1/1h"), 1))
	reset := takeOf("b", limittest.New(t, "1/1h"), 0)
	reset.Op = counter.OpReset
	if r := p.ask(reset); r[0].Granted != 0 {
		t.Errorf("%+v", r[0])
	}
	if r := p.ask(takeOf("b", limittest.New(t, "1/1h"), 1)); !r[0].Denied || !r[0].Overflow {
		t.Errorf("b after its reset: %+v", r[0])
	}
}

// TestStaleChargesNothing: if the clock is outside the boundaries, the call fails, and leaves no
// charge, no counter and no lock.
func TestStaleChargesNothing(t *testing.T) {
	for name, countersMax := range map[string]int{"room": 10, "full": 1} {
		p := open(t, countersMax)
		p.ask(takeOf("first", limittest.New(t, "1/1h"), 1))
		for _, caller := range []counter.Micros{noon - 3*counter.Day, noon + counter.Day} {
			checks := []counter.Check{takeOf("a", limittest.New(t, "5/1h"), 1), dailyCheck(t, "a", caller), request(t, "a")[0]}
			err := p.Take(context.Background(), checks, make([]counter.Result, 3))
			if !errors.Is(err, counter.ErrStale) || !errors.Is(err, counter.ErrUnavailable) {
				t.Errorf("%s: %v", name, err)
			}
			if p.Len() != 1 || p.Store.overflow.held != 0 {
				t.Errorf("%s: %d held, %d of overflow", name, p.Len(), p.Store.overflow.held)
			}
		}
		if r := p.ask(takeOf("a", limittest.New(t, "5/1h"), 1), dailyCheck(t, "a", noon)); r[0].Remaining != 4 || r[1].Remaining != 2 {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// TestCalendarOverflowIsItsOwn: a calendar day and a window of 24 hours have separate overflow
// counters, because they begin at different instants.
func TestCalendarOverflowIsItsOwn(t *testing.T) {
	p := open(t, 1)
	p.ask(takeOf("first", limittest.New(t, "1/1h"), 1))
	for range 3 {
		if r := p.ask(dailyCheck(t, "a", noon), takeOf("a", limittest.New(t, "3/1d fw"), 1)); r[0].Granted+r[1].Granted != 2 || !r[0].Overflow {
			t.Errorf("%+v", r)
		}
	}
	p.at(noon + 12*counter.Hour)
	if r := p.ask(dailyCheck(t, "a", noon)); r[0].Granted != 1 || r[0].Reset != counter.Day {
		t.Errorf("the next day: %+v", r[0])
	}
}

// TestPenaltiesDoNotAllocate: nothing is allocated for a client without violations, nor for a
// denial that is not a new violation.
func TestPenaltiesDoNotAllocate(t *testing.T) {
	p, results := open(t, 100), make([]counter.Result, 3)
	good, bad := append(request(t, "good"), dailyCheck(t, "good", noon)), append(request(t, "bad"), dailyCheck(t, "bad", noon))
	good[1].Limit = limittest.New(t, "1000000/1h fw")
	bad[0].Penalty.Threshold = 1000
	for name, checks := range map[string][]counter.Check{"admitted": good, "refused": bad} {
		checks[2].Limit = limittest.New(t, "1000000/day")
		p.ask(checks...)
		p.ask(checks...)
		if n := testing.AllocsPerRun(100, func() {
			if err := p.Take(context.Background(), checks, results); err != nil {
				t.Error(err)
			}
		}); n != 0 || results[1].Denied != (name == "refused") {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
