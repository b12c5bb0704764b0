// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/core"
)

// request is the checks of a client that a penalty and a limit of one an hour are for.
func request(t testing.TB, client string) []core.Check {
	p := &core.Penalty{Window: core.Hour, Threshold: 1, Multipliers: []int64{1, 2}, Max: 10 * core.Minute}
	key := fmt.Sprintf("rl1:shop:~penalty:{user:%s}", client)
	c := takeOf(client, limitOf(t, "1/1h fixed_window"), 1)
	c.Guard, c.Violation = 1, 7
	return []core.Check{{Key: []byte(key), ScopeLen: len("rl1:shop:~penalty:"), Penalty: p}, c}
}

// daily is a check of a calendar day, from a caller whose clock shows now.
func daily(t testing.TB, client string, now core.Micros) core.Check {
	c := takeOf(client, limitOf(t, "3/day"), 1)
	b := core.CalendarDay.Bounds(now, time.UTC)
	c.Bounds = &b
	return c
}

// A client that does no wrong takes room for its counter only.
func TestRecordIsMadeAtTheFirstViolation(t *testing.T) {
	p := open(t, 10)
	p.ask(request(t, "a")...)
	if p.Len() != 1 {
		t.Errorf("%d held after an admitted request, want its counter", p.Len())
	}
	if r := p.ask(request(t, "a")...); !r[0].Refused || r[0].Wait != 10*core.Minute || p.Len() != 2 {
		t.Errorf("%+v, %d held", r[0], p.Len())
	}
	reset := request(t, "a")
	reset[0].Op, reset[1].Op, reset[1].Guard = core.OpReset, core.OpReset, 0
	if r := p.ask(reset...); r[0].Granted != 1 || r[1].Granted != 1 || p.Len() != 0 {
		t.Errorf("a reset: %+v, %d held", r, p.Len())
	}
	if r := p.ask(reset...); r[0].Granted != 0 || r[1].Granted != 0 || p.Len() != 0 {
		t.Errorf("a reset of nothing: %+v, %d held", r, p.Len())
	}
}

// Twenty requests at once are one violation.
func TestTwentyParallelRequestsAreOneViolation(t *testing.T) {
	p, checks := open(t, 10), request(t, "a")
	checks[0].Penalty.Threshold = 2
	p.ask(checks...)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			results := make([]core.Result, len(checks))
			err := p.Take(context.Background(), checks, results)
			if err != nil || results[0].Violations != 1 || results[0].Refused || !results[1].Refused {
				t.Errorf("%+v (%v)", results, err)
			}
		})
	}
	wg.Wait()
	if _, violations := p.penalty(t, checks[0].Key); len(violations) != 1 {
		t.Errorf("%+v are remembered", violations)
	}
}

