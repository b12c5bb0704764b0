// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/sources"
	"github.com/penstock/penstock/internal/store/regionstore"
)

const (
	holdsMax    = 1 << 12 // counters of which units are held
	heldMax     = 16      // loans of one counter, and as many with units for later
	returnsMost = 128     // counters whose units an agent that ends returns at the same time
	sweepEvery  = time.Second
	// An agent that ends returns what it holds within returnTime. This is enough for the units of
	// all counters if the other regions are at most 200 ms away.
	returnTime = 8 * time.Second
	// An agent asks other regions again when what it holds lasts for less than this time.
	lowTime = time.Second
	// A counter of which nothing is held is forgotten after emptyTime, which is longer than a
	// restoration takes.
	emptyTime = 8 * callTime
)

// heldLoan is a loan of which an agent holds units.
type heldLoan struct {
	peer  *Peer
	loan  Loan  // its Units are usable from its At on
	taken int64 // how many of the later units were taken
}

func (h *heldLoan) left() int64 { return h.loan.Units + h.loan.Later - h.taken }

// heldLoan.end marks a loan as returned, so that its units are not returned again.
func (h *heldLoan) end() {
	h.peer, h.loan.ID, h.loan.Units, h.taken = nil, "", 0, h.loan.Later
}

// portion is a part of a held loan that was removed from a hold in order to be restored.
type portion struct {
	of         *heldLoan
	now, later int64 // how many units were usable at once, and how many only later
}

func (h *heldLoan) usable(at counter.Micros) (now, later int64) {
	if at >= h.loan.At {
		now = h.loan.Units
	}
	return now, max(0, h.loan.usable(at)-h.taken)
}

// hold is what an agent holds for a counter: units that other regions have lent for the present
// window, and that this region's counter could not take back yet.
type hold struct {
	restoring sync.Mutex // prevents two restorations from using the same room of the counter

	// The lock of the holds guards the fields below.
	question  Question
	source    sources.Source
	window    counter.Micros
	loans     []*heldLoan
	end       time.Time // the end of the loans' use, with a margin for clocks that differ
	perSecond float64   // the rate at which units were restored
	at        time.Time // when perSecond was computed
}

// holds contains what an agent holds, by the keys of the counters. Counters of one source occupy at
// most half of it.
type holds struct {
	sources *sources.Counts

	mu    sync.Mutex
	byKey map[string]*hold
	swept time.Time
}

// holds.of returns the hold for a question's counter under the same limit and shares, or nil if
// there is none.
func (s *holds) of(q *Question) *hold {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.byKey[string(q.Key)]
	if h == nil || h.question.Limit != q.Limit || h.question.Shares != q.Shares {
		return nil
	}
	return h
}

// holds.add adds a loan to a hold, and reports whether there was room for it. If the limit or the
// shares have changed, it also returns the hold under the old ones, whose units cannot be used any
// more.
func (s *holds) add(q *Question, window counter.Micros, peer *Peer, l Loan, most int64, now time.Time) (old *hold, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweepLocked(now)
	h := s.byKey[string(q.Key)]
	if h != nil && (h.question.Limit != q.Limit || h.question.Shares != q.Shares) {
		delete(s.byKey, string(q.Key))
		h.source.Leave()
		old, h = h, nil
	}
	if h == nil {
		from, ok := s.sources.Enter(q.Source, holdsMax)
		if !ok || len(s.byKey) >= holdsMax {
			from.Leave()
			return old, false
		}
		h = &hold{question: *q, source: from, window: window, at: now}
		if s.byKey == nil {
			s.byKey = make(map[string]*hold)
		}
		s.byKey[string(q.Key)] = h
	}
	var sum int64
	for _, each := range h.loans {
		if each.loan.Receipt == l.Receipt {
			sum += each.left()
		}
	}
	if sum+l.Units+l.Later > most || len(h.loans) >= heldMax && (l.Later == 0 || len(h.loans) >= 2*heldMax) {
		return old, false
	}
	h.loans = append(h.loans, &heldLoan{peer: peer, loan: l})
	h.end = now.Add(time.Duration(2*window) * time.Microsecond)
	return old, true
}

