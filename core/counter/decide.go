// SPDX-License-Identifier: Apache-2.0

package counter

// State is what a store keeps for one counter. A sliding log also keeps [Mark]s. The zero State is
// the state of a counter that does not exist.
//
//	fixed_window    At: window's start  Used: units charged in it  Aux: 0, see also rollCalendar
//	sliding_window  At: window's start  Used: units charged in it  Aux: units of the window before
//	token_bucket    At: last refill     Used: parts missing        Aux: parts per token (the unit)
//
// Leased is the end of the last lease, 0 if no units are leased. Dips are used only by a token
// bucket with refundable charges. Dips are sorted from oldest to newest, and unused entries at the
// end are zero.
type State struct {
	At     Micros
	Used   int64
	Aux    int64
	Leased Micros
	Dips   [DipsMax]Dip
}

// Mark records, in a sliding log, an instant and the units charged at it.
type Mark struct {
	At    Micros
	Units int64
}

// Violation records a denial that counts towards a penalty of the client.
type Violation struct {
	At Micros
	// end of the denying limit's wait; further denials by that limit until then are the same
	// violation
	Until Micros
	ID    int64 // the counter, as in [Check.Violation]
}

// Slot is the working state of one counter for [Decide]. On entry it holds the stored state, and on
// return the state to store.
type Slot struct {
	State State  // for a sliding log, Used is the sum of Marks and At is the newest instant
	Marks []Mark // sliding log: oldest first, with distinct instants
	// Violations are the violations remembered for a penalty, oldest first. For a penalty, State.At
	// is the instant at which it ends, 0 if it is not in force, and the rest of State is unused.
	Violations []Violation
	// Shared reports whether several clients share the counter. The counter's denials are not
	// violations, because no single client caused them.
	Shared bool
	Write  bool // output: the counter changed and must be stored; after OpReset it must be deleted

	// effective instant: the store's clock, or the counter's own instant if that is slightly later
	now  Micros
	ends Micros // calendar windows: when the window of State ends
	// calendar windows: an instant at which that window has certainly ended, if ends is an estimate
	over Micros
	// beyondLimit reports whether the bucket lacked more parts than this limit can take, because
	// the same counter was also charged under another limit. State has then been reduced to the
	// most that this limit can take.
	beyondLimit bool
}

// For every i, Decide decides checks[i] at the instant now by the state in slots[i], and stores the
// answer in results[i]. It does what [Store.Take] does, but reads and writes no storage. The slices
// must have the same length, and [Stale] must have returned nil for the checks. Decide modifies the
// slots. If a slot's Write is true afterwards, the store must save that slot. Decide allocates only
// if a sliding log or a list of violations grows. If slots are shared, the caller must lock them.
func Decide(now Micros, checks []Check, slots []Slot, results []Result) {
	admitted, penalties, penalized := true, false, false
	for i := range checks {
		c, s, r := &checks[i], &slots[i], &results[i]
		*r = Result{At: now}
		if c.Penalty != nil {
			penalties = true
			s.Write = false
			c.Penalty.applyPenalty(s, r, now)
		} else {
			s.Write = c.roll(s, now)
			evaluate(c, s, r, now)
		}
		if c.denyCall(r) {
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
			completePenalty(now, i+1, checks, slots, results, admitted, !admitted && !penalized)
		}
	}
}

// denyCall reports whether the result of the check denies the call.
func (c *Check) denyCall(r *Result) bool {
	return r.Denied && !c.Shadow && (c.Op == OpTake || c.Op == OpUpTo)
}

// finish performs an evaluated check and fills in its result from the new state.
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

// evaluate sets Denied and Wait of the result. For OpUpTo it sets Granted to the units
// that the check would charge.
func evaluate(c *Check, s *Slot, r *Result, now Micros) {
	var need int64
	switch c.Op {
	case OpRefund, OpForce, OpReset:
		return
	case OpUpTo:
		need = c.Min
		r.Granted = c.grantUpTo(c.Limit.room(s), c.Limit.leaseRoom(c.Age))
	default:
		need = max(1, c.Cost)
	}
	r.Wait = sinceNow(c.Limit.passesAt(s, need), now)
	r.Denied = r.Wait != 0 && (c.Cost > 0 || c.Op == OpUpTo)
}

// grantUpTo returns how many of the available units an OpUpTo check charges. Units beyond Cost must
// be leasable.
func (c *Check) grantUpTo(available, leasable int64) int64 {
	if available < c.Min {
		return 0
	}
	granted := min(available, c.Cost)
	if spare := min(available, leasable) - granted; spare > 0 {
		granted += min(c.Max-granted, mulDiv(spare, c.ShareMille, 1000), spare)
	}
	return granted
}

