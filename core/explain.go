// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"
	"strings"
)

// Explanation says how one policy decided a request, for people. It is made of what the code that decides requests leaves
// behind, so it tells what happened and not what was meant to. It shares no memory with the plan.
type Explanation struct {
	Policy   string // the policy's name
	Disabled bool   // then nothing else is said

	Client      Identity            // who is asking; the zero Identity is nobody
	Methods     []MethodExplanation // every way of identifying of the policy, in the order they are tried
	Credentials []CredentialUse     // what became of every credential that was looked at
	Address     string              // the address the client is counted by, and why it is that one
	Listed      string              // the entry of block or exempt that told, with its reason; "" if none did
	// Refused says why the request is refused without asking the store, by this policy or one beside it; "" if it is not.
	Refused string
	Penalty *PenaltyExplanation // nil if the policy has none for this client, or the request is refused
	Rules   []RuleExplanation   // the rules that match, as the policy lists them
}

// MethodExplanation says what came of one way of identifying.
type MethodExplanation struct {
	Method string // as policies write it: "jwt", "header X-User", "ip"
	// Fate is "found KIND ID", "absent", the states of the credentials that did not do ("expired, then invalid"),
	// "refused: STATE", or "not tried".
	Fate string
}

// PenaltyExplanation is the check of the client's penalty.
type PenaltyExplanation struct {
	Check  Check
	Result Result // after Decide
}

// RuleExplanation says what became of one rule that matched.
type RuleExplanation struct {
	Name   string
	Index  int // of the rule in its Ruleset
	Action Action
	// Fate is "in play", "lost to NAME: why", "replaced by NAME", "skipped: why", "exempt: who", "refuses: why" or "not asked: why".
	Fate    string
	LostTo  string  // the rule that won instead; "" if none did
	Limits  string  // whose limits are used: "the rule", "tier premium", "this client's own"; "" if none are
	Outcome Outcome // after Decide or Degrade, of a rule in play

	Unlimited bool     // the limits used are none
	Hidden    bool     // clients are not told about its limits
	Cost      int64    // what the request costs under the rule, 0 if nothing is asked
	Policies  []string // what clients know the limits of Checks by
	Checks    []Check  // what is asked of the store; nothing is if the request is refused without
	Results   []Result // of Checks, after Decide
	// Limited are the limits of Checks as clients know them, and Used what is used of each. Where the rule has shards that is the
	// whole of which each check is of a part; after Looked, Used is of all shards together, and so are Remaining and Reset in
	// Results. Without, they are those of the check's shard, Remaining and Used times the number of shards.
	Limited  []*Limit
	Used     []int64
	Shards   int // over how many each counter is spread, 0 for none
	Refusing int // after Looked, how many of the shards would refuse the request
}

// trace is what a plan remembers for Explain.
type trace struct {
	add      func(*Plan, *Ruleset) // addTraced; by reference, so that a program that asks for no explanation has none in it
	matched  []int32               // the rules that match, before they compete
	policies []traced
	looked   []lookedAt // by check, after Looked
}

// traced is what was found out about one policy.
type traced struct {
	ruleset *Ruleset
	said    Explanation // but for what is known after Decide only
}

// Trace makes the policies added next be remembered, for Explain. That costs allocations. Reset ends it.
func (p *Plan) Trace() {
	if p.trace == nil {
		p.trace = &trace{add: (*Plan).addTraced}
	}
}

// Explain says what Add did, policy by policy, and, after Decide, what the store said. It returns nil for a plan that was
// not traced.
func (p *Plan) Explain() []Explanation {
	if p.trace == nil {
		return nil
	}
	said := make([]Explanation, len(p.trace.policies))
	for i := range p.trace.policies {
		said[i] = p.explain(&p.trace.policies[i])
	}
	return said
}