// holds.sweepLocked removes units that are no longer usable, and counters for which nothing has
// been held for some time.
func (s *holds) sweepLocked(now time.Time) {
	if now.Sub(s.swept) < sweepEvery {
		return
	}
	s.swept = now
	for key, h := range s.byKey {
		if now.After(h.end) || len(h.loans) == 0 && now.Sub(h.at) > emptyTime {
			delete(s.byKey, key)
			h.source.Leave()
		}
	}
}

// holds.remove takes usable units of one window, which receipt names, out of a hold. It drops each
// loan that is empty then.
func (s *holds) remove(h *hold, receipt, at counter.Micros, most int64) (units int64, from []portion) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.loans = slices.DeleteFunc(h.loans, func(each *heldLoan) bool {
		if each.loan.Receipt == receipt && units < most {
			now, later := each.usable(at)
			now = min(now, most-units)
			later = min(later, most-units-now)
			each.loan.Units -= now
			each.taken += later
			units += now + later
			if now+later > 0 {
				from = append(from, portion{each, now, later})
			}
		}
		return each.left() <= 0
	})
	return units, from
}

// holds.putBack returns units to the loans from which they were taken, because the counter could
// not take them back. So each of these loans can still be returned to its lender.
func (s *holds) putBack(h *hold, units int64, from []portion) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range slices.Backward(from) {
		later := min(units, p.later)
		now := min(units-later, p.now)
		p.of.taken -= later
		p.of.loan.Units += now
		if units -= now + later; now+later > 0 && !slices.Contains(h.loans, p.of) {
			h.loans = append(h.loans, p.of)
		}
	}
}

// holds.drop forgets the loans of windows before a receipt, and returns how many units they had.
func (s *holds) drop(h *hold, before counter.Micros) (units int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.loans = slices.DeleteFunc(h.loans, func(each *heldLoan) bool {
		if each.loan.Receipt >= before {
			return false
		}
		units += each.left()
		return true
	})
	return units
}

// holds.receipts returns the receipts of the windows for which a hold has units.
func (s *holds) receipts(h *hold) (all []counter.Micros) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, each := range h.loans {
		if !slices.Contains(all, each.loan.Receipt) {
			all = append(all, each.loan.Receipt)
		}
	}
	return all
}

// holds.sum returns how many units of a window a hold has, how many of them are usable at a reading
// of the clock, and how many units a second were restored.
func (s *holds) sum(h *hold, receipt, at counter.Micros, now time.Time) (left, usable int64, perSecond float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, each := range h.loans {
		if each.loan.Receipt == receipt {
			n, later := each.usable(at)
			left, usable = left+each.left(), usable+n+later
		}
	}
	return left, usable, h.rateLocked(now)
}

// holds.note adds restored units to the rate at which the hold's units are restored.
func (s *holds) note(h *hold, units int64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.perSecond = h.rateLocked(now) + float64(units)/rateSpan.Seconds()
	h.at = now
}

// rateSpan is the time after which restored units have lost most of their weight in the rate.
const rateSpan = 5 * time.Second

func (h *hold) rateLocked(now time.Time) float64 {
	return h.perSecond * math.Exp(-max(0, now.Sub(h.at).Seconds())/rateSpan.Seconds())
}

// holds.empty removes all loans of a hold, and returns them.
func (s *holds) empty(h *hold) []*heldLoan {
	s.mu.Lock()
	defer s.mu.Unlock()
	loans := h.loans
	h.loans = nil
	return loans
}

// holds.all returns, for the metrics, for how many counters the agent holds units, and how many.
func (s *holds) all() (counters int, units int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.byKey {
		for _, each := range h.loans {
			units += each.left()
		}
	}
	return len(s.byKey), units
}

// stock is what a region has left of a counter after the agent has restored what it holds.
type stock struct {
	restored, usable, left int64
	lasts                  bool // there is no need to ask other regions
}

// Agent.restoreHeld restores what the agent holds for a question's counter, except units that are
// not usable yet or that the counter cannot take back. While requests wait, it does so in parts:
// see restoreParts. It does not wait until further units become usable, because other regions may
// have some now.
func (a *Agent) restoreHeld(ctx context.Context, q *Question, r *round) (s stock) {
	h := a.holds.of(q)
	if h == nil {
		return s
	}
	for begun, progress := time.Now(), time.Now(); ; {
		part, now := a.restoreOnce(ctx, q, h, &s), time.Now()
		if part > 0 {
			progress = now
			s.restored += part
			r.restored.Add(part)
			a.publish(ctx, &regionstore.Answer{Key: q.Key, Units: part})
		}
		if s.usable == 0 || r.restored.Load() >= r.need.Load() || now.Sub(progress) > a.idleMax || now.Sub(begun) > a.holdMax {
			return s
		}
		time.Sleep(partPause)
	}
}

