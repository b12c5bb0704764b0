// SPDX-License-Identifier: Apache-2.0

package core

import (
	"bytes"
	"fmt"
)

// ValidateChecks says whether a [Store] may be asked these checks: at most [ChecksMax], as many results, keys distinct
// and not empty, numbers within the bounds [Check] states. Every store calls it first, so that what one store refuses
// none accepts. The error wraps [ErrInvalid] and names the check. It does not allocate when all is well.
func ValidateChecks(checks []Check, results []Result) error {
	switch {
	case len(checks) > ChecksMax:
		return fmt.Errorf("%w: %d checks, at most %d go in one call", ErrInvalid, len(checks), ChecksMax)
	case len(results) < len(checks):
		return fmt.Errorf("%w: %d results for %d checks", ErrInvalid, len(results), len(checks))
	}
	for i := range checks {
		why := checks[i].flaw()
		if why == "" && checks[i].Guard != 0 {
			why = checks[i].guardFlaw(checks)
		}
		if why != "" {
			return fmt.Errorf("%w: check %d of %q: %s", ErrInvalid, i, checks[i].scope(), why)
		}
		// ChecksMax bounds this: a few comparisons of lengths are cheaper than any table.
		for j := range i {
			if bytes.Equal(checks[i].Key, checks[j].Key) {
				return fmt.Errorf("%w: checks %d and %d of %q have the same key", ErrInvalid, j, i, checks[i].scope())
			}
		}
	}
	return nil
}

// scope is the part of the key that names no client: errors end in logs.
func (c *Check) scope() []byte {
	if c.ScopeLen < 0 || c.ScopeLen > len(c.Key) {
		return nil
	}
	return c.Key[:c.ScopeLen]
}

// flaw says what is wrong with the check, "" if nothing is.
func (c *Check) flaw() string {
	switch {
	case len(c.Key) == 0:
		return "the key is empty"
	case c.ScopeLen < 0 || c.ScopeLen > len(c.Key):
		return "the scope is longer than the key"
	case c.Penalty != nil:
		return c.penaltyFlaw()
	case c.Limit == nil || c.Limit.algorithm == 0:
		return "there is no limit"
	case c.Op > OpReset:
		return "the operation is unknown"
	case c.Cost < 0 || c.Cost > CountMax+1:
		return "the cost is out of bounds"
	case c.Op == OpUpTo && (c.Min < 1 || c.Min > max(1, c.Cost)):
		return "min is out of bounds: it must be between 1 and the cost"
	case c.Op == OpUpTo && c.Max < c.Cost:
		return "max is out of bounds: it must be at least the cost"
	case c.Op == OpUpTo && (c.ShareMille < 0 || c.ShareMille > 1000):
		return "the share is out of bounds: it must be between 0 and 1000"
	case c.Op == OpGiveBack && int64(c.Receipt) > exactMax:
		return "the receipt is none of ours"
	case c.Age < 0 || c.Age > c.Limit.window:
		return "the age is out of bounds: it must be between 1 and the limit's window, or 0 for none"
	case c.Age > 0 && c.Op != OpUpTo && c.Op != OpGiveBack:
		return "an age goes with what is taken up to n, or given back, and with nothing else"
	case c.Age > 0 && c.Limit.algorithm == SlidingLog:
		return "a sliding log leases nothing: the age must be 0"
	case (c.Bounds != nil) != (c.Limit.calendar != 0):
		return "boundaries go with calendar windows, and with nothing else"
	case c.Bounds != nil && !c.Bounds.ascending():
		return "the boundaries are not each after the one before"
	}
	return ""
}

// penaltyFlaw says what is wrong with a check of a penalty.
func (c *Check) penaltyFlaw() string {
	switch {
	case c.Limit != nil || c.Bounds != nil || c.Cost != 0 || c.Guard != 0 || c.Age != 0:
		return "a penalty has no limit, no boundaries, no cost, no guard and no age"
	case c.Op != OpTake && c.Op != OpLook && c.Op != OpReset:
		return "the operation is none of a penalty"
	}
	return c.Penalty.flaw()
}

// guardFlaw says what is wrong with what the check says of a penalty.
func (c *Check) guardFlaw(checks []Check) string {
	switch {
	case c.Guard < 0 || c.Guard > len(checks) || checks[c.Guard-1].Penalty == nil:
		return "the guard is no penalty of this call"
	case c.Violation < 1 || c.Violation > ViolationMax:
		return "the violation is out of bounds"
	}
	return ""
}