// A record that is as good as none makes room for a newcomer, and its violations go with it.
func TestRecordThatIsOverIsDropped(t *testing.T) {
	p := open(t, 2)
	p.ask(request(t, "a")...)
	p.ask(request(t, "a")...)
	p.at(noon + core.Hour - 1)
	if r := p.ask(takeOf("b", limitOf(t, "1/1h"), 1)); !r[0].Overflow {
		t.Errorf("a newcomer while the record counts: %+v", r[0])
	}
	p.at(noon + 3*core.Hour)
	for _, client := range []string{"b", "c"} {
		if r := p.ask(takeOf(client, limitOf(t, "1/1h"), 1)); r[0].Overflow {
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

// At the bound a newcomer's violations are not remembered: with others', they would punish those who did nothing.
func TestNoPenaltyWithoutRoom(t *testing.T) {
	p := open(t, 1)
	if r := p.ask(request(t, "a")...); r[1].Overflow {
		t.Fatalf("%+v", r[1])
	}
	for range 2 {
		r := p.ask(request(t, "a")...)
		if !r[1].Refused || r[0] != (core.Result{At: noon, Overflow: true}) {
			t.Errorf("%+v", r)
		}
	}
	if p.Len() != 1 || p.Overflows() != 2 {
		t.Errorf("%d held, %d overflows", p.Len(), p.Overflows())
	}
}

// Refusals by a counter that clients share are no violations of the one who meets them.
func TestSharedCounterIsNobodysViolation(t *testing.T) {
	p := open(t, 2)
	p.ask(request(t, "a")...)
	p.ask(request(t, "a")...) // a's counter and record: the store is full
	crowd := func(client string) []core.Result { return p.ask(request(t, client)...) }
	for i := range 3 * overflowPerRule {
		if r := crowd(fmt.Sprint("c", i)); r[0].Refused || r[0].Violations != 0 || !r[1].Overflow {
			t.Fatalf("client %d: %+v", i, r)
		}
	}
	p.at(noon + 30*core.Minute)
	if r := p.ask(request(t, "a")...); r[0].Refused || !r[1].Refused || r[0].Violations != 1 {
		t.Errorf("a, whose first violation has half an hour to go: %+v", r)
	}
}

// A reset gives nothing back of a counter that others share.
func TestResetOfASharedCounter(t *testing.T) {
	p := open(t, 1)
	p.ask(takeOf("a", limitOf(t, "1/1h"), 1))
	p.ask(takeOf("b", limitOf(t, "1/1h"), 1))
	reset := takeOf("b", limitOf(t, "1/1h"), 0)
	reset.Op = core.OpReset
	if r := p.ask(reset); r[0].Granted != 0 {
		t.Errorf("%+v", r[0])
	}
	if r := p.ask(takeOf("b", limitOf(t, "1/1h"), 1)); !r[0].Refused || !r[0].Overflow {
		t.Errorf("b after its reset: %+v", r[0])
	}
}

// A clock outside of the boundaries is an error, and leaves nothing behind: no charge, no counter, no lock.
func TestStaleChargesNothing(t *testing.T) {
	for name, countersMax := range map[string]int{"room": 10, "full": 1} {
		p := open(t, countersMax)
		p.ask(takeOf("first", limitOf(t, "1/1h"), 1))
		for _, caller := range []core.Micros{noon - 3*core.Day, noon + core.Day} {
			checks := []core.Check{takeOf("a", limitOf(t, "5/1h"), 1), daily(t, "a", caller), request(t, "a")[0]}
			err := p.Take(context.Background(), checks, make([]core.Result, 3))
			if !errors.Is(err, core.ErrStale) || !errors.Is(err, core.ErrUnavailable) {
				t.Errorf("%s: %v", name, err)
			}
			if p.Len() != 1 || p.Store.overflow.held != 0 {
				t.Errorf("%s: %d held, %d of overflow", name, p.Len(), p.Store.overflow.held)
			}
		}
		if r := p.ask(takeOf("a", limitOf(t, "5/1h"), 1), daily(t, "a", noon)); r[0].Remaining != 4 || r[1].Remaining != 2 {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// A calendar day and one of 24 hours do not share an overflow counter: they begin at other instants.
func TestCalendarOverflowIsItsOwn(t *testing.T) {
	p := open(t, 1)
	p.ask(takeOf("first", limitOf(t, "1/1h"), 1))
	for range 3 {
		if r := p.ask(daily(t, "a", noon), takeOf("a", limitOf(t, "3/1d fw"), 1)); r[0].Granted+r[1].Granted != 2 || !r[0].Overflow {
			t.Errorf("%+v", r)
		}
	}
	p.at(noon + 12*core.Hour)
	if r := p.ask(daily(t, "a", noon)); r[0].Granted != 1 || r[0].Reset != core.Day {
		t.Errorf("the next day: %+v", r[0])
	}
}

// Nothing is allocated for a client that does no wrong, nor for refusals that are no new violation.
func TestPenaltiesDoNotAllocate(t *testing.T) {
	p, results := open(t, 100), make([]core.Result, 3)
	good, bad := append(request(t, "good"), daily(t, "good", noon)), append(request(t, "bad"), daily(t, "bad", noon))
	good[1].Limit = limitOf(t, "1000000/1h fw")
	bad[0].Penalty.Threshold = 1000
	for name, checks := range map[string][]core.Check{"admitted": good, "refused": bad} {
		checks[2].Limit = limitOf(t, "1000000/day")
		p.ask(checks...)
		p.ask(checks...)
		if n := testing.AllocsPerRun(100, func() {
			if err := p.Take(context.Background(), checks, results); err != nil {
				t.Error(err)
			}
		}); n != 0 || results[1].Refused != (name == "refused") {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
