// SPDX-License-Identifier: Apache-2.0

package counter

import (
	"cmp"
	"slices"
)

// Bounds of a penalty.
const (
	// MultipliersMax is the greatest number of multipliers of a penalty. Every call to the store
	// includes all of them.
	MultipliersMax = 64
	// MultiplierMax is the greatest multiplier. Applied to a wait of one second, it gives eleven
	// days.
	MultiplierMax int64 = 1_000_000
	// PenaltyMax is the longest time to remember a violation, and the longest penalty.
	PenaltyMax = FillMax
)

// Longest returns the longest duration of the penalty: Max, or Window if Max is 0.
func (p *Penalty) Longest() Micros {
	if p.Max == 0 {
		return p.Window
	}
	return p.Max
}

// Flaw describes the first number that is out of bounds, or returns "".
func (p *Penalty) Flaw() string {
	switch {
	case p.Window < 1 || p.Window > PenaltyMax:
		return "the window is out of bounds"
	case p.Max < 0 || p.Max > PenaltyMax:
		return "the longest penalty is out of bounds"
	case p.Threshold < 1 || p.Threshold > ViolationsMax:
		return "the threshold is out of bounds"
	case len(p.Multipliers) < 1 || len(p.Multipliers) > MultipliersMax:
		return "there are too few or too many multipliers"
	}
	for _, m := range p.Multipliers {
		if m < 1 || m > MultiplierMax {
			return "a multiplier is out of bounds"
		}
	}
	return ""
}

// applyPenalty sets Wait and Denied of the result if the penalty is in force. applyPenalty does not
// read the violations. After the clock went back or the policy was edited, a penalty can be longer
// than allowed; applyPenalty then shortens it. A penalty that is over is deleted by the next write,
// so that it does not return if the clock goes back.
func (p *Penalty) applyPenalty(s *Slot, r *Result, now Micros) {
	if s.State.At <= now {
		s.State.At = 0
	}
	if latest := now + p.Longest(); s.State.At > latest {
		s.State.At, s.Write = latest, true
	}
	r.Wait = max(0, s.State.At-now)
	r.Denied = r.Wait > 0
}

// ageViolations advances the violations to the instant now and drops the expired ones. If a
// violation is more than a window ahead because of a wrong clock, ageViolations moves all future
// violations to now and merges equal ones.
func (p *Penalty) ageViolations(s *Slot, now Micros) {
	if last := len(s.Violations) - 1; last >= 0 && s.Violations[last].At > now+p.Window {
		for i := range s.Violations {
			if v := &s.Violations[i]; v.At > now {
				v.At, v.Until = now, now+(v.Until-v.At)
			}
		}
		slices.SortFunc(s.Violations, compareViolations)
		s.Violations = slices.Compact(s.Violations)
		s.Write = true
	}
	over := 0
	for over < len(s.Violations) && s.Violations[over].At <= now-p.Window {
		over++
	}
	s.Violations = s.Violations[over:] // do not move the elements: stored data must not change unless Write is set
}

// compareViolations orders violations the way every store keeps them.
func compareViolations(a, b Violation) int {
	return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Until, b.Until), cmp.Compare(a.ID, b.ID))
}

// recordViolation records the violation and reports whether it did. recordViolation does not record
// a violation that is already remembered and whose wait is not over.
func (p *Penalty) recordViolation(s *Slot, v Violation) bool {
	for i := len(s.Violations) - 1; i >= 0; i-- {
		if old := &s.Violations[i]; old.ID == v.ID && old.Until > v.At {
			return false
		}
	}
	at, _ := slices.BinarySearchFunc(s.Violations, v, compareViolations)
	s.Violations = slices.Insert(s.Violations, at, v)
	return true
}

// imposePenalty starts a penalty after n violations. The argument wait is the longest wait of the
// denying limits.
func (p *Penalty) imposePenalty(s *Slot, r *Result, wait Micros, n int64) {
	step := min(n-p.Threshold, int64(len(p.Multipliers)-1))
	r.Wait = min(Micros(mulDiv(int64(wait), p.Multipliers[step], 1)), p.Longest())
	r.Denied = true
	s.State.At = r.At + r.Wait
}

// isViolation reports whether a denial by the check is a violation for the penalty check whose
// number, counted from 1, is guard.
func (c *Check) isViolation(r *Result, guard int) bool {
	return c.Guard == guard && r.Denied && !c.Shadow && (c.Op == OpTake || c.Op == OpUpTo) && r.Wait != Never
}

// completePenalty completes the penalty check whose number, counted from 1, is guard. The argument
// admitted reports whether the call is admitted; the argument recording, whether it is denied by
// something other than a penalty.
func completePenalty(now Micros, guard int, checks []Check, slots []Slot, results []Result, admitted, recording bool) {
	c, s, r := &checks[guard-1], &slots[guard-1], &results[guard-1]
	p := c.Penalty
	if c.Op == OpTake && admitted {
		return // an admitted request only reads the penalty
	}
	p.ageViolations(s, now)
	if c.Op == OpReset {
		*r = Result{At: now, Granted: int64(len(s.Violations))}
		*s = Slot{Write: true}
		return
	}
	longest, added := Micros(0), false
	if c.Op == OpTake && recording && !r.Denied {
		for i := range checks {
			if slots[i].Shared || !checks[i].isViolation(&results[i], guard) {
				continue
			}
			wait := results[i].Wait
			longest = max(longest, wait)
			if p.recordViolation(s, Violation{At: now, Until: now + wait, ID: checks[i].Violation}) {
				added, s.Write = true, true
			}
		}
	}
	s.Violations = s.Violations[max(0, len(s.Violations)-ViolationsMax):]
	r.Violations = int64(len(s.Violations))
	if added && r.Violations >= p.Threshold {
		p.imposePenalty(s, r, longest, r.Violations)
	}
}

// Fresh returns the instant from which the client's record equals an empty one, so that a store may
// delete it.
func (p *Penalty) Fresh(s *Slot) Micros {
	fresh := s.State.At
	if last := len(s.Violations) - 1; last >= 0 {
		fresh = max(fresh, s.Violations[last].At+p.Window)
	}
	return fresh
}

// Penalty makes a client that keeps exceeding its limits wait longer each time.
type Penalty struct {
	Window    Micros // how long a violation is remembered
	Threshold int64  // the number of violations at which penalties begin
	// factors of the wait, one per violation from Threshold on; the last one repeats
	Multipliers []int64
	Max         Micros // the longest penalty; 0 means Window
}
