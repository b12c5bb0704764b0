// SPDX-License-Identifier: Apache-2.0

package core

import "cmp"

// specificity says how special the requests are that a rule's match names. The greater wins.
type specificity uint8

const (
	tierSpecific     specificity = 1 << iota // it names a tier
	endpointSpecific                         // it names a path, a method or a host
)

func specificityOf(when *condition, source *Rule) (s specificity) {
	if when.endpointSpecific() {
		s |= endpointSpecific
	}
	if len(source.Match.Tier) > 0 {
		s |= tierSpecific
	}
	return s
}

// String returns the specificity in the words of docs/policy.md.
func (s specificity) String() string {
	return [...]string{"general", "tier-specific", "endpoint-specific", "endpoint- and tier-specific"}[s]
}

// standing is what decides between rules of a group.
type standing struct {
	priority int
	specific specificity
}

// compareStanding is negative if a wins against b whatever the order in the document.
func compareStanding(a, b standing) int {
	return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(b.specific, a.specific))
}

// rank orders the rules as they compete in their groups: lower priority, then the more specific, then as written.
func (rs *Ruleset) rank() {
	order := inOrder(len(rs.rules), func(i, j int) int { return compareStanding(rs.standings[i], rs.standings[j]) })
	for rank, i := range order {
		rs.rules[i].rank = int32(rank)
	}
}

// compete leaves in p.matched the rules that are in play: those outside any group, and of each group the winner. A rule
// that is skipped for want of a dimension does not compete.
//
// Of a path that servers read in more than one way, a rule that is for some of the readings only wins against none: it is
// in play beside the winner of the others. So no spelling of a path chooses the rule that it is counted by.
//
// Then those are taken out that others in play replace; nothing comes in their place.
func (p *Plan) compete(rs *Ruleset) {
	if len(p.winners) < rs.groups {
		p.winners = append(p.winners, make([]int32, rs.groups-len(p.winners))...)
	}
	competing := p.matched[:0]
	for _, index := range p.matched {
		r := &rs.rules[index]
		if r.missing == MissingSkip && !p.has(r) {
			continue
		}
		competing = append(competing, index)
		if r.group < 0 || !r.when.certain(&p.request) {
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