// settle charges, records or refunds units. The argument admitted reports whether
// the call is admitted.
func settle(c *Check, s *Slot, r *Result, now Micros, admitted bool) {
	amount := int64(0)
	switch c.Op {
	case OpLook:
		return
	case OpRefund:
		if s.beyondLimit { // the refund would restore units that were charged under another limit
			return
		}
		r.Granted = c.refund(s)
		s.Write = s.Write || r.Granted > 0
		return
	case OpReset: // the result describes an unused counter
		r.Granted = c.Limit.burst - c.Limit.room(s)
		*s = Slot{}
		c.roll(s, now)
		return
	case OpForce:
		if s.beyondLimit { // the debt is this limit's maximum; another limit's greater debt must be kept
			break
		}
		amount = min(c.Cost, max(0, c.Limit.debtRoom(s)))
	case OpTake:
		if admitted && !r.Denied {
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

// sinceNow returns the span from now until an instant, 0 if the instant has passed. For Never it
// returns Never.
func sinceNow(at, now Micros) Micros {
	if at == Never {
		return Never
	}
	return max(0, at-now)
}

// Check.roll advances the slot to the instant now. It reports whether the slot must be
// stored even if nothing is charged.
//
// The clock can go back. A counter that is then at most one window ahead continues at its own
// instant. A counter further ahead would deny its clients until the clock reaches that instant, so
// it moves to now and keeps its usage.
//
// Leased units remain leased when a window ends, because the node that holds them might not know
// yet that the window has ended.
func (c *Check) roll(s *Slot, now Micros) (store bool) {
	s.now, s.beyondLimit = now, false
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
		s.State.Leased = l.leasedUntil(leased, s.now)
	}
	return store
}

// windowEnds returns the end of the window that the slot's state belongs to.
func (l *Limit) windowEnds(s *Slot) Micros {
	if l.calendar != 0 {
		return s.ends
	}
	return s.State.At + l.window
}

// Limit.room returns the available units. The result is negative if the counter is in debt.
func (l *Limit) room(s *Slot) int64 {
	if l.algorithm == TokenBucket {
		return floorDiv(l.burst*l.unit-s.State.Used, l.unit)
	}
	return l.count - l.usedUnits(s)
}

// usedUnits returns the units that count against the limit at the slot's instant.
func (l *Limit) usedUnits(s *Slot) int64 {
	if l.algorithm == SlidingWindow {
		return l.weightedPrevious(s) + s.State.Used
	}
	return s.State.Used
}

// debtRoom returns how many more units a forced charge can record.
func (l *Limit) debtRoom(s *Slot) int64 { return l.room(s) + l.count }

// passesAt returns the instant at which cost would pass. If cost would pass now, the result is the
// slot's instant or an earlier one. If cost can never pass, the result is Never.
func (l *Limit) passesAt(s *Slot, cost int64) Micros {
	if cost > l.burst {
		return Never
	}
	switch l.algorithm {
	case TokenBucket:
		return l.bucketHas(s, cost)
	case SlidingLog:
		return l.logPassesAt(s, cost)
	case SlidingWindow:
		return l.slidingPassesAt(s, cost)
	default:
		if s.State.Used+cost <= l.count {
			return 0
		}
		return l.windowEnds(s)
	}
}

// Limit.describe returns the available units (negative in debt) and the instants for Reset and
// Next.
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

// Check.charge adds n units and returns the receipt.
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

// Check.refund refunds up to Cost units of the charge that Receipt names. It returns the number of
// units refunded.
func (c *Check) refund(s *Slot) int64 {
	if c.Receipt <= 0 {
		return 0
	}
	switch l := c.Limit; l.algorithm {
	case TokenBucket:
		return l.refund(s, c)
	case SlidingLog:
		return l.unmark(s, c.Receipt, c.Cost)
	default:
		return l.refundFixed(s, c.Receipt, c.Cost)
	}
}

// Fresh returns the instant from which the counter behaves like an unused one, so that a store can
// delete it. A full bucket that was stored before the clock went back is not fresh yet, because it
// refills only from the instant of its state. The slot must be as [Decide] left it, because only
// Decide computes the end of a calendar window. A counter with leased units is not fresh.
func (l *Limit) Fresh(s *Slot) (at Micros) {
	switch l.algorithm {
	case TokenBucket:
		at = max(s.State.At, l.bucketFull(s))
	case FixedWindow:
		at = max(l.windowEnds(s), s.over)
	case SlidingLog:
		at = s.State.At + l.window
	default:
		at = s.State.At + 2*l.window
	}
	return max(at, s.State.Leased)
}
