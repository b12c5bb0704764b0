// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"

	"github.com/penstock/penstock/core/policy"
)

// linkReplaced fills in, for each rule, the rules that it replaces.
func (rs *Ruleset) linkReplaced(p *policy.Policy) {
	byName := map[string]*rule{}
	for i := range p.Rules {
		if len(p.Rules[i].Replaces) == 0 || p.Rules[i].Disabled {
			continue
		}
		if len(byName) == 0 {
			for j := range rs.rules {
				byName[rs.rules[j].name] = &rs.rules[j]
			}
		}
		for _, name := range p.Rules[i].Replaces {
			if other := byName[name]; other != nil { // validation reports unknown names
				rs.rules[i].replaces = append(rs.rules[i].replaces, other)
				rs.replaces = true
			}
		}
	}
}

// Plan.replace removes the rules that other matching rules replace. A rule that is itself replaced
// still replaces others, so the order of rules does not matter.
//
// Servers may read one path in more than one way, and may use any value of a header that has
// several. A rule that matches only some of these readings or values replaces nothing: otherwise a
// client could remove a rule for the path that is really served, or for the value that is used.
func (p *Plan) replace(rs *Ruleset) {
	for _, index := range p.matched {
		if r := &rs.rules[index]; len(r.replaces) > 0 && r.when.Certain(&p.who.Request) {
			p.replaced = append(p.replaced, r.replaces...)
		}
	}
	if len(p.replaced) > 0 {
		p.matched = slices.DeleteFunc(p.matched, func(index int32) bool { return slices.Contains(p.replaced, &rs.rules[index]) })
	}
}

// replacedBy returns the name of a rule that replaces r in this request; "" if there is none. It is
// used for explanations. If another rule of its group was applied instead of r, replacedBy still
// returns the name of a matching rule that would have replaced r.
func (p *Plan) replacedBy(rs *Ruleset, r *rule) string {
	if !slices.Contains(p.replaced, r) {
		return ""
	}
	for _, index := range p.trace.matched {
		if other := &rs.rules[index]; slices.Contains(other.replaces, r) && other.when.Certain(&p.who.Request) {
			return rs.rules[index].name
		}
	}
	return ""
}
