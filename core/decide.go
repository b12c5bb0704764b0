// SPDX-License-Identifier: Apache-2.0

package core

// State is what a store keeps for one counter of any algorithm but the sliding log. The zero State is no counter.
//
//	fixed_window    At: start of the window   Used: units charged in it   Aux: 0
//	sliding_window  At: start of the window   Used: units charged in it   Aux: units of the window before
//	token_bucket    At: last refill           Used: parts missing          Aux: parts per token (the unit)
//
// Leased is the instant until which units may be out on lease, 0 if none are. Dips are those of a token bucket whose
// charges may come back, the oldest first, zero ones behind them.
type State struct {
	At     Micros
	Used   int64
	Aux    int64
	Leased Micros
	Dips   [DipsMax]Dip
}

// Mark is what a sliding log keeps for an instant at which units were charged.
type Mark struct {
	At    Micros
	Units int64
}

// Violation is what is remembered of a refusal for the client's penalty.
type Violation struct {
	At    Micros
	Until Micros // when the refusing limit's own wait is over: until then its refusals are the same violation
	ID    int64  // of the counter: [Check.Violation]
}

// Slot is one counter in the hands of [Decide]: what the store held, then what it is to hold.
type Slot struct {
	State State  // every algorithm but the sliding log; for that one Used is the sum of Marks and At its newest instant
	Marks []Mark // sliding log: oldest first, instants distinct
	// Violations are those of a penalty, oldest first; State.At is then the instant until which it is in force, 0 for
	// none, and the rest of State is not used.
	Violations []Violation
	// Shared says that other clients share the counter: a refusal by it is nobody's violation.
	Shared bool
	Write  bool // out: the counter changed and must be stored; after OpReset, that nothing may be kept of it

	now  Micros // effective instant: the store's clock, or the counter's own if that is a little ahead
	ends Micros // calendar windows: when the one that State is of ends
	// beyond says that more is missing from a bucket than this limit could ever have taken: another limit of the same
	// counter did. State is then brought to what this one could.
	beyond bool
}

// Decide answers checks[i] about slots[i] in results[i] at the instant now: it is [Store.Take] without the storing. All
// slices have the same length, and [Stale] has nothing to say. It changes the slots in place and sets Write on those a
// store must keep. It does not allocate, but for a sliding log or a record of violations that grows. The caller holds
// whatever lock the slots need.
func Decide(now Micros, checks []Check, slots []Slot, results []Result) {
	admitted, penalties, penalized := true, false, false
	for i := range checks {
		c, s, r := &checks[i], &slots[i], &results[i]
		*r = Result{At: now}
		if c.Penalty != nil {
			penalties = true
			s.Write = false
			c.Penalty.enforce(s, r, now)
		} else {
			s.Write = c.roll(s, now)
			evaluate(c, s, r, now)
		}
		if c.refuses(r) {
			admitted = false
			penalized = penalized || c.Penalty != nil
		}
	}
	for i := range checks {
		if checks[i].Penalty == nil {
			finish(&checks[i], &slots[i], &results[i], now, admitted)
		}
	}
	if !penalties {
		return
	}
	for i := range checks {
		if checks[i].Penalty != nil {
			punish(now, i+1, checks, slots, results, admitted, !admitted && !penalized)
		}
	}
}

// refuses reports whether the check's answer refuses the call.
func (c *Check) refuses(r *Result) bool {
	return r.Refused && !c.Shadow && (c.Op == OpTake || c.Op == OpUpTo)
}

// finish settles an evaluated check and describes what it leaves.
func finish(c *Check, s *Slot, r *Result, now Micros, admitted bool) {
	settle(c, s, r, now, admitted)
	remaining, reset, next := c.Limit.describe(s)
	r.Remaining = max(0, remaining)
	r.Reset = sinceNow(reset, now)
	r.Next = sinceNow(next, now)
	r.LeasedIn = sinceNow(s.State.Leased, now)
	if c.Op == OpReset {
		*s = Slot{Write: true}
	}
}

// evaluate says whether the check would pass; for OpUpTo it leaves in Granted what the check would get.
func evaluate(c *Check, s *Slot, r *Result, now Micros) {
	var need int64
	switch c.Op {
	case OpGiveBack, OpForce, OpReset:
		return
	case OpUpTo:
		need = c.Min
		r.Granted = c.upTo(c.Limit.room(s), c.Limit.leaseRoom(c.Age))
	default:
		need = max(1, c.Cost)
	}
	r.Wait = sinceNow(c.Limit.passesAt(s, need), now)
	r.Refused = r.Wait != 0 && (c.Cost > 0 || c.Op == OpUpTo)
}

// upTo returns how much of the available units an OpUpTo check gets. Beyond Cost it gets of the first leasable ones.
func (c *Check) upTo(available, leasable int64) int64 {
	if available < c.Min {
		return 0
	}
	granted := min(available, c.Cost)
	if spare := min(available, leasable) - granted; spare > 0 {
		granted += min(c.Max-granted, mulDiv(spare, c.ShareMille, 1000), spare)
	}
	return granted
}

