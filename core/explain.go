// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"
	"strings"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/internal/identify"
	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/policy"
)

// Explanation describes how one policy decided a request. An Explanation is built from the plan's
// state after the decision, so it describes what really happened. An Explanation shares no memory
// with the plan.
type Explanation struct {
	Policy   string // the policy's name
	Disabled bool   // if set, no other field is set

	Client policy.Identity // the client; the zero Identity if none was found
	// the policy's ways to identify a client, in the order they are tried
	Methods     []MethodExplanation
	Credentials []CredentialUse // the credentials that were read, with their states
	Address     string          // the client's address, and how it was determined
	// the entry of the list "block" or "exempt" that matched, with its reason; "" if none did
	Listed string
	// Denied is the reason why this or another policy denies the request without the store; "" if
	// none does.
	Denied string
	// nil if the policy has none for this client, or if the request is denied without the store
	Penalty *PenaltyExplanation
	Rules   []RuleExplanation // the rules that match, as the policy lists them
}

// MethodExplanation is the result of one way to identify the client.
type MethodExplanation struct {
	Method string // in the words of a policy: "jwt", "header X-User", "ip"
	// Fate is "found KIND ID", "absent", the states of the rejected credentials ("expired, then
	// invalid"), "rejected: STATE", or "not tried".
	Fate string
}

// PenaltyExplanation describes the check of the client's penalty.
type PenaltyExplanation struct {
	Check  counter.Check
	Result counter.Result // after Decide
}

// RuleExplanation describes what happened to one matching rule.
type RuleExplanation struct {
	Name   string
	Index  int // of the rule in its Ruleset
	Action policy.Action
	// Fate is "applies", "lost to NAME: why", "replaced by NAME", "skipped: why", "exempt: who",
	// "denied: why" or "not checked: why".
	Fate   string
	LostTo string // the rule that won instead; "" if none did
	// the owner of the limits that are used: "the rule", "tier premium", "this client's own"; "" if
	// none are
	Limits  string
	Outcome Outcome // set after Decide or Degrade if the rule is in play

	Unlimited bool             // the limits in use are empty, so the client is unlimited
	Hidden    bool             // its limits are not shown to clients
	Cost      int64            // the request's cost under the rule; 0 without checks
	Policies  []string         // the policy names of the limits of Checks
	Checks    []counter.Check  // the checks for the store; none if the request is denied without the store
	Results   []counter.Result // of Checks, after Decide
	// Limited holds the limits of Checks as clients see them, and Used the units used of each. If
	// the rule has shards, Limited holds the limits over all shards, and each check is for one
	// shard. If Looked was called, the fields Used, Remaining and Reset cover all shards together.
	// Otherwise these fields describe the check's shard, with Used and Remaining multiplied by the
	// number of shards.
	Limited []*counter.Limit
	Used    []int64
	Shards  int // the number of shards of each counter; 0 for none
	Denying int // after Looked, how many shards would deny the request
}

// planTrace holds what a plan records for Explain.
type planTrace struct {
	// the function addTraced; a field, so that programs without Explain do not link addTraced
	add      func(*Plan, *Ruleset)
	matched  []int32 // the rules that match, before competition in groups
	policies []tracedPolicy
	looked   []shardSum // by check, after Looked
}

// tracedPolicy holds what was recorded about one policy.
type tracedPolicy struct {
	ruleset *Ruleset
	said    Explanation // without the fields that only Decide determines
}

// Trace makes the plan record the policies that are added from now on, for Explain, until Reset.
// Recording allocates.
func (p *Plan) Trace() {
	if p.trace == nil {
		p.trace = &planTrace{add: (*Plan).addTraced}
	}
}

// Explain returns what Add did for each policy and, after Decide, what the store answered. Explain
// returns nil for a plan without Trace.
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

// addTraced adds a policy and records the result.
func (p *Plan) addTraced(rs *Ruleset) {
	p.trace.matched, p.who.Entry = p.trace.matched[:0], nil
	looked := len(p.credentials)
	p.addRuleset(rs)
	e := Explanation{Policy: rs.name, Disabled: rs.disabled}
	if !rs.disabled {
		e.Client = clonedIdentity(p.who.Identity)
		e.Credentials = slices.Clone(p.credentials[looked:])
		e.Methods = p.explainMethods(rs, e.Credentials)
		e.Address = "unknown, " + p.who.Request.Origin.String()
		if p.who.Request.Peer.IsValid() {
			e.Address = p.who.Request.Peer.String() + ", " + p.who.Request.Origin.String()
		}
		e.Listed = explainListed(p.who.Entry)
		e.Denied = p.explainDenial(rs)
		for _, index := range p.trace.matched {
			e.Rules = append(e.Rules, p.explainMatch(rs, index))
		}
	}
	p.trace.policies = append(p.trace.policies, tracedPolicy{ruleset: rs, said: e})
}

