// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/regionstore"
)

const (
	// aheadMax is the longest window in which a region lends all that its own requests will
	// probably not use. If the window is longer, a borrower holds at most 1/heldParts of the limit,
	// because what an agent holds cannot be used if the agent is killed.
	aheadMax  = counter.Minute
	heldParts = 20
	// A region keeps 1/sparedParts of its part for requests that it does not expect.
	sparedParts = 64
	// An agent asks other regions as soon as its region's units will not last for soonMin or for
	// 1/soonParts of the window, whichever is longer.
	soonMin   = 2 * counter.Second
	soonParts = 20
)

// tally is how many units of a counter a region has lent, minus the units that it has borrowed and
// restored. A tally has two such numbers: lent is for the window that begins at receipt, and before
// is for the previous window.
type tally struct {
	receipt, since counter.Micros // since is the first window of the tally
	lent, before   int64
	at             time.Time // the time of the last loan
}

// tally.roll returns the tally for a later window.
func (t tally) roll(receipt, window counter.Micros) tally {
	switch {
	case t.receipt == receipt:
	case t.receipt != 0 && receipt == t.receipt+window:
		t.receipt, t.before, t.lent = receipt, t.lent, 0
	default:
		t = tally{receipt: receipt, since: receipt, at: t.at}
	}
	return t
}

// tally.own estimates how many units the region's own requests use in a window. The argument look
// is the state of the counter.
func (t tally) own(part *counter.Limit, look *counter.Result) float64 {
	window := part.Window()
	elapsed := window - look.Reset
	t = t.roll(look.At-elapsed, window)
	weighted, scale := 0.0, float64(window)/float64(max(1, elapsed))
	if part.Algorithm() == counter.SlidingWindow {
		weighted = float64(t.before) * float64(look.Reset) / float64(window)
		if t.since < t.receipt {
			scale = 1 // the region's count is that of a whole window
		}
	}
	own := max(0, float64(part.Count()-look.Remaining-t.lent)-weighted)
	if own < 2 {
		own = 0 // a difference of one unit can come from rounding
	}
	return own * scale
}

// tally.spare estimates how many units the region's own requests will not use. The result all
// counts the units of the present window that the region has not lent yet. The result now counts
// only those that are available at present. The result idle is true if the region does not use the
// counter at all. If, in addition, the borrower denies requests, the region keeps a single unit.
func (t tally) spare(part *counter.Limit, look *counter.Result, short bool) (all, now int64, idle bool) {
	own := t.own(part, look)
	keep := max(1, part.Count()/sparedParts)
	if idle = own == 0; idle && short {
		keep = 1
	}
	lent := t.roll(look.At-(part.Window()-look.Reset), part.Window()).lent
	all = part.Count() - lent - likely(own) - keep
	return all, look.Remaining - keep - likely(own*float64(soonSpan(part, look))/float64(part.Window())), idle
}

// soonSpan returns for how long a region keeps units for its own requests.
func soonSpan(part *counter.Limit, look *counter.Result) counter.Micros {
	return min(look.Reset, max(soonMin, part.Window()/soonParts))
}

// likely returns a number of units that is rarely exceeded if the expected number is the given one.
// It returns at most counter.CountMax, because no limit has more units.
func likely(units float64) int64 {
	return int64(min(units+2*math.Sqrt(units), float64(counter.CountMax)))
}

// Agent.demand returns how many more units this region needs soon, and how many more it needs until
// the window ends.
func (a *Agent) demand(ctx context.Context, q *Question, s *stock) (soon, later int64, err error) {
	part, look, err := a.lookAt(ctx, q)
	if err != nil {
		return 0, 0, err
	}
	window, has := float64(part.Window()), look.Remaining+s.usable
	use := a.tallies.of(a.hash(q.Key)).own(&part, &look)
	soon = likely(use*float64(soonSpan(&part, &look))/window) + 1 - has
	later = likely(use*float64(look.Reset)/window) + part.Count()/sparedParts - look.Remaining - s.left
	return soon, later, nil
}

// lookAt returns this region's part of a question's limit, and the state of its counter. The limit
// must not have a calendar window.
func (a *Agent) lookAt(ctx context.Context, q *Question) (part counter.Limit, look counter.Result, err error) {
	own := a.o.Policy()
	if part, err = partOf(own.Here, own.Namespace, q); err != nil {
		return part, look, err
	}
	look, err = take(ctx, a.o.Store, counter.Check{Key: q.Key, Limit: &part, Op: counter.OpLook})
	return part, look, err
}

// tallies holds the tallies of recently used counters, by the hashes of their keys.
type tallies []struct {
	mu  sync.Mutex
	key uint64
	tally
}

// tallies.of returns the tally of a counter.
func (s tallies) of(key uint64) tally {
	p := &s[key%uint64(len(s))]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.key != key {
		return tally{}
	}
	return p.tally
}

// tallies.add adds units that were lent, or subtracts those that were restored.
func (s tallies) add(key uint64, receipt, window counter.Micros, units int64, now time.Time) {
	p := &s[key%uint64(len(s))]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.key != key {
		p.key, p.tally = key, tally{}
	}
	if units > 0 {
		p.at = now
	}
	if receipt == p.receipt-window {
		p.before += units
		return
	}
	p.tally = p.roll(receipt, window)
	p.lent += units
}

