// SPDX-License-Identifier: Apache-2.0

package core

import (
	"errors"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// Outcome is what happens to a request, either as a whole or under one rule.
type Outcome uint8

// The outcomes. OutcomeNone means that no rule applied to the request.
const (
	OutcomeNone    Outcome = iota
	OutcomeAllowed         // within every limit
	OutcomeDenied          // over a limit: 429
	// of rules only: a log_only rule would deny; the request is forwarded
	OutcomeShadowDenied
	OutcomeBlocked // a block rule matched: 403
	OutcomeExempt  // the client is exempt, or an allow rule matched
	OutcomeMissing // a rule says "missing: deny", and the request lacked one of its dimensions: 403
	// the store did not answer under on_error: allow, and this process admitted less than the limit
	OutcomeDegradedAllowed
	// the store did not answer under on_error: deny, or too many requests wait for it: 503
	OutcomeDegradedDenied
	// of rules only: another rule denied the request, so this one charged nothing
	OutcomeUncharged
	// a credential was revoked, or is invalid under on_invalid: deny: 401
	OutcomeUnauthorized
	OutcomePenalized // the client has a penalty: 429
	// of rules only: a throttle rule delayed the request, then admitted it
	OutcomeDelayed
	// the store did not answer under on_error: local, and this process's share had room
	OutcomeDegradedLocal
	OutcomeOversized // the path or a header field is too long to be compared: 414 or 431
	outcomeCount
)

// OutcomeCount is the number of outcomes, for tables indexed by Outcome.
const OutcomeCount = int(outcomeCount)

var outcomeNames = [...]string{"none", "allowed", "denied", "shadow_denied", "blocked", "exempt", "missing",
	"degraded_allowed", "degraded_denied", "uncharged", "unauthorized", "penalized", "delayed", "degraded_local",
	"oversized"}

// String returns the outcome's name in metrics, logs and placeholders.
func (o Outcome) String() string { return outcomeNames[o] }

// The HTTP statuses of denials.
const (
	statusUnauthorized = 401
	statusForbidden    = 403
	statusDenied       = 429
	statusUnavailable  = 503
)

// overloadWait is the Retry-After of a request that is denied because too many others are waiting
// for the store.
const overloadWait = counter.Second

// Decision states what happens to a request, and why. The zero Decision is for a request to which
// no rule applies. A Decision has everything that an audit record needs except the latency, which
// the front measures. The strings of Client are valid until the plan is reset; everything else
// stays valid.
type Decision struct {
	Outcome Outcome
	// Status is the HTTP status of a denial; 0 if the request is admitted.
	Status int
	// Rule is the name of the rule that denied the request. If none did, Rule is the name of the
	// rule whose limit is shown, or "".
	Rule string
	// Policy is the policy name of the shown limit, as in RateLimit-Policy: the rule's name,
	// followed by the window if the rule has several limits; "" if no limit is shown.
	Policy string
	// Limit is the shown limit; nil if none is shown.
	Limit *counter.Limit
	// Remaining is the number of units left of the limit, and Used the number of used units.
	Remaining, Used int64
	// RetryAfter is how long the client should wait. After that time, the same request would pass
	// every limit. If a rule that denies has retry_after or retry_jitter, RetryAfter can be longer
	// than the limits require. RetryAfter is 0 if the request is admitted or the time is unknown.
	// It is Never if the request's cost exceeds a limit.
	RetryAfter counter.Micros
	// Delay, if not 0, is how long the request may wait before the same checks should be tried
	// again. Delay is set if only throttle rules deny. After the delay, the front sends the checks
	// to the store again and calls Decide. If the request cannot wait, the front calls Plan.Abandon
	// and denies the request. 0 means that the denial is final.
	Delay counter.Micros
	// Credential is the state of the credential that caused the denial.
	Credential policy.CredentialState
	// Response is the response that the denying rule defines; nil means the problem document.
	Response *policy.Response
	// Cost is the request's cost under the shown limit; 0 if its rule has no cost setting.
	Cost int64
	// Client is the client that was counted.
	Client policy.Identity
	// Degraded reports that the store did not decide the request: either on_error decided it, or
	// the request needed too many checks.
	Degraded bool

	shown int // index of the check of Limit, if Limit is set
}

// Denied reports whether the request is denied.
func (d *Decision) Denied() bool { return d.Status != 0 }

// Decide turns the store's answers into a decision.
func (p *Plan) Decide() (d Decision) {
	if !p.asksStore() {
		return p.decideWithoutStore()
	}
	denied := p.longestDenial(true) >= 0
	for i := range p.uses {
		p.outcomes[i].Outcome = p.answeredOutcome(&p.uses[i], denied)
	}
	if !denied {
		d.Outcome, d.Client = p.admittedOutcome(), p.client
		if d.Degraded = d.Outcome == OutcomeDegradedLocal || d.Outcome == OutcomeDegradedAllowed; !d.Degraded {
			p.showLimit(&d, p.tightest(policy.HeadersX|policy.HeadersIETF|policy.HeadersNone))
		}
		return d
	}
	return p.denyByStore()
}

// asksStore reports whether the store decides the request.
func (p *Plan) asksStore() bool { return p.denial == denialNone && len(p.checks) > 0 }

// denyByStore decides a request that the store denies. If a penalty is in force, denyByStore
// reports it, because the limits might have room again by now. RetryAfter covers limits, too.
func (p *Plan) denyByStore() Decision {
	d := Decision{Outcome: OutcomeDenied, Status: statusDenied, Client: p.client, RetryAfter: p.retryAfter()}
	denying := p.longestDenial(false)
	if denying >= 0 {
		d.Rule = p.ruleOf(denying).name
	}
	if p.inPenalty() {
		d.Outcome = OutcomePenalized
		p.releaseShardTurns()
		return d
	}
	if d.Delay = p.delay(); d.Delay == 0 {
		p.releaseShardTurns()
	}
	d.Degraded = p.results[denying].Local
	if r := p.ruleOf(denying); !r.hidden && !d.Degraded {
		p.showLimit(&d, denying)
	}
	d.respond(p.ruleOf(denying))
	return d
}

// Degrade decides without the store, by the strictest on_error of the rules in play. As always,
// log_only rules deny nothing.
func (p *Plan) Degrade() Decision { return p.degrade(false) }

// Overload decides a request that cannot wait for a working store because too many others are
// waiting. Overload denies the request regardless of on_error, unless only log_only rules apply.
func (p *Plan) Overload() Decision { return p.degrade(true) }

// DeniesOverload reports whether Overload would deny the request. DeniesOverload changes nothing.
func (p *Plan) DeniesOverload() bool {
	for i := range p.uses {
		if p.uses[i].deniesUnanswered(true) {
			return true
		}
	}
	return false
}

// Fail decides after an error of the store. Fail calls Overload if [Overloads] reports true,
// otherwise Degrade.
func (p *Plan) Fail(err error) Decision { return p.degrade(Overloads(err)) }

// Overloads reports whether the store works although it has failed with err. The request is then
// denied as in an overload, because on_error is for a store that does not work.
// [counter.ErrInvalid] is such an error too: only the request can have caused it, and on_error
// might admit such requests uncounted again and again.
func Overloads(err error) bool {
	return errors.Is(err, counter.ErrOverloaded) || errors.Is(err, counter.ErrInvalid)
}

func (p *Plan) degrade(overload bool) Decision {
	if !p.asksStore() {
		return p.decideWithoutStore()
	}
	clear(p.results) // the store has left the results undefined
	d := Decision{Outcome: OutcomeDegradedAllowed, Client: p.client, Degraded: true}
	for i := range p.uses {
		if u := &p.uses[i]; d.Rule == "" && u.deniesUnanswered(overload) {
			d.Outcome, d.Status, d.Rule = OutcomeDegradedDenied, statusUnavailable, u.rule.name
		}
	}
	if overload && d.Denied() {
		d.RetryAfter = overloadWait
	}
	for i := range p.uses {
		switch u := &p.uses[i]; {
		case u.isPenalty():
			p.outcomes[i].Outcome = OutcomeNone
		case u.excused:
			p.outcomes[i].Outcome = OutcomeExempt
		case u.shadowMissing():
			p.outcomes[i].Outcome = OutcomeShadowDenied
		case d.Status != 0 && !u.deniesUnanswered(overload):
			p.outcomes[i].Outcome = OutcomeUncharged
		case u.unlimited:
			p.outcomes[i].Outcome = OutcomeAllowed
		default:
			p.outcomes[i].Outcome = d.Outcome
		}
	}
	return d
}

// ruleUse.deniesUnanswered reports whether the rule denies a request that the store has not
// answered. If the store is overloaded, a penalty denies the request too, because the client might
// have caused the overload.
func (u *ruleUse) deniesUnanswered(overload bool) bool {
	if u.excused || u.unlimited {
		return false
	}
	return u.rule.onError == counter.OnErrorDeny || overload && u.rule.action != policy.ActionLogOnly
}

// decideWithoutStore decides requests that are denied without the store, and requests without any
// check.
func (p *Plan) decideWithoutStore() (d Decision) {
	d.Client = p.client
	switch p.denial {
	case denialBlocked:
		d.Outcome, d.Status = OutcomeBlocked, statusForbidden
	case denialUnauthorized:
		d.Outcome, d.Status, d.Credential = OutcomeUnauthorized, statusUnauthorized, p.badCredential
	case denialUnchecked:
		d.Outcome, d.Status, d.RetryAfter, d.Degraded = OutcomeDegradedDenied, statusUnavailable, overloadWait, true
	case denialOversized:
		d.Outcome, d.Status = OutcomeOversized, p.oversized
	case denialMissing:
		d.Outcome, d.Status = OutcomeMissing, statusForbidden
	case denialTooManyChecks:
		d.Outcome, d.Status, d.Degraded = OutcomeDegradedDenied, statusUnavailable, true
	default:
		d.Outcome = p.uncountedOutcome()
	}
	for i := range p.uses {
		u := &p.uses[i]
		outcome := OutcomeUncharged
		switch {
		case u.isPenalty():
			outcome = OutcomeNone
		case u.excused:
			outcome = OutcomeExempt
		case u.shadowMissing():
			outcome = OutcomeShadowDenied
		case u.unlimited && p.denial == denialNone:
			outcome = OutcomeAllowed
		case p.deniesRequest(u):
			outcome = d.Outcome
			if d.Rule == "" {
				d.Rule = u.rule.name
			}
			if d.Outcome == OutcomeBlocked {
				d.respond(u.rule)
			}
		}
		p.outcomes[i].Outcome = outcome
	}
	p.releaseShardTurns()
	return d
}

// admittedOutcome returns the outcome of a request that was admitted by the store, or by this
// process in its place.
func (p *Plan) admittedOutcome() Outcome {
	outcome := OutcomeNone
	for i := range p.checks {
		switch {
		case p.results[i].Local && p.checks[i].OnError == counter.OnErrorLocal:
			return OutcomeDegradedLocal
		case p.results[i].Local:
			outcome = OutcomeDegradedAllowed
		case !p.penaltyAt(i):
			return OutcomeAllowed
		}
	}
	if outcome != OutcomeNone {
		return outcome
	}
	return p.uncountedOutcome() // only a penalty was checked
}

// uncountedOutcome returns the outcome of an admitted request for which no limit was checked.
func (p *Plan) uncountedOutcome() Outcome {
	outcome := OutcomeNone
	for i := range p.uses {
		switch u := &p.uses[i]; {
		case u.shadowMissing() || u.unlimited:
			return OutcomeAllowed
		case !u.isPenalty():
			outcome = OutcomeExempt
		}
	}
	return outcome
}

// shadowMissing reports whether the request lacks a dimension of a log_only rule with missing:
// deny.
func (u *ruleUse) shadowMissing() bool { return u.missing && u.rule.action == policy.ActionLogOnly }

// deniesRequest reports whether the rule is a reason for the plan's denial.
func (p *Plan) deniesRequest(u *ruleUse) bool {
	switch p.denial {
	case denialBlocked:
		return true // a block has removed every other use
	case denialUnauthorized, denialUnchecked:
		return u.rule == &noRule
	case denialOversized:
		return u.rule == &noRule || u.missing
	case denialMissing:
		return u.missing
	default:
		return u.checks[0] == u.checks[1] && !u.unlimited // there was no room for the checks of the rule
	}
}

// answeredOutcome returns the outcome of a rule whose checks the store has answered.
func (p *Plan) answeredOutcome(u *ruleUse, denied bool) Outcome {
	switch {
	case u.isPenalty():
		if p.results[u.checks[0]].Denied {
			return OutcomePenalized
		}
		return OutcomeNone
	case u.excused:
		return OutcomeExempt
	case u.shadowMissing():
		return OutcomeShadowDenied
	}
	for i := u.checks[0]; i < u.checks[1]; i++ {
		switch {
		case !p.results[i].Denied:
		case p.checks[i].Shadow:
			return OutcomeShadowDenied
		default:
			return OutcomeDenied
		}
	}
	switch {
	case denied:
		return OutcomeUncharged
	case u.checks[0] == u.checks[1] || !p.results[u.checks[0]].Local:
		return OutcomeAllowed
	case u.rule.onError == counter.OnErrorLocal:
		return OutcomeDegradedLocal
	default:
		return OutcomeDegradedAllowed
	}
}

// longestDenial returns the denying check with the longest wait, or the first of several with the
// same wait. The result is -1 if no check denies. If the argument penalties is false, the checks of
// penalties are ignored.
func (p *Plan) longestDenial(penalties bool) int {
	longest := -1
	for i := range p.results {
		if !p.results[i].Denied || p.checks[i].Shadow || p.penaltyAt(i) && !penalties {
			continue
		}
		if longest < 0 || p.results[i].Wait > p.results[longest].Wait {
			longest = i
		}
	}
	return longest
}

func (p *Plan) ruleOf(check int) *rule { return p.uses[p.asked[check].use].rule }

// showLimit fills in the decision's fields about a check's limit. For -1 it does nothing.
func (p *Plan) showLimit(d *Decision, check int) {
	if check < 0 {
		return
	}
	l := p.asked[check].limit
	d.Rule, d.Policy, d.Limit, d.shown = p.ruleOf(check).name, l.text.Name, l.wholeLimit(), check
	d.Remaining = p.Remaining(check)
	d.Used = d.Limit.Capacity() - d.Remaining
	d.Cost = p.Cost(check)
}

// Decision.respond sets the response that the denying rule defines.
func (d *Decision) respond(r *rule) {
	if d.Response = r.after.response; d.Response != nil && d.Response.Status != 0 {
		d.Status = d.Response.Status
	}
}

// retryAfter returns how long a denied client should wait, over all denying checks. For each check,
// this is the longer of the wait until the request would pass and the rule's retry_after, plus the
// rule's jitter. The result is Never if the cost can never pass.
func (p *Plan) retryAfter() (longest counter.Micros) {
	for i := range p.results {
		result := &p.results[i]
		if !result.Denied || p.checks[i].Shadow {
			continue
		}
		wait := result.Wait
		if after := &p.ruleOf(i).after; wait != counter.Never {
			wait = max(wait, after.retryAfter) + jitter(p.checks[i].Key, result.At, after.retryJitter)
		}
		longest = max(longest, wait)
	}
	return longest
}

// jitter returns a span from 0 to a maximum. The span depends only on the counter's
// key and the instant. So clients that are denied at the same time do not return at the same time.
// The jitter need not be unpredictable, so no random source is used.
func jitter(key []byte, at, most counter.Micros) counter.Micros {
	if most == 0 {
		return 0
	}
	hash := slim.FNV(key)
	for shift := 0; shift < 64; shift += 8 {
		hash = (hash ^ uint64(at)>>shift&0xff) * slim.FNVPrime
	}
	// FNV mixes low bits into high bits, so its low bits are weak. The high bits are random enough
	// here.
	return counter.Micros((hash ^ hash>>32) % uint64(most+1))
}