func clonedIdentity(who policy.Identity) policy.Identity {
	for _, s := range []*string{&who.Kind, &who.ID, &who.User, &who.APIKey, &who.Tier, &who.Tenant} {
		*s = strings.Clone(*s)
	}
	return who
}

// explainMethods describes the result of each way to identify the client, given the credentials
// read.
func (p *Plan) explainMethods(rs *Ruleset, looked []CredentialUse) []MethodExplanation {
	methods := make([]MethodExplanation, len(rs.who.Finders))
	over := false
	for i := range rs.who.Finders {
		f := &rs.who.Finders[i]
		methods[i] = MethodExplanation{Method: identifyWay(f), Fate: "not tried"}
		if !over {
			methods[i].Fate, over = p.explainMethod(f, i, looked)
		}
	}
	return methods
}

// Plan.explainMethod describes the result of one way to identify the client. The result named last
// reports whether no further way was tried.
func (p *Plan) explainMethod(f *identify.Finder, method int, looked []CredentialUse) (fate string, last bool) {
	found := "found " + p.who.Identity.Kind + " " + p.who.Identity.ID
	if f.Verifier == nil {
		if p.who.Identity.Kind == f.Label || p.who.Identity.Kind == f.Hashed {
			return found, true
		}
		return policy.CredentialAbsent.String(), false
	}
	var states []string
	for _, c := range looked {
		switch {
		case c.Method != method:
		case c.State == policy.CredentialValid:
			return found, true
		case f.Deny || c.State > policy.CredentialValid:
			return "rejected: " + c.State.String(), true
		default:
			states = append(states, c.State.String())
		}
	}
	if len(states) == 0 {
		return policy.CredentialAbsent.String(), false
	}
	return strings.Join(states, ", then "), false
}

// identifyWay returns a way to identify clients in the words of a policy, such as "header X-User".
func identifyWay(f *identify.Finder) string {
	if f.Name == "" {
		return policy.IdentifyWords[f.Kind]
	}
	return policy.IdentifyWords[f.Kind] + " " + f.Name
}

func explainListed(e *identify.Entry) string {
	switch {
	case e == nil:
		return ""
	case e.Reason == "":
		return e.At
	default:
		return e.At + ": " + e.Reason
	}
}

// explainDenial returns the reason why the policy that was added last denies the request; "" if it
// does not.
func (p *Plan) explainDenial(rs *Ruleset) string {
	switch {
	case p.denial == denialBlocked && p.uses[0].ruleset != rs:
		return "blocked by another policy, " + p.uses[0].ruleset.name
	case p.denial == denialBlocked && p.uses[0].rule == &noRule:
		return "blocked by " + p.blockedBy
	case p.denial == denialBlocked:
		return "blocked by the rule " + p.uses[0].rule.name
	case p.denial == denialOversized && p.oversized == match.StatusURITooLong:
		return "its path is too long to be compared"
	case p.denial == denialOversized:
		return "one of its header fields is too long to be compared or counted by"
	case p.denial == denialUnchecked:
		return "there was no time to find out who its client is"
	case p.deniedByItself(rs):
		return "its credential is " + p.badCredential.String()
	}
	for i := range p.uses {
		switch u := &p.uses[i]; {
		case u.ruleset != rs:
		case u.missing && u.rule.action != policy.ActionLogOnly:
			return "it lacks what a rule with missing: deny counts by"
		case u.overCheckLimit():
			return "it meets more limits than one call of the store can check"
		}
	}
	return ""
}

// deniedByItself reports whether the policy itself, and not one of its rules, denies the request.
func (p *Plan) deniedByItself(rs *Ruleset) bool {
	u := p.useOf(rs, policyItself)
	return u != nil && !u.isPenalty()
}

// overCheckLimit reports whether the rule has no checks because the plan had no room for them.
func (u *ruleUse) overCheckLimit() bool {
	return u.rule != &noRule && u.checks[0] == u.checks[1] && !u.excused && !u.unlimited && !u.missing
}
