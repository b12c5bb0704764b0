// SPDX-License-Identifier: Apache-2.0

package core

import "errors"

// Outcome is what happens to a request, or what one rule made of it.
type Outcome uint8

// The outcomes. OutcomeNone is a request that no rule was for.
const (
	OutcomeNone            Outcome = iota
	OutcomeAllowed                 // within every limit
	OutcomeDenied                  // over a limit: 429
	OutcomeShadowDenied            // a rule only: a log_only rule would refuse; the request goes on
	OutcomeBlocked                 // a block rule matched: 403
	OutcomeExempt                  // exempt or allowed by an allow rule
	OutcomeMissing                 // a dimension was missing and missing: deny says to refuse: 403
	OutcomeDegradedAllowed         // the store did not answer, on_error: allow
	OutcomeDegradedDenied          // the store did not answer, on_error: deny, or too many wait for it: 503
	OutcomeUncharged               // a rule only: another rule refused the request, and this one charged nothing
	OutcomeUnauthorized            // a credential was taken back, or is invalid under on_invalid: deny: 401
	OutcomePenalized               // the client has a penalty: 429
	OutcomeDelayed                 // a rule only: a throttle rule let the request wait, and then go on
	OutcomeDegradedLocal           // the store did not answer, and there was room in this process' share: on_error: local
	outcomeCount
)

// OutcomeCount is how many outcomes there are, for tables indexed by Outcome.
const OutcomeCount = int(outcomeCount)

var outcomeNames = [...]string{"none", "allowed", "denied", "shadow_denied", "blocked", "exempt", "missing",
	"degraded_allowed", "degraded_denied", "uncharged", "unauthorized", "penalized", "delayed", "degraded_local"}

// String returns the outcome's name as it stands in metrics, logs and placeholders.
func (o Outcome) String() string { return outcomeNames[o] }

// The statuses of refusals.
const (
	statusUnauthorized = 401
	statusForbidden    = 403
	statusDenied       = 429
	statusUnavailable  = 503
)

// overloadWait is how long a client is told to wait that was refused since too many others wait for the store.
const overloadWait = Second

// Decision is what happens to a request and what is known about why. The zero Decision is a request that no rule was
// for. It carries what an audit row asks for, but for the latency, which the front measures. The strings of Client are
// valid until the plan is reset, everything else for good.
type Decision struct {
	Outcome Outcome
	// Status is the HTTP status of a refusal; 0 if the request goes on.
	Status int
	// Rule is the name of the rule that refused, or whose limit is shown; "" if none is.
	Rule string
	// Policy is the policy name of that limit, as in RateLimit-Policy: the rule's name, with the window appended if the
	// rule has several limits; "" if no limit is shown.
	Policy string
	// Limit is its limit (nil if none is shown): Count, Capacity, Window.
	Limit *Limit
	// Remaining is what is left of it, and Used what has been consumed of it.
	Remaining, Used int64
	// RetryAfter is how long the client is told to wait: until the request would pass every limit, or longer if a rule
	// that refuses says so (retry_after, retry_jitter). 0 if it passed, or if nothing is known of it, Never if its cost can
	// never pass.
	RetryAfter Micros
	// Delay is, of a refusal, how long to wait before the same checks are worth asking again, and then Decide: of a request
	// that only throttle rules refuse. 0 means that the refusal is final. A front that cannot wait refuses, after
	// Plan.GiveUp, as one does where the wait was in vain.
	Delay Micros
	// Credential is what is wrong with the credential, if that is why the request is refused.
	Credential CredentialState
	// Response is what the rule that refused says to answer; nil: the problem document.
	Response *Response
	// Cost is what the request costs under the limit that is shown, 0 if its rule says nothing of costs.
	Cost int64
	// Client is who was counted.
	Client Identity
	// Degraded says that the store's counters had no part in it: on_error decided, or there were too many of them.
	Degraded bool

	shown int // index of the check that Limit is of, if there is one
}

// Refused reports whether the request must not go on.
func (d *Decision) Refused() bool { return d.Status != 0 }