// addTraced adds a policy and writes down what came of it.
func (p *Plan) addTraced(rs *Ruleset) {
	p.trace.matched, p.toldBy = p.trace.matched[:0], nil
	looked := len(p.credentials)
	p.add(rs)
	e := Explanation{Policy: rs.name, Disabled: rs.disabled}
	if !rs.disabled {
		e.Client = clonedIdentity(p.asking)
		e.Credentials = slices.Clone(p.credentials[looked:])
		e.Methods = p.explainMethods(rs, e.Credentials)
		e.Address = "unknown, " + p.request.origin.String()
		if p.request.peer.IsValid() {
			e.Address = p.request.peer.String() + ", " + p.request.origin.String()
		}
		e.Listed = explainListed(p.toldBy)
		e.Refused = p.explainRefusal(rs)
		for _, index := range p.trace.matched {
			e.Rules = append(e.Rules, p.explainMatch(rs, index))
		}
	}
	p.trace.policies = append(p.trace.policies, traced{ruleset: rs, said: e})
}

func clonedIdentity(who Identity) Identity {
	for _, s := range []*string{&who.Kind, &who.ID, &who.User, &who.APIKey, &who.Tier, &who.Tenant} {
		*s = strings.Clone(*s)
	}
	return who
}

// explainMethods says what came of each way of identifying, given the credentials that were looked at.
func (p *Plan) explainMethods(rs *Ruleset, looked []CredentialUse) []MethodExplanation {
	methods := make([]MethodExplanation, len(rs.finders))
	over := false
	for i := range rs.finders {
		f := &rs.finders[i]
		methods[i] = MethodExplanation{Method: f.String(), Fate: "not tried"}
		if !over {
			methods[i].Fate, over = p.explainMethod(f, i, looked)
		}
	}
	return methods
}

// explainMethod says what came of a way of identifying that was tried, and whether it was the last.
func (p *Plan) explainMethod(f *finder, method int, looked []CredentialUse) (fate string, last bool) {
	found := "found " + p.asking.Kind + " " + p.asking.ID
	if f.verifier == nil {
		if p.asking.Kind == f.label || p.asking.Kind == f.hashed {
			return found, true
		}
		return CredentialAbsent.String(), false
	}
	var states []string
	for _, c := range looked {
		switch {
		case c.Method != method:
		case c.State == CredentialValid:
			return found, true
		case f.deny || c.State > CredentialValid:
			return "refused: " + c.State.String(), true
		default:
			states = append(states, c.State.String())
		}
	}
	if len(states) == 0 {
		return CredentialAbsent.String(), false
	}
	return strings.Join(states, ", then "), false
}

// String returns the way of identifying as policies write it.
func (f *finder) String() string {
	if f.name == "" {
		return identifyWords[f.kind]
	}
	return identifyWords[f.kind] + " " + f.name
}

func explainListed(e *listed) string {
	switch {
	case e == nil:
		return ""
	case e.reason == "":
		return e.at
	default:
		return e.at + ": " + e.reason
	}
}

// explainRefusal says why the policy that was added last refuses the request; "" if it does not.
func (p *Plan) explainRefusal(rs *Ruleset) string {
	switch {
	case p.refusal == refusalBlocked && p.uses[0].ruleset != rs:
		return "blocked by another policy, " + p.uses[0].ruleset.name
	case p.refusal == refusalBlocked && p.uses[0].rule == &noRule:
		return "blocked by " + p.toldBy.at
	case p.refusal == refusalBlocked:
		return "blocked by the rule " + p.uses[0].rule.name
	case p.refusal == refusalOversized && p.oversized == statusURITooLong:
		return "its path is too long to be compared"
	case p.refusal == refusalOversized:
		return "one of its header fields is too long to be compared or counted by"
	case p.refusedByItself(rs):
		return "its credential is " + p.badCredential.String()
	}
	for i := range p.uses {
		switch u := &p.uses[i]; {
		case u.ruleset != rs:
		case u.missing && u.rule.action != ActionLogOnly:
			return "it lacks what a rule with missing: deny counts by"
		case u.crowdedOut():
			return "it meets more limits than a store is asked at once"
		}
	}
	return ""
}

// refusedByItself reports whether the policy, and none of its rules, refuses the request: for a credential.
func (p *Plan) refusedByItself(rs *Ruleset) bool {
	u := p.useOf(rs, policyItself)
	return u != nil && !u.guards()
}

// crowdedOut reports whether nothing is asked for a rule because too much else is.
func (u *use) crowdedOut() bool {
	return u.rule != &noRule && u.checks[0] == u.checks[1] && !u.excused && !u.unlimited && !u.missing
}
