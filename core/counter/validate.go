// SPDX-License-Identifier: Apache-2.0

//go:build !penstock_filter

package counter

import (
	"bytes"
	"fmt"
)

// ValidateChecks returns an error unless the checks are valid: at most [ChecksMax] checks, as many
// results as checks, distinct non-empty keys, and numbers within the bounds that [Check] states.
// Every store calls it first, so all stores reject the same calls. The error wraps [ErrInvalid] and
// names the check. Validating valid checks does not allocate.
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
		// This loop is bounded by ChecksMax. A few comparisons of lengths are cheaper than a table.
		for j := range i {
			if bytes.Equal(checks[i].Key, checks[j].Key) {
				return fmt.Errorf("%w: checks %d and %d of %q have the same key", ErrInvalid, j, i, checks[i].scope())
			}
		}
	}
	return nil
}

// Check.scope returns the part of the key that does not name a client. Errors contain only this
// part, because they end up in logs.
func (c *Check) scope() []byte {
	if c.ScopeLen < 0 || c.ScopeLen > len(c.Key) {
		return nil
	}
	return c.Key[:c.ScopeLen]
}

// Check.flaw describes the first error in the check, or returns "".
func (c *Check) flaw() string {
	switch {
	case len(c.Key) == 0:
		return "the key is empty"
	case c.ScopeLen < 0 || c.ScopeLen > len(c.Key):
		return "the scope is longer than the key"
	case c.Penalty != nil:
		return c.penaltyFlaw()
	case c.Limit == nil || c.Limit.algorithm == 0:
		return "the limit is missing"
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
	case c.Op == OpRefund && int64(c.Receipt) > exactMax:
		return "the receipt is out of bounds"
	case c.Age < 0 || c.Age > c.Limit.window:
		return "the age is out of bounds: it must be between 1 and the limit's window, or 0 for none"
	case c.Age > 0 && c.Op != OpUpTo && c.Op != OpRefund:
		return "only an OpUpTo and a refund may have an age"
	case c.Age > 0 && c.Limit.algorithm == SlidingLog:
		return "a sliding log cannot be leased: the age must be 0"
	case (c.Bounds != nil) != (c.Limit.calendar != 0):
		return "a calendar window needs boundaries, and no other window may have them"
	case c.Bounds != nil && !c.Bounds.areAscending():
		return "the boundaries are not in ascending order"
	}
	return ""
}

// penaltyFlaw describes the first error in a check of a penalty, or returns "".
func (c *Check) penaltyFlaw() string {
	switch {
	case c.Limit != nil || c.Bounds != nil || c.Cost != 0 || c.Guard != 0 || c.Age != 0:
		return "a penalty has no limit, no boundaries, no cost, no guard and no age"
	case c.Op != OpTake && c.Op != OpLook && c.Op != OpReset:
		return "the operation is not valid for a penalty"
	}
	return c.Penalty.Flaw()
}

// guardFlaw describes the first error in Guard and Violation, or returns "".
func (c *Check) guardFlaw(checks []Check) string {
	switch {
	case c.Guard < 0 || c.Guard > len(checks) || checks[c.Guard-1].Penalty == nil:
		return "the guard is not a penalty check of this call"
	case c.Violation < 1 || c.Violation > ViolationMax:
		return "the violation is out of bounds"
	}
	return ""
}
