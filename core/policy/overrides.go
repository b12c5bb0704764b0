// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/slim"
)

// Bounds of a client's own limits. The limits come from key files, claims and databases, and stay
// in memory with the client.
const (
	OverridesMax      = 64 // rules for which a client may have limits of its own
	OverrideLimitsMax = 8  // limits for one of these rules; each request checks them all
)

// EveryRule, in place of a rule's name, means every rule that counts by the client, that is, every
// rule with the client among its dimensions.
const EveryRule = "*"

// Unlimited, in place of limits, means that a client has no limit.
const Unlimited = "unlimited"

// Overrides are one client's own limits, by the name of the rule whose limits they replace. The
// name "*" means every other rule that counts by the client. Overrides are immutable and safe for
// concurrent use. A nil *Overrides is empty.
type Overrides struct {
	sets map[string]LimitSet
	// derived is the result of the first call of Derived. It is nil before that.
	derived atomic.Pointer[any]
	// grants is a *Grants or nil. The field is declared as any, so that the filter does not link
	// the type information of Grants.
	grants any
}

// Derived returns a value computed from the overrides and cached with them. Derived calls derive
// once, or a few times if the first calls are concurrent. From then on it returns the same value to
// every caller and ignores derive. Package core uses it to keep the compiled limits.
func (o *Overrides) Derived(derive func(*Overrides) any) any {
	if made := o.derived.Load(); made != nil {
		return *made
	}
	made := derive(o)
	o.derived.CompareAndSwap(nil, &made)
	return *o.derived.Load()
}

// NewOverrides returns the overrides, or nil if the map is empty. The error reports that there are
// too many, or names the rule whose limits are not valid. The result shares no memory with the map.
func NewOverrides(byRule map[string]LimitSet) (*Overrides, error) {
	if len(byRule) == 0 {
		return nil, nil
	}
	if len(byRule) > OverridesMax {
		return nil, slim.NewError("limits for " + strconv.Itoa(len(byRule)) + " rules are too many: a client may have its own for at most " +
			strconv.Itoa(OverridesMax) + `; write "*" for all that are alike`)
	}
	o := &Overrides{sets: make(map[string]LimitSet, len(byRule))}
	var wrong []error
	for _, rule := range slim.SortedKeys(byRule) {
		set := byRule[rule]
		if err := checkOverride(rule, set); err != nil {
			wrong = append(wrong, err)
			continue
		}
		set.Limits = slices.Clone(set.Limits)
		o.sets[rule] = set
	}
	if len(wrong) > 0 {
		return nil, errors.Join(wrong...)
	}
	return o, nil
}

// Rules returns the sorted names of the rules that the overrides have limits for.
func (o *Overrides) Rules() []string {
	if o == nil {
		return nil
	}
	return slim.SortedKeys(o.sets)
}

// Of returns the limits listed under the given name, which is a rule's name or "*". The limits
// belong to the Overrides.
func (o *Overrides) Of(rule string) (set LimitSet, ok bool) {
	if o == nil {
		return LimitSet{}, false
	}
	set, ok = o.sets[rule]
	return set, ok
}

// checkOverride returns an error if a client's limits for a rule are not valid.
func checkOverride(rule string, set LimitSet) error {
	if rule != EveryRule && !isName(rule) {
		return slim.NewError(slim.Quote(rule) + ` is not the name of a rule: write one, or "*" for every rule that counts the client`)
	}
	at := "limits for rule " + slim.Quote(rule) + ": "
	if n := len(set.Limits); n > OverrideLimitsMax {
		return slim.NewError(at + strconv.Itoa(n) + " are more than " + strconv.Itoa(OverrideLimitsMax))
	}
	if place, why, remedy := flawOfSet(set); why != "" {
		return slim.NewError(at + place + why + "; " + remedy)
	}
	return nil
}

// flawOfSet describes the first error in a set of limits: its location, the reason and a remedy.
// The strings are empty if there is no error.
func flawOfSet(set LimitSet) (place, why, remedy string) {
	switch {
	case set.Unlimited && len(set.Limits) > 0:
		return "", "unlimited does not go with limits", "leave out one of them"
	case !set.Unlimited && len(set.Limits) == 0:
		return "", "a limit is missing", "write COUNT/WINDOW, for example 100/1m, or unlimited"
	}
	for i := range set.Limits {
		if set.Limits[i].Algorithm() == 0 {
			return "limit[" + strconv.Itoa(i) + "] ", "is not a limit", "write COUNT/WINDOW, for example 100/1m"
		}
		if j := counter.SameCounter(set.Limits, i); j >= 0 {
			return "limit[" + strconv.Itoa(i) + "], " + set.Limits[i].String() + ", ", SharedCounter(j), "keep the lower one"
		}
	}
	return "", "", ""
}