// Decide turns the store's answers into a decision.
func (p *Plan) Decide() Decision {
	if d, settled := p.settle(); settled {
		return d
	}
	refused := p.refusing(true) >= 0
	for i := range p.uses {
		p.outcomes[i].Outcome = p.answered(&p.uses[i], refused)
	}
	if !refused {
		d := Decision{Outcome: p.admitted(), Client: p.client}
		if d.Degraded = d.Outcome == OutcomeDegradedLocal; !d.Degraded {
			p.show(&d, p.tightest(HeadersX|HeadersIETF|HeadersNone))
		}
		return d
	}
	return p.denied()
}

// denied decides a request that the store refuses. A penalty is told of rather than the limits, which may have room by
// now; the wait is that for all of them.
func (p *Plan) denied() Decision {
	d := Decision{Outcome: OutcomeDenied, Status: statusDenied, Client: p.client, RetryAfter: p.retryAfter()}
	refusing := p.refusing(false)
	if refusing >= 0 {
		d.Rule = p.ruleOf(refusing).name
	}
	if p.penalized() {
		d.Outcome = OutcomePenalized
		p.passTurns()
		return d
	}
	if d.Delay = p.delay(); d.Delay == 0 {
		p.passTurns()
	}
	d.Degraded = p.results[refusing].Local
	if r := p.ruleOf(refusing); !r.hidden && !d.Degraded {
		p.show(&d, refusing)
	}
	d.respond(p.ruleOf(refusing))
	return d
}

// Degrade decides without the store: on_error of the limits the request is under, the strictest holds. A log_only rule
// refuses nothing, here neither.
func (p *Plan) Degrade() Decision { return p.degrade(false) }

// Overload decides a request for which there was no room among those that wait for the store, though it answers: it is
// refused, whatever on_error says, unless only log_only rules are for it.
func (p *Plan) Overload() Decision { return p.degrade(true) }

// Fail decides by the error of the store: Overload or Degrade.
func (p *Plan) Fail(err error) Decision { return p.degrade(errors.Is(err, ErrOverloaded)) }

func (p *Plan) degrade(overload bool) Decision {
	if d, settled := p.settle(); settled {
		return d
	}
	d := Decision{Outcome: OutcomeDegradedAllowed, Client: p.client, Degraded: true}
	for i := range p.uses {
		if u := &p.uses[i]; d.Rule == "" && u.fails(overload) {
			d.Outcome, d.Status, d.Rule = OutcomeDegradedDenied, statusUnavailable, u.rule.name
		}
	}
	if overload && d.Refused() {
		d.RetryAfter = overloadWait
	}
	for i := range p.uses {
		switch u := &p.uses[i]; {
		case u.guards():
			p.outcomes[i].Outcome = OutcomeNone
		case u.excused:
			p.outcomes[i].Outcome = OutcomeExempt
		case u.shadowMissing():
			p.outcomes[i].Outcome = OutcomeShadowDenied
		case d.Status != 0 && !u.fails(overload):
			p.outcomes[i].Outcome = OutcomeUncharged
		case u.unlimited:
			p.outcomes[i].Outcome = OutcomeAllowed
		default:
			p.outcomes[i].Outcome = d.Outcome
		}
	}
	return d
}

// fails reports whether the rule refuses a request that the store has not answered. A penalty does too when the store is
// overloaded: the client may have caused that.
func (u *use) fails(overload bool) bool {
	if u.excused || u.unlimited {
		return false
	}
	return u.rule.onError == OnErrorDeny || overload && u.rule.action != ActionLogOnly
}

