// SPDX-License-Identifier: Apache-2.0

package core

import (
	"cmp"
	"slices"
)

// Bounds of a penalty.
const (
	// MultipliersMax is how many multipliers a penalty may have: they travel with every call.
	MultipliersMax = 64
	// MultiplierMax is the greatest multiplier: with it a second becomes eleven days.
	MultiplierMax int64 = 1_000_000
	// PenaltyMax is the longest that a violation may be remembered and a penalty may last.
	PenaltyMax = FillMax
)

// Longest returns how long a penalty lasts at most: Max, or Window where that is 0.
func (p *Penalty) Longest() Micros {
	if p.Max == 0 {
		return p.Window
	}
	return p.Max
}

// flaw says what is wrong with the numbers, "" if nothing is.
func (p *Penalty) flaw() string {
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

// enforce says whether the penalty is in force. It does not look at the violations. A penalty that lasts longer than any
// may (the clock went back, or the policy was edited) is cut to what may be. One that is over is forgotten with the next
// write, so that it does not come back with the clock.
func (p *Penalty) enforce(s *Slot, r *Result, now Micros) {
	if s.State.At <= now {
		s.State.At = 0
	}
	if latest := now + p.Longest(); s.State.At > latest {
		s.State.At, s.Write = latest, true
	}
	r.Wait = max(0, s.State.At-now)
	r.Refused = r.Wait > 0
}

// remember brings the violations to the instant now: it drops those that are over, and takes those to now that a clock
// has left more than a window ahead, with all others of the future. Two that are the same then are one.
func (p *Penalty) remember(s *Slot, now Micros) {
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
	s.Violations = s.Violations[over:] // nothing is moved: what is not written must stay as it is kept
}

// compareViolations is the order in which they are remembered, the same in every store.
func compareViolations(a, b Violation) int {
	return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Until, b.Until), cmp.Compare(a.ID, b.ID))
}

// violate remembers a violation, unless the same one is remembered and its wait is not over, and reports whether it did.
func (p *Penalty) violate(s *Slot, v Violation) bool {
	for i := len(s.Violations) - 1; i >= 0; i-- {
		if old := &s.Violations[i]; old.ID == v.ID && old.Until > v.At {
			return false
		}
	}
	at, _ := slices.BinarySearchFunc(s.Violations, v, compareViolations)
	s.Violations = slices.Insert(s.Violations, at, v)
	return true
}

// impose starts a penalty after n violations, the longest of the refusing limits' waits being wait.
func (p *Penalty) impose(s *Slot, r *Result, wait Micros, n int64) {
	step := min(n-p.Threshold, int64(len(p.Multipliers)-1))
	r.Wait = min(Micros(mulDiv(int64(wait), p.Multipliers[step], 1)), p.Longest())
	r.Refused = true
	s.State.At = r.At + r.Wait
}

// violates reports whether a refusal by the check counts in the record of check guard, counted from 1.
func (c *Check) violates(r *Result, guard int) bool {
	return c.Guard == guard && r.Refused && !c.Shadow && (c.Op == OpTake || c.Op == OpUpTo) && r.Wait != Never
}

// punish settles the penalty that is check number guard, counted from 1, of a call that is admitted or not; recording says
// that it is refused, and by no penalty.
func punish(now Micros, guard int, checks []Check, slots []Slot, results []Result, admitted, recording bool) {
	c, s, r := &checks[guard-1], &slots[guard-1], &results[guard-1]
	p := c.Penalty
	if c.Op == OpTake && admitted {
		return // it costs a client that does no wrong nothing but a look whether there is a penalty
	}
	p.remember(s, now)
	if c.Op == OpReset {
		*r = Result{At: now, Granted: int64(len(s.Violations))}
		*s = Slot{Write: true}
		return
	}
	longest, added := Micros(0), false
	if c.Op == OpTake && recording && !r.Refused {
		for i := range checks {
			if slots[i].Shared || !checks[i].violates(&results[i], guard) {
				continue
			}
			wait := results[i].Wait
			longest = max(longest, wait)
			if p.violate(s, Violation{At: now, Until: now + wait, ID: checks[i].Violation}) {
				added, s.Write = true, true
			}
		}
	}
	s.Violations = s.Violations[max(0, len(s.Violations)-ViolationsMax):]
	r.Violations = int64(len(s.Violations))
	if added && r.Violations >= p.Threshold {
		p.impose(s, r, longest, r.Violations)
	}
}

// Fresh returns the instant from which the record of a client is as good as none.
func (p *Penalty) Fresh(s *Slot) Micros {
	fresh := s.State.At
	if last := len(s.Violations) - 1; last >= 0 {
		fresh = max(fresh, s.Violations[last].At+p.Window)
	}
	return fresh
}
