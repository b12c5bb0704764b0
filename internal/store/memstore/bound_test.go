// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/racescale"
	"github.com/penstock/penstock/internal/test/storetest"
)

// oneOverflow is a hash mask with which all new clients of a rule share one overflow counter.
const oneOverflow = ^uint64((overflowPerRule - 1) << overflowShift)

var notations = []string{"3/1h fixed_window", "3/1h sliding_window", "3/1h sliding_log", "3/1h token_bucket"}

// newFull returns a store at its bound. Every counter is used up for an hour or more, except one
// that is used up for a second.
func newFull(t testing.TB, countersMax int, l *counter.Limit) *pinnedStore {
	p := open(t, countersMax)
	p.collide(oneOverflow)
	for i := range countersMax - 1 {
		p.ask(takeOf(fmt.Sprint("held", i), l, l.Count()))
	}
	p.ask(takeOf("brief", limittest.New(t, "1/1s fixed_window"), 1))
	if p.Len() != countersMax || p.Overflows() != 0 {
		t.Fatalf("%d counters, %d overflows, want %d and none", p.Len(), p.Overflows(), countersMax)
	}
	return p
}

func TestFullStoreGivesNoFreshAllowance(t *testing.T) {
	for _, text := range notations {
		t.Run(text, func(t *testing.T) {
			l := limittest.New(t, text)
			p := newFull(t, 300, l)
			for i := range 299 {
				if r := p.ask(takeOf(fmt.Sprint("held", i), l, 1))[0]; !r.Denied || r.Overflow {
					t.Fatalf("held %d: %+v, want refused by its own counter", i, r)
				}
			}
			for i, want := range []int64{2, 1, 0} {
				r := p.ask(takeOf(fmt.Sprint("newcomer", i), l, 1))[0]
				if r.Denied || !r.Overflow || r.Remaining != want {
					t.Fatalf("newcomer %d: %+v, want overflow with %d remaining", i, r, want)
				}
			}
			for i := range 1000 {
				if r := p.ask(takeOf(fmt.Sprint("newcomer", i), l, 1))[0]; !r.Denied || !r.Overflow || r.Wait <= 0 {
					t.Fatalf("newcomer %d: %+v, want refused by overflow", i, r)
				}
			}
			if p.Len() != 300 || p.overflow.held != 1 || p.Overflows() != 1003 {
				t.Errorf("%d counters, %d of overflow, %d answers", p.Len(), p.overflow.held, p.Overflows())
			}
		})
	}
}

func TestNewcomerStaysWithOverflowUntilItIsFresh(t *testing.T) {
	for _, text := range notations {
		t.Run(text, func(t *testing.T) {
			l := limittest.New(t, text)
			p := newFull(t, 100, l)
			p.ask(takeOf("newcomer", l, 3))
			// The counter of the client "brief" is fresh, so there is room for one client.
			p.at(noon + 10*counter.Second)
			for _, name := range []string{"newcomer", "another"} {
				if r := p.ask(takeOf(name, l, 1))[0]; !r.Denied || !r.Overflow {
					t.Errorf("%s when there is room: %+v, want refused by overflow", name, r)
				}
			}
			other := takeOf("newcomer", l, 3)
			other.Key = bytes.Replace(other.Key, []byte("api"), []byte("web"), 1)
			if r := p.ask(other)[0]; r.Denied || r.Overflow {
				t.Errorf("the other rule, which has room and no overflow: %+v", r)
			}
			p.at(noon + 3*counter.Hour)
			if r := p.ask(takeOf("newcomer", l, 3))[0]; r.Denied || r.Overflow || r.Granted != 3 {
				t.Errorf("after overflow is fresh: %+v, want a counter of its own", r)
			}
			if p.overflow.live.Load() {
				t.Error("overflow is still live")
			}
		})
	}
}

func TestAfterEverythingIsFreshNewcomersGetTheirOwn(t *testing.T) {
	l := limittest.New(t, "3/1m fixed_window")
	p := open(t, 1000)
	for i := range 5000 {
		p.ask(takeOf(fmt.Sprint("first", i), l, 1))
	}
	p.at(noon + counter.Minute)
	for i := range 1000 {
		if r := p.ask(takeOf(fmt.Sprint("second", i), l, 3))[0]; r.Denied || r.Overflow {
			t.Fatalf("newcomer %d: %+v, want its own counter", i, r)
		}
	}
}

