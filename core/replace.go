// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"slices"
)

// replaces checks which rules each rule says to take out of play.
func (v *verifier) replaces() {
	byName := map[string]*Rule{}
	for i := range v.policy.Rules {
		if len(v.policy.Rules[i].Replaces) == 0 {
			continue
		}
		if len(byName) == 0 {
			for j := range v.policy.Rules {
				byName[v.policy.Rules[j].Name] = &v.policy.Rules[j]
			}
		}
		v.replacedBy(ruleAt(i)+".replaces", &v.policy.Rules[i], byName)
	}
}

func (v *verifier) replacedBy(at string, r *Rule, byName map[string]*Rule) {
	if len(r.Replaces) > matchListMax {
		v.problem(at, "", fmt.Sprintf("has %d entries, more than %d", len(r.Replaces), matchListMax),
			"put the rules in a group")
		return
	}
	for i, name := range r.Replaces {
		place := fmt.Sprintf("%s[%d]", at, i)
		other := byName[name]
		switch {
		case name == r.Name:
			v.problem(place, name, "is the rule itself", "leave it out")
		case other == nil || name == "":
			v.problem(place, name, "is the name of no rule of this policy", "write the name of one, or leave it out")
		case slices.Contains(r.Replaces[:i], name):
			v.problem(place, name, "is there twice", "leave it out")
		case other.Action == ActionBlock:
			v.problem(place, name, "blocks, and that nothing replaces", "leave it out, or narrow what the other blocks")
		case r.Action == ActionBlock:
			v.problem(place, name, "is out of play anyway where action: block is", "leave it out")
		}
	}
}

// linkReplaced lets the rules know those that they take out of play.
func (rs *Ruleset) linkReplaced(p *Policy) {
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
			if other := byName[name]; other != nil { // others are reported by the verifier
				rs.rules[i].replaces = append(rs.rules[i].replaces, other)
				rs.replaces = true
			}
		}
	}
}

// replace takes out of play what other rules in play replace. One that is itself replaced replaces all the same, so that
// the order of rules does not matter.
func (p *Plan) replace(rs *Ruleset) {
	for _, index := range p.matched {
		p.replaced = append(p.replaced, rs.rules[index].replaces...)
	}
	if len(p.replaced) > 0 {
		p.matched = slices.DeleteFunc(p.matched, func(index int32) bool { return slices.Contains(p.replaced, &rs.rules[index]) })
	}
}

// replacedBy returns the name of a rule that takes the other out of play in this request, "" if none does. It is for
// explanations: of a rule that lost in its group too it says whether one that matches would replace it.
func (p *Plan) replacedBy(rs *Ruleset, r *rule) string {
	if !slices.Contains(p.replaced, r) {
		return ""
	}
	for _, index := range p.trace.matched {
		if slices.Contains(rs.rules[index].replaces, r) {
			return rs.rules[index].name
		}
	}
	return ""
}
