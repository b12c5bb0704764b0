// SPDX-License-Identifier: Apache-2.0

package core

import (
	"sync/atomic"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// ownLimits holds a client's own limits, compiled for rules.
//
// The texts that show a limit in header fields are built when a rule first needs them, and are
// cached for up to 64 rules. With more rules, some requests under "*" or under rules with shards
// allocate.
type ownLimits struct {
	sets  *policy.Overrides
	named map[string]*limitSet
	every *policy.LimitSet // the limits of "*"; nil if there are none
	// known caches compiled limits per rule name: the limits of "*", and the limits of rules with
	// shards or regions. It refers to rules only by name, so that a client does not keep an old
	// policy in memory.
	known [overrideSlots]atomic.Pointer[namedSet]
}

// ownLimitsOf returns the overrides in the form in which rules use them, which is compiled once.
func ownLimitsOf(o *policy.Overrides) *ownLimits { return o.Derived(compileOwnLimits).(*ownLimits) }

func compileOwnLimits(o *policy.Overrides) any {
	own := &ownLimits{sets: o, named: map[string]*limitSet{}}
	for _, rule := range o.Rules() {
		set, _ := o.Of(rule)
		if rule == policy.EveryRule {
			own.every = &set
			continue
		}
		ready := compileSet(rule, set)
		own.named[rule] = &ready
	}
	return own
}

// overrideSlots is the number of rules for which compiled limits are cached. Each takes a few
// hundred bytes.
const (
	overrideSlots = 64
	overrideTries = 8 // the number of slots that can contain a rule's limits
)

// separateLimits returns the client's own limits compiled for a rule that shares no compiled limits
// with other rules of its name, because it has shards or regions.
func (o *ownLimits) separateLimits(r *rule, how shardSpec, holdsClient bool) *limitSet {
	set, named := o.sets.Of(r.name)
	switch {
	case named:
		return o.limitsForRule(r, how, &set)
	case o.every == nil || !holdsClient:
		return nil
	}
	return o.limitsForRule(r, how, o.every)
}

// namedSet is a set of limits that was compiled for rules of one name and divided in one
// way.
type namedSet struct {
	rule string
	how  shardSpec
	set  limitSet
}

// limitsFor returns the client's own limits for the rule, or nil if it has none. The limits of
// "*" apply to the rule only if holdsClient is set.
func (o *ownLimits) limitsFor(r *rule, holdsClient bool) *limitSet {
	if part, ok := o.ownPart(r, holdsClient); ok {
		return part
	}
	switch {
	case r.spread != nil:
		return r.spread.own(o, r, holdsClient)
	case o.named[r.name] != nil:
		return o.named[r.name]
	case o.every == nil || !holdsClient:
		return nil
	}
	return o.limitsForRule(r, shardSpec{}, o.every)
}

// limitsForRule returns the client's own limits compiled for a rule, from the cache if possible.
func (o *ownLimits) limitsForRule(r *rule, how shardSpec, own *policy.LimitSet) *limitSet {
	free := r.slot % overrideSlots
	for try := uint32(0); try < overrideTries; try++ {
		slot := (r.slot + try) % overrideSlots
		switch known := o.known[slot].Load(); {
		case known == nil:
			free, try = slot, overrideTries // no cached set follows the first empty slot
		case known.rule == r.name && known.how == how:
			return &known.set
		}
	}
	made := &namedSet{r.name, how, r.compileOwn(own)}
	if r.spread != nil {
		r.spread.distribute(how, made.set.limits)
	}
	o.known[free].Store(made)
	return &made.set
}

// overrideSlot returns the slot at which the search for the rule begins. The high bits of the hash
// are well mixed.
func overrideSlot(rule string) uint32 { return uint32(slim.FNV(rule) >> 32) }
