// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"math/bits"
	"reflect"
	"slices"

	"github.com/penstock/penstock/core"
)

// adviseRulesMax is how many rules are compared with each other. The time grows with the square.
const adviseRulesMax = 1000

// compareRules warns of rules that never win, and of limits that others make unreachable.
func (a *adviser) compareRules() {
	for i := range a.policy.Rules[:min(len(a.policy.Rules), adviseRulesMax)] {
		rule := &a.policy.Rules[i]
		if rule.Disabled {
			continue
		}
		if winner := a.winnerOver(i); winner >= 0 {
			a.problem(index("rules", i)+".name", rule.Name, "can never win: "+a.policy.Rules[winner].Name+
				" matches everything it matches, and goes first", a.neverWinsRemedy(i, winner))
			continue
		}
		a.unreachable(i)
	}
}

func (a *adviser) neverWinsRemedy(i, winner int) string {
	if a.policy.Rules[winner].Action == core.ActionBlock {
		return "leave it out, or narrow what the other blocks"
	}
	if a.policy.Rules[i].Priority > a.policy.Rules[winner].Priority {
		return "give it a lower priority, or leave it out"
	}
	return "write it before the other, or give it a lower priority, or leave it out"
}

// winnerOver returns the rule that wins whenever this one matches, or -1.
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

// goesFirst reports whether the first rule wins against the second where both match.
func (a *adviser) goesFirst(first, second int) bool {
	one, two := &a.policy.Rules[first], &a.policy.Rules[second]
	if one.Action == core.ActionBlock { // whatever its group; of two that block, neither loses
		return two.Action != core.ActionBlock
	}
	compete := a.policy.Enforce == core.EnforceFirst || one.Group != "" && one.Group == two.Group
	switch {
	case !compete || two.Action == core.ActionBlock:
		return false
	case one.Missing == core.MissingSkip: // it may not compete
		return false
	case one.Action == core.ActionAllow && len(one.Match.Path) > 0: // of a path that can be read in two ways it excuses none
		return false
	}
	rank := cmp.Or(cmp.Compare(one.Priority, two.Priority), -cmp.Compare(specific(&one.Match), specific(&two.Match)),
		cmp.Compare(first, second))
	return rank < 0
}

// specific is 2 for a match that names an endpoint, and 1 more if it names a tier: the greater wins.
func specific(m *core.Match) (s int) {
	if len(m.Path)+len(m.Method)+len(m.Host) > 0 {
		s += 2
	}
	if len(m.Tier) > 0 {
		s++
	}
	return s
}

