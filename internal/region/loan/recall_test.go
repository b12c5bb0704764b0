// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// pair returns two regions that can reach each other. The busy one has used up its part of a
// sliding window. The idle one has used none of the present window, but its part was used up in the
// previous window.
func pair(t *testing.T) (busy, idle *lender) {
	t.Helper()
	return pairApart(t, 0)
}

// pairApart returns two regions as pair does, but the clock of the busy region is ahead of the
// clock of the idle one.
func pairApart(t *testing.T, ahead counter.Micros) (busy, idle *lender) {
	t.Helper()
	shares := [policy.RegionsMax]uint16{50, 50}
	busy, idle = newLender(t, "2000/1m", shares, 0), newLender(t, "2000/1m", shares, 1)
	busy.now += ahead
	for _, l := range []*lender{busy, idle} {
		if !l.takes(1000) {
			t.Fatal("a region does not have its part")
		}
	}
	idle.tally(&Question{Key: idle.key, Limit: idle.whole.String()}, idle.now, 1000) // it has lent them
	for _, l := range []*lender{busy, idle} {
		l.now += counter.Minute + counter.Second/2
	}
	busy.o.Peers, idle.o.Peers = []*Peer{reach(idle)}, []*Peer{reach(busy)}
	return busy, idle
}

// reach returns a Peer that calls the agent of another region directly.
func reach(other *lender) *Peer {
	return &Peer{Name: "peer", send: func(ctx context.Context, _ string, message any) (Loan, error) {
		switch m := message.(type) {
		case *Question:
			return other.lend(ctx, m)
		case *returned:
			return other.takeBack(ctx, m)
		}
		return Loan{}, errors.New("unreachable")
	}}
}

// lender.asks asks the other region for units, on behalf of requests that need them.
func (l *lender) asks(need int64) int64 {
	q := &Question{Key: l.key, Limit: l.whole.String(), Part: l.part.Count(), Want: need + l.part.Count(), Short: true, Need: need,
		Shares: l.o.Policy().Here.Shares}
	r := l.rounds.join(q)
	r.need.Store(need)
	defer l.leave(context.Background(), r)
	return l.borrow(context.Background(), q, r)
}

// TestAnIdleRegionLendsTheWholeWindow: one question brings all units of another region that its
// requests do not need, including those that become available until the window ends. The borrower
// uses each of these only from the moment at which it becomes available. Without a further
// question, both parts are used exactly.
func TestAnIdleRegionLendsTheWholeWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy, idle := pair(t)
		admitted := 0
		for ; busy.now%counter.Minute < 59*counter.Second; busy.now += 10 * counter.Millisecond {
			if busy.takes(1) {
				admitted++
				continue
			}
			busy.asks(0)
			elapsed := busy.now % counter.Minute
			if most := 2000 * int64(elapsed) / int64(counter.Minute); int64(admitted) > most+1 {
				t.Fatalf("%d units were admitted after %v of the window, one counter admits %d", admitted, elapsed, most)
			}
			time.Sleep(time.Second) // so that the pauses of the agents, which follow the machine's clock, are over
			if busy.takes(1) {
				admitted++
			}
		}
		if admitted < 1950 {
			t.Errorf("%d of the 1966 units that are available after 59 s were admitted", admitted)
		}
		if n := idle.counts.lent.Load(); n > 3 {
			t.Errorf("%d loans, want one for the window, and what was kept", n)
		}
	})
}

// TestARegionRecalls: a region that has lent units for later admits nothing. When it needs some,
// the borrower sends back all that it still holds of them.
func TestARegionRecalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy, idle := pair(t)
		busy.asks(0)
		if _, held := busy.holds.all(); held < 900 {
			t.Fatalf("the borrower holds %d units, want nearly all of the other part", held)
		}
		for _, l := range []*lender{busy, idle} {
			l.now += 10 * counter.Second
		}
		if idle.takes(1) {
			t.Fatal("the lender admits a request although it has lent its units")
		}
		if idle.asks(1) < 1 || !idle.takes(100) {
			t.Error("after a recall, the lender does not have the units of ten seconds")
		}
		if _, held := busy.holds.all(); held > 100 {
			t.Errorf("the borrower still holds %d units", held)
		}
	})
}

// TestAnAgentThatEndsReturnsWhatItHolds: nothing that it holds is lost.
func TestAnAgentThatEndsReturnsWhatItHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy, idle := pair(t)
		busy.asks(0)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		busy.o.Listen = func(context.Context, func(), func(string)) error { return nil }
		busy.Run(ctx)
		for _, l := range []*lender{busy, idle} {
			l.now += 30 * counter.Second
			if _, held := l.holds.all(); held != 0 || !l.takes(490) {
				t.Errorf("%d units are held, or half of the part cannot be used in the middle of the window", held)
			}
		}
	})
}

// TestOnlyAgentsThatHoldGetUnitsForLater: a lender gives units that become usable later only to an
// agent that says it can hold them. An agent of an earlier release would use such units at once.
func TestOnlyAgentsThatHoldGetUnitsForLater(t *testing.T) {
	busy, idle := pair(t)
	q := &Question{Key: busy.key, Limit: busy.whole.String(), Part: busy.part.Count(), Want: 1000, Short: true, Shares: busy.o.Policy().Here.Shares}
	l, err := idle.lend(t.Context(), q)
	if err != nil || l.Later != 0 || l.Units > 10 {
		t.Errorf("%+v, error %v: units were lent that are not available yet", l, err)
	}
	for name, l := range map[string]Loan{
		"not asked for": {Later: 5, Receipt: 1, From: 1, Full: 2},
		"too many":      {Units: 1000, Later: 1, Receipt: 1, From: 1, Full: 2},
		"negative":      {Units: 5, Later: -1, Receipt: 1},
		"no time":       {Later: 5, Receipt: 1, From: 2, Full: 2},
	} {
		p := &Peer{send: func(context.Context, string, any) (Loan, error) { return l, nil }}
		asked := *q
		asked.Ahead = name != "not asked for"
		if got, err := p.ask(t.Context(), &asked); err == nil {
			t.Errorf("%s: %+v was accepted", name, got)
		}
	}
}
