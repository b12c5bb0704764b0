// SPDX-License-Identifier: Apache-2.0

package core

import (
	"cmp"

	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// specificity measures how narrow a rule's match is. Of two rules of a group, the one with
// the greater value wins.
type specificity uint8

const (
	tierSpecific     specificity = 1 << iota // the match names a tier
	endpointSpecific                         // the match names a path, a method or a host
)

func specificityOf(when *match.Condition, source *policy.Rule) (s specificity) {
	if when.EndpointSpecific() {
		s |= endpointSpecific
	}
	if len(source.Match.Tier) > 0 {
		s |= tierSpecific
	}
	return s
}

// String returns the specificity as explanations print it.
func (s specificity) String() string {
	return [...]string{"general", "tier-specific", "endpoint-specific", "endpoint- and tier-specific"}[s]
}

// groupOrder holds the properties that decide between the rules of a group.
type groupOrder struct {
	priority int
	specific specificity
}

// compareGroupOrder returns a negative number if a wins against b, whatever their order is.
func compareGroupOrder(a, b groupOrder) int {
	return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(b.specific, a.specific))
}

// Ruleset.rank orders the rules for competition in their groups: by lower priority, then by higher
// specificity, then by their order in the policy.
func (rs *Ruleset) rank() {
	order := slim.Order(len(rs.rules), func(i, j int) int { return compareGroupOrder(rs.precedences[i], rs.precedences[j]) })
	for rank, i := range order {
		rs.rules[i].rank = int32(rank)
	}
}

// Plan.chooseWinners reduces p.matched to the rules in play: the rules outside any group, and the
// winner of each group. A rule that is skipped because the request lacks a dimension does not
// compete.
//
// Servers may read a path in more than one way, and may use any value of a header that has several.
// A rule that matches only some of these readings or values does not exclude other rules: it is in
// play together with the winner for the others. So a client cannot avoid a rule by spelling the
// path differently, or by a second value.
//
// Finally, the method removes the rules that other rules in play replace. No other rule takes their
// place.
func (p *Plan) chooseWinners(rs *Ruleset) {
	if len(p.winners) < rs.groups {
		p.winners = append(p.winners, make([]int32, rs.groups-len(p.winners))...)
	}
	competing := p.matched[:0]
	for _, index := range p.matched {
		r := &rs.rules[index]
		if r.missing == policy.MissingSkip && !p.hasDimensions(r) {
			continue
		}
		competing = append(competing, index)
		if r.group < 0 || !r.when.Certain(&p.who.Request) {
			continue
		}
		if best := p.winners[r.group]; best == 0 || r.rank < rs.rules[best-1].rank {
			p.winners[r.group] = index + 1
		}
	}
	p.matched = competing[:0]
	for _, index := range competing {
		if r := &rs.rules[index]; r.group < 0 || p.winners[r.group] == 0 || r.rank <= rs.rules[p.winners[r.group]-1].rank {
			p.matched = append(p.matched, index)
		}
	}
	for _, index := range p.matched {
		if group := rs.rules[index].group; group >= 0 {
			p.winners[group] = 0
		}
	}
	if rs.replaces {
		p.replace(rs)
	}
}