// unreachable warns of the limits of a rule that are never met because another one, of the same rule or of one that counts
// the same requests and more, allows less.
func (a *adviser) unreachable(i int) {
	rule := &a.policy.Rules[i]
	if rule.Action != core.ActionReject && rule.Action != core.ActionThrottle {
		return
	}
	at, d := index("rules", i), &a.doc.Rules[i]
	parents := a.parents(i)
	tiers := tiersOf(d, d)
	for _, p := range parents[1:] {
		tiers = append(tiers, tiersOf(&a.doc.Rules[p], d)...)
	}
	a.eachLimit(at, d, rule, func(place, text string, limit *core.Limit) {
		why, all := "", true
		for _, tier := range tiers {
			if all && slices.ContainsFunc(limitsFor(rule, tier), func(l core.Limit) bool { return l == *limit }) {
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

// below returns the limit of the parents that holds a client of that tier below the limit, or "".
func (a *adviser) below(parents []int, tier string, limit *core.Limit) string {
	for _, p := range parents {
		parent := &a.policy.Rules[p]
		for _, l := range limitsFor(parent, tier) {
			if l.Algorithm() != 0 && l != *limit && holdsBelow(&l, limit) {
				return fmt.Sprintf("%s of %s", l, parent.Name)
			}
		}
	}
	return ""
}

// limitsFor returns the limits of a rule for a client of that tier.
func limitsFor(r *core.Rule, tier string) []core.Limit {
	if set, ok := r.Tiers[tier]; ok {
		return set.Limits
	}
	return r.Limits
}

// parents returns the rule itself and those that count at least every request it counts, at least as much of it, and for
// at least as many clients together.
func (a *adviser) parents(i int) []int {
	child, list := &a.policy.Rules[i], []int{i}
	for j := range a.policy.Rules[:min(len(a.policy.Rules), adviseRulesMax)] {
		parent := &a.policy.Rules[j]
		if j == i || parent.Disabled || parent.Action != core.ActionReject && parent.Action != core.ActionThrottle ||
			parent.Missing != child.Missing || parent.Group != "" || a.replaced[parent.Name] || a.policy.Enforce == core.EnforceFirst ||
			parent.CostAfter != nil || parent.CountIf != nil || parent.RefundOn != nil ||
			child.CostAfter != nil || !covers(&parent.Match, &child.Match) ||
			!reflect.DeepEqual(parent.Cost, child.Cost) || !countsWithin(&a.doc.Rules[j], &a.doc.Rules[i]) {
			continue
		}
		list = append(list, j)
	}
	return list
}

// countsWithin reports whether the child counts apart whatever the parent counts apart.
func countsWithin(parent, child *Rule) bool {
	fine := dimensionsOf(child)
	for _, dimension := range dimensionsOf(parent) {
		if !slices.Contains(fine, dimension) {
			return false
		}
	}
	return true
}

// holdsBelow reports whether what passes the first limit always passes the other, at the edges of windows too.
func holdsBelow(l, other *core.Limit) bool {
	switch {
	case l.Count() == other.Count() && l.Capacity() == other.Capacity() && l.Window() == other.Window():
		return false // neither is below the other
	case other.Algorithm() == core.TokenBucket:
		return atOnce(l) <= other.Capacity() && slower(l, other)
	case l.Algorithm() == core.TokenBucket: // what it holds, and what flows in meanwhile
		high, low := bits.Mul64(uint64(l.Count()), uint64(other.Window()))
		room := other.Count() - l.Capacity()
		if room < 0 || high >= uint64(l.Window()) {
			return false
		}
		flow, rest := bits.Div64(high, low, uint64(l.Window()))
		return flow < uint64(room) || flow == uint64(room) && rest == 0
	case l.Window() < other.Window():
		return false
	case l.Algorithm() == other.Algorithm() || other.Algorithm() == core.FixedWindow:
		if nests(other, l) {
			return l.Count() <= other.Count()
		}
	}
	return atOnce(l) <= other.Count()
}

// atOnce returns how much may pass a limit in no time: what a bucket holds, and of windows the end of one and the begin of
// the next.
func atOnce(l *core.Limit) int64 {
	switch l.Algorithm() {
	case core.TokenBucket, core.SlidingLog:
		return l.Capacity()
	default:
		return 2 * l.Count()
	}
}

// nests reports whether each window of the first limit lies within one of the other. Days begin at a full or half hour in
// nearly every time zone.
func nests(l, other *core.Limit) bool {
	inner, outer := l.Calendar(), other.Calendar()
	switch {
	case inner == 0 && outer == 0:
		return other.Window()%l.Window() == 0
	case inner == 0:
		return core.Hour/2%l.Window() == 0
	case outer == 0:
		return false
	}
	return inner == outer || inner == core.CalendarDay || outer == core.CalendarYear && inner == core.CalendarMonth
}

// slower reports whether the first limit's rate is at most the second one's.
func slower(l, other *core.Limit) bool {
	high, low := bits.Mul64(uint64(l.Count()), uint64(other.Window()))
	otherHigh, otherLow := bits.Mul64(uint64(other.Count()), uint64(l.Window()))
	return high < otherHigh || high == otherHigh && low <= otherLow
}
