// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// The type answer is the output of explain. Programs read its JSON, so fields may be added and
// never removed.
type answer struct {
	Policy   string         `json:"policy"`
	Disabled bool           `json:"disabled,omitempty"`
	Client   *clientAnswer  `json:"client"` // null: no client
	Methods  []methodAnswer `json:"methods"`
	Address  string         `json:"address"`
	Listed   string         `json:"listed,omitempty"`
	Penalty  *penaltyAnswer `json:"penalty,omitempty"`
	Rules    []ruleAnswer   `json:"rules"`
	Decision decisionAnswer `json:"decision"`
	Store    string         `json:"store,omitempty"` // where the counters were read; "": new counters are assumed
	// RecordsUnread is true if the policy needs a directory, and none was read.
	RecordsUnread bool `json:"records_unread,omitempty"`
}

type clientAnswer struct {
	Kind   string   `json:"kind"`
	ID     string   `json:"id"`
	User   string   `json:"user,omitempty"`
	APIKey string   `json:"api_key,omitempty"`
	Tier   string   `json:"tier,omitempty"`
	Tenant string   `json:"tenant,omitempty"`
	Limits []string `json:"limits_for,omitempty"` // the rules for which the client has its own limits
}

type methodAnswer struct {
	Method string `json:"method"`
	Fate   string `json:"fate"`
	Reason string `json:"reason,omitempty"` // why the key was revoked, from its entry
}

type penaltyAnswer struct {
	Key        string `json:"key"`
	InForce    bool   `json:"in_force"`
	Violations int64  `json:"violations"`
	WaitMillis *int64 `json:"wait_ms"`
}

type ruleAnswer struct {
	Name      string        `json:"name"`
	Action    string        `json:"action"`
	Fate      string        `json:"fate"`
	LostTo    string        `json:"lost_to,omitempty"`
	Outcome   string        `json:"outcome,omitempty"` // of a rule that applies
	Whose     string        `json:"limits_of,omitempty"`
	Unlimited bool          `json:"unlimited,omitempty"`
	Hidden    bool          `json:"hidden,omitempty"`          // response headers do not show its limits
	Shards    int           `json:"shards,omitempty"`          // number of shards of each counter in Checks
	Denying   int           `json:"shards_refusing,omitempty"` // how many shards would deny the request
	Checks    []checkAnswer `json:"checks,omitempty"`
}

// checkAnswer describes one limit and its counter before the request. For a rule with shards the
// numbers are totals over all shards, and the key is that of one of them.
type checkAnswer struct {
	Name        string `json:"name"` // the name that clients see
	Limit       string `json:"limit"`
	Cost        int64  `json:"cost"`
	Key         string `json:"key"`
	Capacity    int64  `json:"capacity"`
	Used        int64  `json:"used"` // Capacity - Remaining, minus units lost among shards
	Remaining   int64  `json:"remaining"`
	ResetMillis *int64 `json:"reset_ms"`
	Denies      bool   `json:"refuses"`
	WaitMillis  *int64 `json:"wait_ms"` // null: never enough for the cost
}

type decisionAnswer struct {
	Outcome          string `json:"outcome"`
	Status           int    `json:"status,omitempty"` // of a denial
	Why              string `json:"why,omitempty"`    // the reason for a denial without the store
	Rule             string `json:"rule,omitempty"`
	RetryAfterMillis *int64 `json:"retry_after_ms"` // null: never enough for the cost
	DelayMillis      int64  `json:"delay_ms,omitempty"`
}

var actionWords = map[policy.Action]string{policy.ActionReject: "reject", policy.ActionLogOnly: "log_only", policy.ActionAllow: "allow",
	policy.ActionBlock: "block", policy.ActionThrottle: "throttle"}

// The function millis rounds up, so that a client that waits for the result has waited long enough.
// The function returns nil for never.
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

// The function newAnswer assembles the answer about a request under one policy.
func newAnswer(e *core.Explanation, d *core.Decision, store string) *answer {
	a := &answer{Policy: e.Policy, Disabled: e.Disabled, Methods: []methodAnswer{}, Address: e.Address, Listed: e.Listed,
		Rules: []ruleAnswer{}, Store: store,
		Decision: decisionAnswer{Outcome: d.Outcome.String(), Status: d.Status, Why: e.Denied, Rule: d.Rule,
			RetryAfterMillis: millis(d.RetryAfter)}}
	if d.Delay > 0 {
		a.Decision.DelayMillis = *millis(d.Delay)
	}
	if who := &e.Client; who.Kind != "" || who.User+who.Tenant+who.Tier != "" {
		a.Client = &clientAnswer{who.Kind, who.ID, who.User, who.APIKey, who.Tier, who.Tenant, who.Overrides.Rules()}
	}
	for _, m := range e.Methods {
		a.Methods = append(a.Methods, methodAnswer{Method: m.Method, Fate: m.Fate})
	}
	if p := e.Penalty; p != nil {
		a.Penalty = &penaltyAnswer{string(p.Check.Key), p.Result.Denied, p.Result.Violations, millis(p.Result.Wait)}
	}
	for i := range e.Rules {
		a.Rules = append(a.Rules, newRuleAnswer(&e.Rules[i]))
	}
	return a
}

func newRuleAnswer(r *core.RuleExplanation) ruleAnswer {
	a := ruleAnswer{Name: r.Name, Action: actionWords[r.Action], Fate: r.Fate, LostTo: r.LostTo, Whose: r.Limits,
		Unlimited: r.Unlimited, Hidden: r.Hidden, Shards: r.Shards, Denying: r.Denying}
	if r.Outcome != core.OutcomeNone {
		a.Outcome = r.Outcome.String()
	}
	for i := range r.Checks {
		check, limit, result := &r.Checks[i], r.Limited[i], &r.Results[i]
		a.Checks = append(a.Checks, checkAnswer{Name: r.Policies[i], Limit: limit.String(), Cost: check.Cost,
			Key: string(check.Key), Capacity: limit.Capacity(), Used: r.Used[i], Remaining: result.Remaining,
			ResetMillis: millis(result.Reset), Denies: result.Denied, WaitMillis: millis(result.Wait)})
	}
	return a
}