// lendAhead charges this region's counter with units of the present window that the region will
// probably not use, and returns them as a loan. It lends units that are available now. If the
// region does not use the counter and the window is a short sliding window, it also lends the units
// that become available until the window ends. In a long window, the region would deny requests for
// too long if the borrower's agent was killed.
func lendAhead(ctx context.Context, store counter.Store, part *counter.Limit, q *Question, lent tally, look *counter.Result) (Loan, error) {
	var l Loan
	spare, now, idle := lent.spare(part, look, q.Short)
	want := min(q.Want, part.Capacity())
	if up := min(want, max(q.Need, min(spare, now)), look.Remaining); up > 0 {
		r, err := take(ctx, store, counter.Check{Key: q.Key, Limit: part, Op: counter.OpUpTo, Cost: min(max(1, q.Need), up), Min: 1, Max: up,
			ShareMille: 1000})
		if err != nil {
			return Loan{}, err
		}
		l = Loan{Units: r.Granted, Receipt: r.Receipt, At: r.At}
	}
	later := min(want, spare) - l.Units
	if part.Algorithm() != counter.SlidingWindow || !idle || later < 1 || part.Window() > aheadMax || 2*part.Count() > int64(part.Window()) {
		return l, nil
	}
	return lendLater(ctx, store, part, q, l, later)
}

// lendLater adds to a loan units that become available later in the present window, while the
// weight of the previous window decreases. These units are charged at once, beyond what is
// available, so that no request of this region gets them.
//
// Before they are charged, a look at the counter shows how fast units become available: if n of
// them become available in a span, at most n + 1 do in any other span of that length. A single look
// must show this, because a charge between two looks would make the speed seem lower. The look is
// made under a larger limit, so it also shows how many units the counter lacks. After the charge,
// another look shows the instant at which all charged units, and one more, will be available.
// Refunds can only advance that instant, and charges between the two looks have delayed it. Until
// that instant, the borrower uses the units no faster than at that speed. So it uses no unit before
// a request of this region could have used it.
func lendLater(ctx context.Context, store counter.Store, part *counter.Limit, q *Question, l Loan, later int64) (Loan, error) {
	lack := 2 * part.Count() // more than the counter can lack
	larger, err := part.Resized(part.Count()+lack, 0)
	if err != nil {
		return l, nil
	}
	first, err := take(ctx, store, counter.Check{Key: q.Key, Limit: &larger, Op: counter.OpLook, Cost: lack + later})
	if err != nil || first.Remaining < 1 || first.Wait == 0 || first.Wait >= first.Reset {
		return l, nil // the window does not have so many units
	}
	units := lack + later - first.Remaining // that become available in the wait
	charged, err := take(ctx, store, counter.Check{Key: q.Key, Limit: part, Op: counter.OpForce, Cost: later})
	if err != nil {
		return l, nil // they are lost until the window ends
	}
	next, err := take(ctx, store, counter.Check{Key: q.Key, Limit: part, Op: counter.OpLook, Cost: 1})
	end := charged.Receipt + part.Window()
	same := (l.Units == 0 || charged.Receipt == l.Receipt) && first.At+first.Reset == end && next.At+next.Reset == end
	if err != nil || charged.Granted != later || !same || next.Wait >= next.Reset {
		_, _ = take(ctx, store, counter.Check{Key: q.Key, Limit: part, Op: counter.OpRefund, Cost: charged.Granted, Receipt: charged.Receipt})
		return l, nil
	}
	l.Receipt, l.Later, l.Full = charged.Receipt, later, next.At+next.Wait
	l.From = l.Full - counter.Micros(float64(later)*float64(first.Wait)/float64(units+1))
	return l, nil
}

// take sends one check to the store and returns its result.
func take(ctx context.Context, store counter.Store, c counter.Check) (counter.Result, error) {
	checks, results := [1]counter.Check{c}, [1]counter.Result{}
	err := store.Take(ctx, checks[:], results[:])
	return results[0], err
}

// Loan.usable returns how many of the units that become usable later are usable at a reading of a
// clock.
func (l *Loan) usable(at counter.Micros) int64 {
	switch {
	case at >= l.Full:
		return l.Later
	case at <= l.From:
		return 0
	}
	return min(l.Later, int64(float64(l.Later)*(float64(at-l.From)/float64(l.Full-l.From))))
}

// mayHold returns how many units of a limit the agent may hold, or 0 if it may hold none.
func mayHold(whole *counter.Limit, q *Question) (most int64) {
	switch {
	case q.Of != "" || whole.Calendar() != 0:
		return 0
	case whole.Window() <= aheadMax:
		return whole.Count()
	}
	return whole.Count() / heldParts
}

// Agent.ahead returns the question to send to other regions. The question also asks for the units
// that the region will need until the window ends, up to the number that the agent may hold. It
// returns nil if the region has enough for now.
func (a *Agent) ahead(ctx context.Context, q *Question, s *stock, most int64) *regionstore.Question {
	sent := *q
	if most == 0 {
		return &sent
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	switch soon, later, err := a.demand(ctx, q, s); {
	case err != nil:
		return &sent
	case !q.Short && soon <= 0:
		return nil
	case q.Short:
		sent.Want = max(q.Want, min(later, q.Want+most))
	default:
		sent.Want = max(1, min(later, q.Want+most))
	}
	if q.Short {
		sent.Recall = a.recalls.ids(a.hash(q.Key))
	}
	sent.Ahead, sent.Want = true, min(sent.Want, counter.CountMax)
	return &sent
}