// Agent.restoreOnce tries once to restore what the agent holds: as many of the usable units as the
// counter can take back. It returns how many it has restored.
func (a *Agent) restoreOnce(ctx context.Context, q *Question, h *hold, s *stock) (units int64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
	defer cancel()
	own := a.o.Policy()
	part, err := partOf(own.Here, own.Namespace, q)
	if err != nil || q.Shares != own.Here.Shares {
		return 0
	}
	h.restoring.Lock()
	defer h.restoring.Unlock()
	look, err := take(ctx, a.o.Store, counter.Check{Key: q.Key, Limit: &part, Op: counter.OpLook})
	if err != nil {
		return 0
	}
	start := look.At + look.Reset - part.Window()
	for _, receipt := range a.holds.receipts(h) {
		if receipt > start {
			continue // this region's clock is behind
		}
		n, from := a.holds.remove(h, receipt, look.At, part.Count()-look.Remaining)
		if n == 0 {
			continue
		}
		refunded, err := take(ctx, a.o.Store, counter.Check{Key: q.Key, Limit: &part, Op: counter.OpRefund, Cost: n, Receipt: receipt})
		if err != nil {
			a.counts.lost.Add(uint64(n))
			return units
		}
		a.tally(q, receipt, -refunded.Granted)
		a.holds.putBack(h, n-refunded.Granted, from)
		units += refunded.Granted
	}
	a.counts.lost.Add(uint64(a.holds.drop(h, start)))
	now := time.Now()
	a.holds.note(h, units, now)
	var perSecond float64
	s.left, s.usable, perSecond = a.holds.sum(h, start, look.At, now)
	ahead := min(lowTime, time.Duration(look.Reset)*time.Microsecond)
	s.lasts = s.left > 0 && float64(s.left) >= perSecond*ahead.Seconds()
	return units
}

// Agent.lendHeld adds units that this agent holds to a loan.
func (a *Agent) lendHeld(ctx context.Context, part *counter.Limit, q *Question, l Loan) Loan {
	h := a.holds.of(q)
	if h == nil {
		return l
	}
	look, err := take(ctx, a.o.Store, counter.Check{Key: q.Key, Limit: part, Op: counter.OpLook})
	receipt := look.At + look.Reset - part.Window()
	if err != nil || l.Units+l.Later > 0 && l.Receipt != receipt {
		return l
	}
	_, usable, perSecond := a.holds.sum(h, receipt, look.At, time.Now())
	if !q.Short {
		usable -= int64(min(perSecond*float64(look.Reset)/float64(counter.Second), float64(counter.CountMax)))
	}
	if usable <= 0 {
		return l
	}
	need := min(usable, max(0, q.Need-l.Units))
	most := min(need+(usable-need+1)/2, q.Want-l.Units-l.Later)
	if n, _ := a.holds.remove(h, receipt, look.At, most); n > 0 {
		l.Units, l.Receipt, l.At = l.Units+n, receipt, max(l.At, look.At)
	}
	return l
}

// Agent.returnLoan returns a loan that is no longer held to its lender.
func (a *Agent) returnLoan(ctx context.Context, q *Question, held *heldLoan) {
	if units := held.left(); held.peer != nil && units > 0 {
		a.giveBack(ctx, held.peer, q, Loan{ID: held.loan.ID, Units: units, Receipt: held.loan.Receipt})
	}
}

// Agent.returnHeld ends all holds, within returnTime. It returns to the lenders what this region's
// counters cannot take back.
func (a *Agent) returnHeld(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), returnTime)
	defer cancel()
	a.holds.mu.Lock()
	all := a.holds.byKey
	a.holds.byKey = nil
	a.holds.mu.Unlock()
	places := make(chan struct{}, returnsMost)
	var returning sync.WaitGroup
	for _, h := range all {
		places <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		returning.Go(func() {
			defer func() { <-places }()
			a.restoreOnce(ctx, &h.question, h, new(stock))
			for _, each := range a.holds.empty(h) {
				a.returnLoan(ctx, &h.question, each)
			}
		})
	}
	returning.Wait()
}