// settle charges, records or gives back, now that it is known whether the call is admitted.
func settle(c *Check, s *Slot, r *Result, now Micros, admitted bool) {
	amount := int64(0)
	switch c.Op {
	case OpLook:
		return
	case OpGiveBack:
		if s.beyond { // what is given back would be all that the other limit took
			return
		}
		r.Granted = c.giveBack(s)
		s.Write = s.Write || r.Granted > 0
		return
	case OpReset: // what is described then is a counter never used
		r.Granted = c.Limit.burst - c.Limit.room(s)
		*s = Slot{}
		c.roll(s, now)
		return
	case OpForce:
		if s.beyond { // there is no room for more debt, and the other limit's is not to be forgotten
			break
		}
		amount = min(c.Cost, max(0, c.Limit.debtRoom(s)))
	case OpTake:
		if admitted && !r.Refused {
			amount = c.Cost
		}
	case OpUpTo:
		if admitted {
			amount = r.Granted
		}
	}
	r.Granted = amount
	if amount > 0 {
		r.Receipt = c.charge(s, amount)
		s.Write = true
	}
}

// sinceNow turns an instant into a span from now, 0 if it has passed; Never stays Never.
func sinceNow(at, now Micros) Micros {
	if at == Never {
		return Never
	}
	return max(0, at-now)
}

// roll brings the slot to the instant now and reports whether that must be stored even if nothing is charged.
//
// A clock that went back is absorbed: a counter up to one window ahead goes on at its own instant. One further ahead
// would lock its clients out for as long as the clock was wrong, so it is moved to now with what it has counted.
//
// Units that are out on lease stay out when a window ends: whoever has them does not know yet.
func (c *Check) roll(s *Slot, now Micros) (store bool) {
	s.now, s.beyond = now, false
	l, leased := c.Limit, s.State.Leased
	switch {
	case l.calendar != 0:
		store = l.rollCalendar(s, c.Bounds)
	case l.algorithm == SlidingLog:
		store = l.rollLog(s)
	case l.algorithm == TokenBucket:
		store = l.rollBucket(s)
	default:
		store = l.rollWindow(s)
	}
	if leased != 0 {
		s.State.Leased = l.leased(leased, s.now)
	}
	return store
}

// windowEnds returns the end of the window that the slot's state is of.
func (l *Limit) windowEnds(s *Slot) Micros {
	if l.calendar != 0 {
		return s.ends
	}
	return s.State.At + l.window
}

// room returns the units available, negative in debt.
func (l *Limit) room(s *Slot) int64 {
	if l.algorithm == TokenBucket {
		return floorDiv(l.burst*l.unit-s.State.Used, l.unit)
	}
	return l.count - l.used(s)
}

// used returns the units that count against the limit at the slot's instant.
func (l *Limit) used(s *Slot) int64 {
	if l.algorithm == SlidingWindow {
		return l.weighted(s) + s.State.Used
	}
	return s.State.Used
}

// debtRoom returns how many units may still be forced onto the counter.
func (l *Limit) debtRoom(s *Slot) int64 { return l.room(s) + l.count }

// passesAt returns when cost would pass: the slot's instant or before if it would now, Never if it never can.
func (l *Limit) passesAt(s *Slot, cost int64) Micros {
	if cost > l.burst {
		return Never
	}
	switch l.algorithm {
	case TokenBucket:
		return l.bucketHas(s, cost)
	case SlidingLog:
		return l.logHas(s, cost)
	case SlidingWindow:
		return l.slidingHas(s, cost)
	default:
		if s.State.Used+cost <= l.count {
			return 0
		}
		return l.windowEnds(s)
	}
}

// describe returns the units left (negative in debt) and the instants of Reset and Next.
func (l *Limit) describe(s *Slot) (remaining int64, reset, next Micros) {
	remaining = l.room(s)
	switch l.algorithm {
	case TokenBucket:
		return remaining, l.bucketFull(s), l.bucketNext(s, remaining)
	case SlidingLog:
		reset = 0
		if len(s.Marks) > 0 {
			reset = s.Marks[0].At + l.window
		}
	default:
		reset = l.windowEnds(s)
	}
	return remaining, reset, reset
}

// charge adds n units and returns the receipt.
func (c *Check) charge(s *Slot, n int64) Micros {
	l, beyond := c.Limit, int64(0)
	if c.Age > 0 && n > c.Cost {
		beyond = l.lease(s, c.Age)
	}
	switch l.algorithm {
	case TokenBucket:
		return l.drain(s, n, beyond, c.Refundable)
	case SlidingLog:
		return l.mark(s, n)
	default:
		s.State.Used += n
		return s.State.At
	}
}

// giveBack returns up to Cost units of the charge named by Receipt and reports how many.
func (c *Check) giveBack(s *Slot) int64 {
	if c.Receipt <= 0 {
		return 0
	}
	switch l := c.Limit; l.algorithm {
	case TokenBucket:
		return l.refund(s, c)
	case SlidingLog:
		return l.unmark(s, c.Receipt, c.Cost)
	default:
		return l.uncount(s, c.Receipt, c.Cost)
	}
}

// Fresh returns the instant from which the counter behaves like one never used, so that a store may forget it. A full
// bucket written before the clock went back is not yet such a one: what is taken from it flows back only from then on. Of
// a calendar window only [Decide] knows when it ends, so the slot must be as that left it. While units are out on lease,
// none is fresh.
func (l *Limit) Fresh(s *Slot) (at Micros) {
	switch l.algorithm {
	case TokenBucket:
		at = max(s.State.At, l.bucketFull(s))
	case FixedWindow:
		at = l.windowEnds(s)
	case SlidingLog:
		at = s.State.At + l.window
	default:
		at = s.State.At + 2*l.window
	}
	return max(at, s.State.Leased)
}