func TestGiveBackNeverMakesRoomInOverflow(t *testing.T) {
	for _, text := range notations {
		l := limittest.New(t, text)
		p := newFull(t, 100, l)
		receipt := p.ask(takeOf("newcomer", l, 3))[0].Receipt
		back := takeOf("newcomer", l, 3)
		back.Op, back.Receipt = counter.OpRefund, receipt
		if r := p.ask(back)[0]; r.Granted != 0 || r.Denied {
			t.Errorf("%s: %+v, want dropped", text, r)
		}
		if r := p.ask(takeOf("another", l, 1))[0]; !r.Denied {
			t.Errorf("%s: %+v, want refused as before", text, r)
		}
		back.Key = clientKey("stranger", l)
		p.at(noon + 10*counter.Second)
		if p.ask(back); p.Len() > 100 {
			t.Errorf("%s: a give-back made a counter", text)
		}
	}
}

// TestForceOnANewcomer: a forced charge of a new client goes to its overflow counter, with a debt
// of at most one window's limit.
func TestForceOnANewcomer(t *testing.T) {
	l := limittest.New(t, "3/1h fixed_window")
	p := newFull(t, 100, l)
	force := takeOf("newcomer", l, 100)
	force.Op = counter.OpForce
	if r := p.ask(force)[0]; r.Granted != 6 || !r.Overflow {
		t.Errorf("%+v, want 6 recorded in overflow", r)
	}
}

// TestUnchargedChecksAreNotStored: looks and denied checks of new clients are not stored.
func TestUnchargedChecksAreNotStored(t *testing.T) {
	l := limittest.New(t, "3/1h")
	p := open(t, 100)
	look, dear, free := takeOf("a", l, 1), takeOf("b", l, 4), takeOf("c", l, 0)
	look.Op = counter.OpLook
	p.ask(look)
	p.ask(dear)
	p.ask(free)
	p.ask(dear, takeOf("d", l, 1))
	if p.Len() != 0 {
		t.Errorf("%d counters, want none", p.Len())
	}
	p.shards[0].checkConsistent(t)
}

// TestOneOverflowCounterTwiceInACall: two clients of one rule can share an overflow counter. If
// checks of both clients are in one call, only the first can be charged, so the call is denied. If
// the second is a shadow check, only that check is denied.
func TestOneOverflowCounterTwiceInACall(t *testing.T) {
	for _, text := range notations {
		l := limittest.New(t, text)
		p := newFull(t, 100, l)
		r := p.ask(takeOf("x", l, 1), takeOf("y", l, 1))
		if r[0].Granted != 0 || !r[1].Denied || p.overflow.held != 0 {
			t.Errorf("%s: %+v, %d in overflow, want nothing charged", text, r, p.overflow.held)
		}
		shadow := takeOf("y", l, 1)
		shadow.Shadow = true
		if r := p.ask(takeOf("x", l, 1), shadow); r[0].Granted != 1 || r[1].Granted != 0 || !r[1].Denied {
			t.Errorf("%s: %+v, want only the first charged", text, r)
		}
		force := takeOf("y", l, 1)
		force.Op = counter.OpForce
		if r := p.ask(takeOf("x", l, 1), force); r[0].Granted != 1 || r[1].Granted != 0 || r[1].Receipt != 0 {
			t.Errorf("%s: %+v, want only the first charged", text, r)
		}
		if r := p.ask(takeOf("z", l, 1))[0]; r.Denied || r.Remaining != 0 {
			t.Errorf("%s: %+v, want the third unit", text, r)
		}
	}
}

// TestLimitsOfOneRuleOverflowApart: two limits of one rule have separate overflow counters.
func TestLimitsOfOneRuleOverflowApart(t *testing.T) {
	hour, minute := limittest.New(t, "3/1h"), limittest.New(t, "2/1m")
	p := newFull(t, 100, hour)
	for i := range 3 {
		r := p.ask(takeOf("x", hour, 1), takeOf("x", minute, 1))
		if want := i == 2; r[1].Denied != want || r[0].Denied || !r[0].Overflow || !r[1].Overflow {
			t.Errorf("request %d: %+v", i, r)
		}
	}
}

func TestAMillionClientsStayUnderTheBound(t *testing.T) {
	const bound = 10_000
	p, l := open(t, bound), limittest.New(t, "3/1h token_bucket")
	check, results := takeOf("", l, 1), make([]counter.Result, 1)
	for i := range racescale.Long(1_000_000) {
		check.Key = key36(check.Key, i, l)
		if err := p.Take(context.Background(), []counter.Check{check}, results); err != nil {
			t.Fatal(err)
		}
		if p.Len() > bound {
			t.Fatalf("%d counters after client %d", p.Len(), i)
		}
	}
	held := 0
	for i := range p.shards {
		p.shards[i].checkConsistent(t)
		held += p.shards[i].held
	}
	if held != bound || p.Len() != bound || p.overflow.held != overflowPerRule {
		t.Errorf("%d held, %d counted, %d of overflow, want %d, %d, %d", held, p.Len(), p.overflow.held, bound, bound,
			overflowPerRule)
	}
}

