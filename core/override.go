// SPDX-License-Identifier: Apache-2.0

package core

import (
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
)

// Bounds of one client's own limits: they come from key files, claims and databases, and stay in memory with the client.
const (
	OverridesMax      = 64 // rules that one client has limits of its own for
	OverrideLimitsMax = 8  // limits of one of them: each is a check at every request
)

// everyRule stands, in place of a rule's name, for every rule whose per holds the client.
const everyRule = "*"

// Overrides are limits of one client's own, by the name of the rule they stand in for; "*" is every rule whose per holds
// the client and that is not named. They are safe for concurrent use, and what they say never changes. A nil *Overrides
// holds none.
//
// The texts that limits are shown by are made when they are first needed for a rule, and kept for up to 64 rules: under
// more rules than that, a "*", or limits of rules with shards, cost a few allocations at some requests.
type Overrides struct {
	sets  map[string]LimitSet
	named map[string]*limitSet
	every *LimitSet // of "*"; nil if there is none
	// known remembers every, and what is for rules with shards, made ready for rules, by the name of the rule. Names and nothing else: a client must not
	// keep a policy in memory that is no longer in force.
	known [overrideSlots]atomic.Pointer[namedSet]
}

// overrideSlots is for how many rules the limits of "*" are remembered. Each takes a few hundred bytes.
const (
	overrideSlots = 64
	overrideTries = 8 // slots in which a rule's may be
)

// namedSet is a set of limits made ready for the rule of that name, which says so of its shards.
type namedSet struct {
	rule string
	how  splitting
	set  limitSet
}

// NewOverrides returns the overrides; without any it returns nil. The error names the rule whose limits no rule could
// have, or says that there are too many. It shares no memory with the map.
func NewOverrides(byRule map[string]LimitSet) (*Overrides, error) {
	if len(byRule) == 0 {
		return nil, nil
	}
	if len(byRule) > OverridesMax {
		return nil, errors.New("limits for " + strconv.Itoa(len(byRule)) + " rules are too many: a client may have its own for at most " +
			strconv.Itoa(OverridesMax) + `; write "*" for all that are alike`)
	}
	o := &Overrides{sets: make(map[string]LimitSet, len(byRule)), named: make(map[string]*limitSet, len(byRule))}
	var wrong []error
	for _, rule := range sortedKeys(byRule) {
		set := byRule[rule]
		if err := checkOverride(rule, set); err != nil {
			wrong = append(wrong, err)
			continue
		}
		set.Limits = slices.Clone(set.Limits)
		o.sets[rule] = set
		if rule == everyRule {
			o.every = &set
			continue
		}
		ready := compileSet(rule, set)
		o.named[rule] = &ready
	}
	if len(wrong) > 0 {
		return nil, errors.Join(wrong...)
	}
	return o, nil
}

// Rules returns the names of the rules that there are limits for, sorted.
func (o *Overrides) Rules() []string {
	if o == nil {
		return nil
	}
	return sortedKeys(o.sets)
}

// Of returns the limits in place of those of the rule of that name, or of "*". The limits belong to the Overrides.
func (o *Overrides) Of(rule string) (set LimitSet, ok bool) {
	if o == nil {
		return LimitSet{}, false
	}
	set, ok = o.sets[rule]
	return set, ok
}

// checkOverride says what is wrong with a client's limits for a rule.
func checkOverride(rule string, set LimitSet) error {
	if rule != everyRule && !isName(rule) {
		return errors.New(Quoted(rule) + ` is not the name of a rule: write one, or "*" for every rule that counts the client`)
	}
	at := "limits for rule " + Quoted(rule) + ": "
	if n := len(set.Limits); n > OverrideLimitsMax {
		return errors.New(at + strconv.Itoa(n) + " are more than " + strconv.Itoa(OverrideLimitsMax))
	}
	if place, why, remedy := flawOfSet(set); why != "" {
		return errors.New(at + place + why + "; " + remedy)
	}
	return nil
}

// flawOfSet says what is wrong with limits that stand in for a rule's, and of which of them; "" if nothing is.
func flawOfSet(set LimitSet) (place, why, remedy string) {
	switch {
	case set.Unlimited && len(set.Limits) > 0:
		return "", "unlimited does not go with limits", "leave out one of them"
	case !set.Unlimited && len(set.Limits) == 0:
		return "", "a limit is missing", "write COUNT/WINDOW, for example 100/1m, or unlimited"
	}
	for i := range set.Limits {
		if set.Limits[i].algorithm == 0 {
			return "limit[" + strconv.Itoa(i) + "] ", "is not a limit", "write COUNT/WINDOW, for example 100/1m"
		}
		if j := sameCounter(set.Limits, i); j >= 0 {
			return "limit[" + strconv.Itoa(i) + "], " + set.Limits[i].String() + ", ", sharedCounter(j), "keep the lower one"
		}
	}
	return "", "", ""
}

// sameCounter returns the first of the limits that would share its counter with the i-th, which is after it; -1 if none
// would.
func sameCounter(limits []Limit, i int) int {
	tail := keyTail(&limits[i])
	for j := range i {
		if limits[j].algorithm != 0 && keyTail(&limits[j]) == tail {
			return j
		}
	}
	return -1
}

func sharedCounter(j int) string {
	return "has the window and algorithm of limit[" + strconv.Itoa(j) + "]: they would share one counter"
}

// of returns the limits in place of the rule's, or nil; holdsClient says whether "*" is for it.
func (o *Overrides) of(r *rule, holdsClient bool) *limitSet {
	switch {
	case r.spread != nil:
		return r.spread.own(o, r, holdsClient)
	case o.named[r.name] != nil:
		return o.named[r.name]
	case o.every == nil || !holdsClient:
		return nil
	}
	return o.forRule(r, splitting{}, o.every)
}

// forRule returns limits of the client's own made ready for a rule.
func (o *Overrides) forRule(r *rule, how splitting, own *LimitSet) *limitSet {
	free := r.slot % overrideSlots
	for try := uint32(0); try < overrideTries; try++ {
		slot := (r.slot + try) % overrideSlots
		switch known := o.known[slot].Load(); {
		case known == nil:
			free, try = slot, overrideTries // what is remembered stands before the first empty slot
		case known.rule == r.name && known.how == how:
			return &known.set
		}
	}
	made := &namedSet{r.name, how, compileSet(r.name, *own)}
	if r.spread != nil {
		r.spread.over(how, made.set.limits)
	}
	o.known[free].Store(made)
	return &made.set
}

// overrideSlot returns where the rule's limits are looked for first. The high bits of the hash are the well mixed ones.
func overrideSlot(rule string) uint32 { return uint32(fnv(rule) >> 32) }