// settle decides what needs no store: refusals, and requests that no limit is for.
func (p *Plan) settle() (d Decision, settled bool) {
	d.Client = p.client
	if p.refusal == refusalNone && len(p.checks) > 0 {
		return d, false
	}
	switch p.refusal {
	case refusalBlocked:
		d.Outcome, d.Status = OutcomeBlocked, statusForbidden
	case refusalUnauthorized:
		d.Outcome, d.Status, d.Credential = OutcomeUnauthorized, statusUnauthorized, p.badCredential
	case refusalMissing:
		d.Outcome, d.Status = OutcomeMissing, statusForbidden
	case refusalCrowded:
		d.Outcome, d.Status, d.Degraded = OutcomeDegradedDenied, statusUnavailable, true
	default:
		d.Outcome = p.uncounted()
	}
	for i := range p.uses {
		u := &p.uses[i]
		outcome := OutcomeUncharged
		switch {
		case u.guards():
			outcome = OutcomeNone
		case u.excused:
			outcome = OutcomeExempt
		case u.shadowMissing():
			outcome = OutcomeShadowDenied
		case u.unlimited && p.refusal == refusalNone:
			outcome = OutcomeAllowed
		case p.refuses(u):
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
	p.passTurns()
	return d, true
}

// admitted returns the outcome of a request that the store lets pass, or what stands in for it.
func (p *Plan) admitted() Outcome {
	for i := range p.checks {
		switch {
		case p.results[i].Local:
			return OutcomeDegradedLocal
		case !p.penalty(i):
			return OutcomeAllowed
		}
	}
	return p.uncounted() // the store was asked for a penalty only
}

// uncounted returns the outcome of a request that goes on and that no limit is for.
func (p *Plan) uncounted() Outcome {
	outcome := OutcomeNone
	for i := range p.uses {
		switch u := &p.uses[i]; {
		case u.shadowMissing() || u.unlimited:
			return OutcomeAllowed
		case !u.guards():
			outcome = OutcomeExempt
		}
	}
	return outcome
}

// shadowMissing reports whether the rule would refuse the request for want of a dimension, but is log_only.
func (u *use) shadowMissing() bool { return u.missing && u.rule.action == ActionLogOnly }

// refuses reports whether the rule is one of those that the plan's refusal is by.
func (p *Plan) refuses(u *use) bool {
	switch p.refusal {
	case refusalBlocked:
		return true // nothing else is in play
	case refusalUnauthorized:
		return u.rule == &noRule
	case refusalMissing:
		return u.missing
	default:
		return u.checks[0] == u.checks[1] && !u.unlimited // crowded out
	}
}

// answered says what became of a rule that the store was asked about.
func (p *Plan) answered(u *use, denied bool) Outcome {
	switch {
	case u.guards():
		if p.results[u.checks[0]].Refused {
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
		case !p.results[i].Refused:
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
	case u.rule.onError == OnErrorLocal:
		return OutcomeDegradedLocal
	default:
		return OutcomeDegradedAllowed
	}
}

// refusing returns the check that refuses longest, the first of equals, or -1 if none does; without penalties, of the
// checks of limits only.
func (p *Plan) refusing(penalties bool) int {
	longest := -1
	for i := range p.results {
		if !p.results[i].Refused || p.checks[i].Shadow || p.penalty(i) && !penalties {
			continue
		}
		if longest < 0 || p.results[i].Wait > p.results[longest].Wait {
			longest = i
		}
	}
	return longest
}

// tightest returns, of the limits shown to clients by policies with one of the families, the one that the fewest such
// requests are left of, of equals the one that resets later, then the first; -1 if there is none.
func (p *Plan) tightest(families HeaderFamilies) int {
	best, fewest := -1, int64(0)
	for i := range p.asked {
		if !p.shows(i, families) {
			continue
		}
		left := p.left(i) / max(1, p.checks[i].Cost)
		if best < 0 || left < fewest || left == fewest && p.results[i].Reset > p.results[best].Reset {
			best, fewest = i, left
		}
	}
	return best
}

// shows reports whether a check's limit is shown to clients by a policy with one of the families. A penalty has none.
func (p *Plan) shows(check int, families HeaderFamilies) bool {
	u := &p.uses[p.asked[check].use]
	return p.asked[check].limit != nil && !u.rule.hidden && u.ruleset.families&families != 0
}

func (p *Plan) ruleOf(check int) *rule { return p.uses[p.asked[check].use].rule }

// show makes the decision tell of a check's limit; none for -1.
func (p *Plan) show(d *Decision, check int) {
	if check < 0 {
		return
	}
	l := p.asked[check].limit
	d.Rule, d.Policy, d.Limit, d.shown = p.ruleOf(check).name, l.policy, l.told(), check
	d.Remaining = p.left(check)
	d.Used = d.Limit.Capacity() - d.Remaining
	d.Cost = p.costOf(check)
}

// costOf returns what a check charges, 0 if its rule says nothing of costs.
func (p *Plan) costOf(check int) int64 {
	if !p.ruleOf(check).after.costs {
		return 0
	}
	return p.checks[check].Cost
}