// TestOverflowIsNeverMoreGenerousThanTheModel: a store that never forgets and shares no counters
// would also grant everything that this store grants. So no client exceeds its limit, even if the
// store is full.
func TestOverflowIsNeverMoreGenerousThanTheModel(t *testing.T) {
	for _, text := range []string{"5/10s fixed_window", "5/10s sliding_window", "5/10s sliding_log",
		"5/10s burst 8 token_bucket"} {
		t.Run(text, func(t *testing.T) { compareGrants(t, limittest.New(t, text)) })
	}
}

func compareGrants(t *testing.T, l *counter.Limit) {
	rng, p, model := random(t), open(t, 40), &storetest.Model{}
	p.collide(^uint64(0x3f8 << overflowShift)) // there are eight overflow counters
	wide, now := limittest.New(t, "7/15s "+l.Algorithm().String()), noon
	type charge struct {
		check counter.Check
		left  int64
	}
	var charges []charge
	own, shared := 0, 0
	for step := range racescale.Fewer(60_000) {
		now += counter.Micros(rng.Int64N(int64(counter.Second) / 8))
		if rng.IntN(2000) == 0 {
			now += 20 * counter.Second
		}
		p.at(now)
		model.Pin(now)
		client := fmt.Sprint(rng.IntN(20 + step%100))
		checks := []counter.Check{takeOf(client, l, rng.Int64N(5)), takeOf(client, wide, 1)}[:1+rng.IntN(2)]
		switch rng.IntN(8) {
		case 0:
			checks[0].Op = counter.OpForce
		case 1:
			checks[0].Op, checks[0].Min, checks[0].Max, checks[0].ShareMille = counter.OpUpTo, 1, 8, 500
			checks[0].Cost = max(1, checks[0].Cost)
		case 2:
			if len(charges) > 0 {
				c := &charges[max(0, len(charges)-1-rng.IntN(10))]
				c.check.Cost = rng.Int64N(c.left + 1)
				c.left -= c.check.Cost
				checks = []counter.Check{c.check}
			}
		}
		for i, r := range p.ask(checks...) {
			if r.Overflow {
				shared++
			} else {
				own++
			}
			if r.Granted == 0 {
				continue
			}
			same := checks[i]
			same.Cost = r.Granted
			if same.Op == counter.OpUpTo {
				same.Op = counter.OpTake
			}
			want := make([]counter.Result, 1)
			if err := model.Take(context.Background(), []counter.Check{same}, want); err != nil {
				t.Fatal(err)
			}
			if want[0].Granted != r.Granted {
				t.Fatalf("step %d at +%s: op %d of %s was granted %d, the model grants %d", step, now-noon, same.Op,
					same.Key, r.Granted, want[0].Granted)
			}
			if same.Op == counter.OpTake {
				same.Op, same.Receipt = counter.OpRefund, r.Receipt
				charges = append(charges, charge{same, r.Granted})
			}
		}
	}
	if own < 1000 || shared < 1000 {
		t.Errorf("%d answers by own counters and %d by overflow: the test does not test", own, shared)
	}
	p.overflow.checkConsistent(t)
}

func TestFullStoreSaysSoOnceAMinute(t *testing.T) {
	var out strings.Builder
	l := limittest.New(t, "3/1h")
	p := newFull(t, 100, l)
	p.alarm.log = slog.New(slog.NewTextHandler(&out, nil))
	for second := range counter.Micros(120) {
		p.at(noon + second*counter.Second)
		p.ask(takeOf("newcomer", l, 1))
		p.ask(takeOf("another", l, 1))
	}
	if n := strings.Count(out.String(), "\n"); n != 2 {
		t.Errorf("%d lines in two minutes, want 2:\n%s", n, &out)
	}
	if strings.Contains(out.String(), "newcomer") {
		t.Errorf("the log names a client:\n%s", &out)
	}
}

// TestClockThatWasAnHourAhead: although the clock was an hour ahead for a while, no counters are
// dropped while there is room.
func TestClockThatWasAnHourAhead(t *testing.T) {
	l := limittest.New(t, "3/1m fixed_window")
	p := open(t, 10_000)
	p.slack = backwards
	p.ask(takeOf("ann", l, 3))
	p.at(noon + counter.Hour)
	for i := range 5000 {
		p.ask(takeOf(fmt.Sprint("other", i), l, 1))
	}
	p.at(noon)
	if r := p.ask(takeOf("ann", l, 1))[0]; !r.Denied {
		t.Errorf("%+v, want refused: the clock is back in the minute in which all was used", r)
	}
}
