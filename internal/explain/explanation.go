// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// Explanation describes how a request would be decided. Programs read its JSON, so fields may be
// added but never removed.
type Explanation struct {
	Policy   string            `json:"policy"`
	Disabled bool              `json:"disabled,omitempty"`
	Client   *ExplainedClient  `json:"client" doc:"null if the request has none"`
	Methods  []ExplainedMethod `json:"methods"`
	Address  string            `json:"address"`
	Listed   string            `json:"listed,omitempty" doc:"the entry of block or exempt that matched, with its reason"`
	Penalty  *ExplainedPenalty `json:"penalty,omitempty"`
	Rules    []ExplainedRule   `json:"rules"`
	Decision ExplainedDecision `json:"decision"`
	Store    string            `json:"store,omitempty" doc:"where the counters were read; absent if they count as unused"`
	// RecordsUnread is true if the policy needs a directory, and none was read.
	RecordsUnread bool `json:"records_unread,omitempty"`
}

// ExplainedClient is the client of a request. A nil client is null in JSON.
type ExplainedClient struct {
	_      struct{} `nullable:"true"`
	Kind   string   `json:"kind"`
	ID     string   `json:"id"`
	User   string   `json:"user,omitempty"`
	APIKey string   `json:"api_key,omitempty"`
	Tier   string   `json:"tier,omitempty"`
	Tenant string   `json:"tenant,omitempty"`
	Limits []string `json:"limits_for,omitempty" doc:"rules for which the client has its own limits"`
}

// ExplainedMethod is the result of one way to identify the client.
type ExplainedMethod struct {
	Method string `json:"method"`
	Fate   string `json:"fate"`
	Reason string `json:"reason,omitempty"` // why the key was revoked, from its entry
}

// ExplainedPenalty is the penalty of the client.
type ExplainedPenalty struct {
	Key        string `json:"key"`
	InForce    bool   `json:"in_force"`
	Violations int64  `json:"violations"`
	WaitMillis *int64 `json:"wait_ms"`
}

// ExplainedRule is what happened to a rule that matches.
type ExplainedRule struct {
	Name      string           `json:"name"`
	Action    string           `json:"action"`
	Fate      string           `json:"fate" doc:"applies, or why it does not"`
	LostTo    string           `json:"lost_to,omitempty"`
	Outcome   string           `json:"outcome,omitempty"` // of a rule that applies
	Whose     string           `json:"limits_of,omitempty" doc:"whose limits are used: the rule's, a tier's or the client's own"`
	Unlimited bool             `json:"unlimited,omitempty"`
	Hidden    bool             `json:"hidden,omitempty"`          // response headers do not show its limits
	Shards    int              `json:"shards,omitempty"`          // number of shards of each counter in Checks
	Denying   int              `json:"shards_refusing,omitempty"` // how many shards would deny the request
	Checks    []ExplainedCheck `json:"checks,omitempty"`
}

// ExplainedCheck describes one limit and its counter before the request. For a rule with shards the
// numbers are totals over all shards, and the key is that of one of them.
type ExplainedCheck struct {
	Name        string `json:"name"` // the name that clients see
	Limit       string `json:"limit"`
	Cost        int64  `json:"cost"`
	Key         string `json:"key"`
	Capacity    int64  `json:"capacity"`
	Used        int64  `json:"used"` // Capacity - Remaining, minus units lost among shards
	Remaining   int64  `json:"remaining"`
	ResetMillis *int64 `json:"reset_ms"`
	Denies      bool   `json:"refuses"`
	WaitMillis  *int64 `json:"wait_ms" doc:"null: never enough for the cost"`
}

// ExplainedDecision is the decision.
type ExplainedDecision struct {
	Outcome          string `json:"outcome"`
	Status           int    `json:"status,omitempty"` // of a denial
	Why              string `json:"why,omitempty"`    // the reason for a denial without the store
	Rule             string `json:"rule,omitempty"`
	RetryAfterMillis *int64 `json:"retry_after_ms" doc:"null: never enough for the cost"`
	DelayMillis      int64  `json:"delay_ms,omitempty"`
}

// actions are the words of a policy for the actions of rules.
var actions = map[policy.Action]string{policy.ActionReject: "reject", policy.ActionLogOnly: "log_only", policy.ActionAllow: "allow",
	policy.ActionBlock: "block", policy.ActionThrottle: "throttle"}

// millis rounds up, so that a client that waits this many milliseconds waits long enough. The
// result is nil for never.
func millis(span counter.Micros) *int64 {
	if span == counter.Never {
		return nil
	}
	n := int64((span-1)/counter.Millisecond + 1)
	if span <= 0 {
		n = 0
	}
	return &n
}

// newExplanation assembles the explanation of a request under one policy.
func newExplanation(e *core.Explanation, d *core.Decision, store string) *Explanation {
	a := &Explanation{Policy: e.Policy, Disabled: e.Disabled, Methods: []ExplainedMethod{}, Address: e.Address, Listed: e.Listed,
		Rules: []ExplainedRule{}, Store: store,
		Decision: ExplainedDecision{Outcome: d.Outcome.String(), Status: d.Status, Why: e.Denied, Rule: d.Rule,
			RetryAfterMillis: millis(d.RetryAfter)}}
	if d.Delay > 0 {
		a.Decision.DelayMillis = *millis(d.Delay)
	}
	if who := &e.Client; who.Kind != "" || who.User+who.Tenant+who.Tier != "" {
		a.Client = &ExplainedClient{Kind: who.Kind, ID: who.ID, User: who.User, APIKey: who.APIKey, Tier: who.Tier, Tenant: who.Tenant,
			Limits: who.Overrides.Rules()}
	}
	for _, m := range e.Methods {
		a.Methods = append(a.Methods, ExplainedMethod{Method: m.Method, Fate: m.Fate})
	}
	if p := e.Penalty; p != nil {
		a.Penalty = &ExplainedPenalty{string(p.Check.Key), p.Result.Denied, p.Result.Violations, millis(p.Result.Wait)}
	}
	for i := range e.Rules {
		a.Rules = append(a.Rules, newRule(&e.Rules[i]))
	}
	return a
}

func newRule(r *core.RuleExplanation) ExplainedRule {
	a := ExplainedRule{Name: r.Name, Action: actions[r.Action], Fate: r.Fate, LostTo: r.LostTo, Whose: r.Limits,
		Unlimited: r.Unlimited, Hidden: r.Hidden, Shards: r.Shards, Denying: r.Denying}
	if r.Outcome != core.OutcomeNone {
		a.Outcome = r.Outcome.String()
	}
	for i := range r.Checks {
		check, limit, result := &r.Checks[i], r.Limited[i], &r.Results[i]
		a.Checks = append(a.Checks, ExplainedCheck{Name: r.Policies[i], Limit: limit.String(), Cost: check.Cost,
			Key: string(check.Key), Capacity: limit.Capacity(), Used: r.Used[i], Remaining: result.Remaining,
			ResetMillis: millis(result.Reset), Denies: result.Denied, WaitMillis: millis(result.Wait)})
	}
	return a
}
