// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"cmp"
	"fmt"
	"math/bits"
	"reflect"
	"slices"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile"
)

// adviseRulesMax is the greatest number of rules that are compared with each other. The time of the
// comparison grows with the square of their number.
const adviseRulesMax = 1000

// compareRules warns of rules that never win their group, and of limits that are never reached
// because of other limits.
func (a *adviser) compareRules() {
	for i := range a.policy.Rules[:min(len(a.policy.Rules), adviseRulesMax)] {
		rule := &a.policy.Rules[i]
		if rule.Disabled {
			continue
		}
		if winner := a.winnerOver(i); winner >= 0 {
			a.problem(policyfile.Index("rules", i)+".name", rule.Name, "can never win: "+a.policy.Rules[winner].Name+
				" matches all its requests, and takes precedence", a.neverWinsRemedy(i, winner))
			continue
		}
		a.unreachable(i)
	}
}

func (a *adviser) neverWinsRemedy(i, winner int) string {
	if a.policy.Rules[winner].Action == policy.ActionBlock {
		return "leave it out, or narrow what the other blocks"
	}
	if a.policy.Rules[i].Priority > a.policy.Rules[winner].Priority {
		return "give it a lower priority, or leave it out"
	}
	return "write it before the other, or give it a lower priority, or leave it out"
}

// winnerOver returns another rule that wins whenever rule i matches, or -1.
func (a *adviser) winnerOver(i int) int {
	rules := a.policy.Rules
	for j := range rules[:min(len(rules), adviseRulesMax)] {
		if j == i || rules[j].Disabled || !a.goesFirst(j, i) || !covers(&rules[j].Match, &rules[i].Match) {
			continue
		}
		return j
	}
	return -1
}

// goesFirst reports whether the first rule always wins against the second if both match.
func (a *adviser) goesFirst(first, second int) bool {
	one, two := &a.policy.Rules[first], &a.policy.Rules[second]
	if one.Action == policy.ActionBlock { // a block rule applies regardless of its group, and does not compete with other block rules
		return two.Action != policy.ActionBlock
	}
	compete := a.policy.Enforce == policy.EnforceFirst || one.Group != "" && one.Group == two.Group
	switch {
	case !compete || two.Action == policy.ActionBlock:
		return false
	case one.Missing == policy.MissingSkip: // the rule might not compete
		return false
	// An allow rule does not apply if it matches only some readings of a path.
	case one.Action == policy.ActionAllow && len(one.Match.Path) > 0:
		return false
	}
	rank := cmp.Or(cmp.Compare(one.Priority, two.Priority), -cmp.Compare(specificityOf(&one.Match), specificityOf(&two.Match)),
		cmp.Compare(first, second))
	return rank < 0
}

// specificityOf returns 2 for a match that names an endpoint, plus 1 if it names a tier. The match
// with the greater number wins.
func specificityOf(m *policy.Match) (s int) {
	if len(m.Path)+len(m.Method)+len(m.Host) > 0 {
		s += 2
	}
	if len(m.Tier) > 0 {
		s++
	}
	return s
}

// adviser.unreachable warns of limits of a rule that are never reached because another limit is
// lower. The other limit is of the same rule, or of a rule that counts at least the same requests.
func (a *adviser) unreachable(i int) {
	rule := &a.policy.Rules[i]
	if rule.Action != policy.ActionReject && rule.Action != policy.ActionThrottle {
		return
	}
	at, d := policyfile.Index("rules", i), &a.doc.Rules[i]
	parents := a.parents(i)
	tiers := tiersOf(d, d)
	for _, p := range parents[1:] {
		tiers = append(tiers, tiersOf(&a.doc.Rules[p], d)...)
	}
	a.eachLimit(at, d, rule, func(place, text string, limit *counter.Limit) {
		why, all := "", true
		for _, tier := range tiers {
			if all && slices.ContainsFunc(limitsFor(rule, tier), func(l counter.Limit) bool { return l == *limit }) {
				if below := a.below(parents, tier, limit); below != "" {
					why = below
				} else {
					all = false
				}
			}
		}
		if all && why != "" {
			a.problem(place, text, "is never reached: "+why+" allows less", "lower it, or leave it out")
		}
	})
}

