// SPDX-License-Identifier: Apache-2.0

package core

import (
	"bytes"
	"slices"
	"strconv"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// explainMatch describes what happened to a matching rule of the policy that was added last.
func (p *Plan) explainMatch(rs *Ruleset, index int32) RuleExplanation {
	r := &rs.rules[index]
	e := RuleExplanation{Name: r.name, Index: int(index), Action: r.action, Hidden: r.hidden}
	u := p.useOf(rs, index)
	switch {
	case u == nil && (p.denial == denialBlocked || p.deniedByItself(rs)):
		e.Fate = "not checked: the request is denied"
	case u == nil && r.missing == policy.MissingSkip && !p.hasDimensions(r):
		e.Fate = "skipped: the request lacks " + p.lackedDimension(r)
	case u == nil && p.replacedBy(rs, r) != "":
		e.LostTo = p.replacedBy(rs, r)
		e.Fate = "replaced by " + e.LostTo
	case u == nil:
		winner := p.winnerOf(rs, r.group)
		e.LostTo = rs.rules[winner].name
		e.Fate = "lost to " + e.LostTo + ": " + rs.whyLost(index, winner)
	case r.action == policy.ActionBlock:
		e.Fate = "applies: blocks the request"
	case r.action == policy.ActionAllow:
		e.Fate = "applies: exempts from its group"
	case u.excused && p.who.Entry == nil:
		e.Fate = "exempt: by a record in the directory"
	case u.excused:
		e.Fate = "exempt: " + p.who.Entry.At + " lists the client"
	case u.missing:
		e.Fate = "denied: the request lacks " + p.lackedDimension(r)
	case u.overCheckLimit():
		e.Fate = "not checked: the request meets more limits than one call of the store can check"
	case r.group < 0 && len(r.replaces) == 0 || r.when.Certain(&p.who.Request):
		e.Fate = "applies"
	case r.when.CertainPath(&p.who.Request):
		e.Fate = "applies: a header has several values, and the rule matches some of them"
	default:
		e.Fate = "applies: the path has several readings, and the rule matches some of them"
	}
	if u != nil && !u.excused && !u.missing && r.action != policy.ActionBlock {
		e.Limits, e.Unlimited = p.explainWhose(u.whose), u.unlimited
	}
	return e
}

// useOf returns the use of a rule, nil if it is not in play.
func (p *Plan) useOf(rs *Ruleset, index int32) *ruleUse {
	for i := range p.uses {
		if p.outcomes[i].Ruleset == rs && p.outcomes[i].Index == int(index) {
			return &p.uses[i]
		}
	}
	return nil
}

// lackedDimension returns the first dimension of the rule that the request lacks, in the words of a
// policy.
func (p *Plan) lackedDimension(r *rule) string {
	for i := range r.dims {
		one := *r
		if one.dims = r.dims[i : i+1]; p.hasDimensions(&one) {
			continue
		}
		if d := &r.dims[i]; d.name != "" {
			return map[policy.DimensionKind]string{policy.PerHeader: "header:", policy.PerAttr: "attr:"}[d.kind] + d.name
		}
		return policy.DimensionLabels[r.dims[i].kind]
	}
	return ""
}

// winnerOf returns the winner of the group. If several of its rules are in play, the winner is the
// one that matches all readings of the path and all values of its headers.
func (p *Plan) winnerOf(rs *Ruleset, group int32) int32 {
	if !slices.ContainsFunc(p.matched, func(index int32) bool { return rs.rules[index].group == group }) {
		return p.winnerBefore(rs, group)
	}
	winner := p.matched[0]
	for _, index := range p.matched {
		if r := &rs.rules[index]; r.group == group && (rs.rules[winner].group != group || r.rank > rs.rules[winner].rank) {
			winner = index
		}
	}
	return winner
}

// winnerBefore returns the rule that won its group and was then replaced.
func (p *Plan) winnerBefore(rs *Ruleset, group int32) int32 {
	winner := int32(-1)
	for _, index := range p.trace.matched {
		if r := &rs.rules[index]; r.group == group && slices.Contains(p.replaced, r) &&
			(winner < 0 || r.rank < rs.rules[winner].rank) {
			winner = index
		}
	}
	return winner
}

// whyLost returns the criterion by which one of two rules of a group lost.
func (rs *Ruleset) whyLost(loser, winner int32) string {
	l, w := rs.precedences[loser], rs.precedences[winner]
	switch {
	case l.priority != w.priority:
		return "its priority " + strconv.Itoa(w.priority) + " is before " + strconv.Itoa(l.priority)
	case l.specific != w.specific:
		return "it is " + w.specific.String() + ", which is before " + l.specific.String()
	default:
		return "it is written first"
	}
}

func (p *Plan) explainWhose(w limitOwner) string {
	switch w {
	case whoseTier:
		return "tier " + p.who.Identity.Tier
	case whoseClient:
		return "this client's own"
	case whoseRecord:
		return "this client's record"
	default:
		return "the rule"
	}
}

// Plan.explain completes the explanation of a policy with the results of Decide.
func (p *Plan) explain(t *tracedPolicy) Explanation {
	e := t.said
	e.Rules = slices.Clone(e.Rules)
	for i := range e.Rules {
		r := &e.Rules[i]
		u := p.useOf(t.ruleset, int32(r.Index))
		if u == nil {
			if r.LostTo == "" && p.denial == denialBlocked && e.Denied == "" {
				r.Fate = "not checked: another policy blocks the request"
			}
			continue
		}
		r.Outcome = p.outcomes[slices.IndexFunc(p.outcomes, func(o RuleOutcome) bool {
			return o.Ruleset == t.ruleset && o.Index == r.Index
		})].Outcome
		for c := u.checks[0]; c < u.checks[1] && p.denial == denialNone; c++ {
			p.explainCheck(r, int(c))
		}
	}
	if u := p.useOf(t.ruleset, policyItself); u != nil && u.isPenalty() && p.denial == denialNone {
		e.Penalty = &PenaltyExplanation{Check: cloneCheck(p.checks[u.checks[0]]), Result: p.results[u.checks[0]]}
	}
	return e
}

// explainCheck adds a check to the explanation of its rule.
func (p *Plan) explainCheck(r *RuleExplanation, c int) {
	limit, result := p.asked[c].limit, p.results[c]
	used := limit.limit.Capacity() - result.Remaining
	if limit.shard != nil {
		r.Shards = int(limit.shard.count)
		used *= limit.shard.count
		result.Remaining = p.Remaining(c)
	}
	if p.trace.looked != nil {
		all := &p.trace.looked[c]
		result.Remaining, result.Reset, used = all.remaining, all.reset, all.used
		if r.Shards > 0 {
			r.Denying = all.denying
		}
	}
	r.Checks, r.Results = append(r.Checks, cloneCheck(p.checks[c])), append(r.Results, result)
	r.Limited, r.Used = append(r.Limited, limit.wholeLimit()), append(r.Used, used)
	r.Policies, r.Cost = append(r.Policies, limit.text.Name), p.checks[c].Cost
}

// cloneCheck returns a check that outlives the plan.
func cloneCheck(c counter.Check) counter.Check {
	c.Key = bytes.Clone(c.Key)
	return c
}
