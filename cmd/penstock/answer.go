// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/penstock/penstock/core"
)

// answer is what explain says. Its JSON is for programs: words are added to it, and none is taken away.
type answer struct {
	Policy   string         `json:"policy"`
	Disabled bool           `json:"disabled,omitempty"`
	Client   *clientAnswer  `json:"client"` // null is nobody
	Methods  []methodAnswer `json:"methods"`
	Address  string         `json:"address"`
	Listed   string         `json:"listed,omitempty"`
	Penalty  *penaltyAnswer `json:"penalty,omitempty"`
	Rules    []ruleAnswer   `json:"rules"`
	Decision decisionAnswer `json:"decision"`
	Store    string         `json:"store,omitempty"` // where the counters were looked at; none: they are taken as fresh
}

type clientAnswer struct {
	Kind   string   `json:"kind"`
	ID     string   `json:"id"`
	User   string   `json:"user,omitempty"`
	APIKey string   `json:"api_key,omitempty"`
	Tier   string   `json:"tier,omitempty"`
	Tenant string   `json:"tenant,omitempty"`
	Limits []string `json:"limits_for,omitempty"` // the rules that the client has limits of its own for
}

type methodAnswer struct {
	Method string `json:"method"`
	Fate   string `json:"fate"`
	Reason string `json:"reason,omitempty"` // of a key that was taken back, as its entry says
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
	Outcome   string        `json:"outcome,omitempty"` // of a rule in play
	Whose     string        `json:"limits_of,omitempty"`
	Unlimited bool          `json:"unlimited,omitempty"`
	Hidden    bool          `json:"hidden,omitempty"`          // clients are not told of its limits
	Shards    int           `json:"shards,omitempty"`          // over which each counter of Checks is spread
	Refusing  int           `json:"shards_refusing,omitempty"` // of the shards, whose turn it may be
	Checks    []checkAnswer `json:"checks,omitempty"`
}

// checkAnswer is one limit and what is known of its counter before the request. Of a rule with shards the numbers are those of
// all together, and the key is one of theirs.
type checkAnswer struct {
	Name        string `json:"name"` // what clients know it by
	Limit       string `json:"limit"`
	Cost        int64  `json:"cost"`
	Key         string `json:"key"`
	Capacity    int64  `json:"capacity"`
	Used        int64  `json:"used"` // Capacity less Remaining, but for what is lost where shards divide a limit
	Remaining   int64  `json:"remaining"`
	ResetMillis *int64 `json:"reset_ms"`
	Refuses     bool   `json:"refuses"`
	WaitMillis  *int64 `json:"wait_ms"` // null: the cost can never pass
}

type decisionAnswer struct {
	Outcome          string `json:"outcome"`
	Status           int    `json:"status,omitempty"` // of a refusal
	Why              string `json:"why,omitempty"`    // of a refusal that the store has no part in
	Rule             string `json:"rule,omitempty"`
	RetryAfterMillis *int64 `json:"retry_after_ms"` // null: the cost can never pass
	DelayMillis      int64  `json:"delay_ms,omitempty"`
}

var actionWords = map[core.Action]string{core.ActionReject: "reject", core.ActionLogOnly: "log_only", core.ActionAllow: "allow",
	core.ActionBlock: "block", core.ActionThrottle: "throttle"}

// millis rounds up: who waits that long has waited long enough. Nil is never.
func millis(span core.Micros) *int64 {
	if span == core.Never {
		return nil
	}
	n := int64((span-1)/core.Millisecond + 1)
	if span <= 0 {
		n = 0
	}
	return &n
}

// tell puts together what is known of a request under one policy.
func tell(e *core.Explanation, d *core.Decision, store string) *answer {
	a := &answer{Policy: e.Policy, Disabled: e.Disabled, Methods: []methodAnswer{}, Address: e.Address, Listed: e.Listed,
		Rules: []ruleAnswer{}, Store: store,
		Decision: decisionAnswer{Outcome: d.Outcome.String(), Status: d.Status, Why: e.Refused, Rule: d.Rule,
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
		a.Penalty = &penaltyAnswer{string(p.Check.Key), p.Result.Refused, p.Result.Violations, millis(p.Result.Wait)}
	}
	for i := range e.Rules {
		a.Rules = append(a.Rules, tellRule(&e.Rules[i]))
	}
	return a
}

func tellRule(r *core.RuleExplanation) ruleAnswer {
	a := ruleAnswer{Name: r.Name, Action: actionWords[r.Action], Fate: r.Fate, LostTo: r.LostTo, Whose: r.Limits,
		Unlimited: r.Unlimited, Hidden: r.Hidden, Shards: r.Shards, Refusing: r.Refusing}
	if r.Outcome != core.OutcomeNone {
		a.Outcome = r.Outcome.String()
	}
	for i := range r.Checks {
		check, limit, result := &r.Checks[i], r.Limited[i], &r.Results[i]
		a.Checks = append(a.Checks, checkAnswer{Name: r.Policies[i], Limit: limit.String(), Cost: check.Cost,
			Key: string(check.Key), Capacity: limit.Capacity(), Used: r.Used[i], Remaining: result.Remaining,
			ResetMillis: millis(result.Reset), Refuses: result.Refused, WaitMillis: millis(result.Wait)})
	}
	return a
}