// adviser.below describes a limit of one of the parents that always denies clients of the tier
// earlier than the given limit does. If no limit does so, the result is "".
func (a *adviser) below(parents []int, tier string, limit *counter.Limit) string {
	for _, p := range parents {
		parent := &a.policy.Rules[p]
		for _, l := range limitsFor(parent, tier) {
			if l.Algorithm() != 0 && l != *limit && isImpliedBy(&l, limit) {
				return fmt.Sprintf("%s of %s", l, parent.Name)
			}
		}
	}
	return ""
}

// limitsFor returns the rule's limits for a client of the tier.
func limitsFor(r *policy.Rule, tier string) []counter.Limit {
	if set, ok := r.Tiers[tier]; ok {
		return set.Limits
	}
	return r.Limits
}

// adviser.parents returns the rule itself and the rules that count at least the same requests, with
// at least the same costs, in counters shared by at least the same clients.
func (a *adviser) parents(i int) []int {
	child, list := &a.policy.Rules[i], []int{i}
	for j := range a.policy.Rules[:min(len(a.policy.Rules), adviseRulesMax)] {
		parent := &a.policy.Rules[j]
		if j == i || parent.Disabled || parent.Action != policy.ActionReject && parent.Action != policy.ActionThrottle ||
			parent.Missing != child.Missing || parent.Group != "" || a.replaced[parent.Name] || a.policy.Enforce == policy.EnforceFirst ||
			parent.CostAfter != nil || parent.CountIf != nil || parent.RefundOn != nil ||
			child.CostAfter != nil || !covers(&parent.Match, &child.Match) ||
			!reflect.DeepEqual(parent.Cost, child.Cost) || !countsWithin(&a.doc.Rules[j], &a.doc.Rules[i]) {
			continue
		}
		list = append(list, j)
	}
	return list
}

// countsWithin reports whether the child has all dimensions of the parent.
func countsWithin(parent, child *policyfile.Rule) bool {
	fine := dimensionsOf(child)
	for _, dimension := range dimensionsOf(parent) {
		if !slices.Contains(fine, dimension) {
			return false
		}
	}
	return true
}

// isImpliedBy reports whether the other limit admits all traffic that l admits, even at the edges
// of windows.
func isImpliedBy(l, other *counter.Limit) bool {
	switch {
	case l.Count() == other.Count() && l.Capacity() == other.Capacity() && l.Window() == other.Window():
		return false // neither limit is always lower than the other
	case other.Algorithm() == counter.TokenBucket:
		return instantUnits(l) <= other.Capacity() && hasLowerRate(l, other)
	case l.Algorithm() == counter.TokenBucket: // the units are the capacity of the bucket, and the refill in the meantime
		high, low := bits.Mul64(uint64(l.Count()), uint64(other.Window()))
		room := other.Count() - l.Capacity()
		if room < 0 || high >= uint64(l.Window()) {
			return false
		}
		flow, rest := bits.Div64(high, low, uint64(l.Window()))
		return flow < uint64(room) || flow == uint64(room) && rest == 0
	case l.Window() < other.Window():
		return false
	case l.Algorithm() == other.Algorithm() || other.Algorithm() == counter.FixedWindow:
		if nestsWindows(other, l) {
			return l.Count() <= other.Count()
		}
	}
	return instantUnits(l) <= other.Count()
}

// instantUnits returns the number of units that a limit admits at one instant: a full bucket, or
// the units of the end of one window and the start of the next.
func instantUnits(l *counter.Limit) int64 {
	switch l.Algorithm() {
	case counter.TokenBucket, counter.SlidingLog:
		return l.Capacity()
	default:
		return 2 * l.Count()
	}
}

// nestsWindows reports whether each window of the first limit lies within one window of the other
// limit. Days begin at a full or half hour in nearly every time zone.
func nestsWindows(l, other *counter.Limit) bool {
	inner, outer := l.Calendar(), other.Calendar()
	switch {
	case inner == 0 && outer == 0:
		return other.Window()%l.Window() == 0
	case inner == 0:
		return counter.Hour/2%l.Window() == 0
	case outer == 0:
		return false
	}
	return inner == outer || inner == counter.CalendarDay || outer == counter.CalendarYear && inner == counter.CalendarMonth
}

// hasLowerRate reports whether the rate of l is at most the rate of the other limit.
func hasLowerRate(l, other *counter.Limit) bool {
	high, low := bits.Mul64(uint64(l.Count()), uint64(other.Window()))
	otherHigh, otherLow := bits.Mul64(uint64(other.Count()), uint64(l.Window()))
	return high < otherHigh || high == otherHigh && low <= otherLow
}
