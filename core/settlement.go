// SPDX-License-Identifier: Apache-2.0

package core

import (
	"cmp"
	"slices"
	"strings"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// ruleAfter holds the settings of a rule that apply after the decision: how the response changes
// the charge, and how a denied client is answered.
type ruleAfter struct {
	costAfter               *policy.CostAfter // its defaults are filled in
	countIf, refundOn       []policy.Statuses
	settles                 bool // any of the fields above is set
	onError                 counter.OnError
	costs                   bool // the rule has a cost setting
	throttle                *policy.Throttle
	response                *policy.Response
	retryAfter, retryJitter counter.Micros
}

// compileAfter fills in r.after, which then shares no memory with the source.
func (r *rule) compileAfter(source *policy.Rule) {
	a := &r.after
	if source.CostAfter != nil {
		c := *source.CostAfter
		c.Header = match.CanonicalHeader(c.Header)
		c.Default = cmp.Or(c.Default, c.Estimate)
		c.Unread = cmp.Or(c.Unread, c.Max, c.Default)
		c.Max = cmp.Or(c.Max, counter.CountMax)
		a.costAfter = &c
	}
	a.countIf, a.refundOn = slices.Clone(source.CountIf), slices.Clone(source.RefundOn)
	a.settles = a.costAfter != nil || len(a.countIf)+len(a.refundOn) > 0
	a.costs, a.onError = a.costAfter != nil || len(source.Cost) > 0, r.onError
	if source.Throttle != nil && source.Action == policy.ActionThrottle {
		t := *source.Throttle
		a.throttle = &t
	}
	a.response = compileResponse(source.Response)
	a.retryAfter, a.retryJitter = source.RetryAfter, source.RetryJitter
}

// countsStatus reports whether a request whose response has the status is charged: count_if is
// empty or contains it, and refund_on does not, or the status is [StatusUnread].
func (a *ruleAfter) countsStatus(status int) bool {
	return status == StatusUnread || (len(a.countIf) == 0 || policy.Covers(a.countIf, status)) && !policy.Covers(a.refundOn, status)
}

// Settlement adjusts the charges of an admitted request once its response is known, by a further
// charge or a refund. A Settlement owns its memory, so it can outlive the plan, and it reuses its
// buffers. The zero Settlement has nothing to settle. A Settlement must not be used concurrently.
//
// The final charge, for each rule with cost_after, count_if or refund_on, is
//
//	the reserved units   if there was no response: the proxy or its upstream connection died
//	0                    if the status is in refund_on, or is missing from a count_if
//	the response's cost  if the rule has cost_after: cost_after.default if the response states no
//	                     valid cost, cost_after.unread if the response was not read to its end
//	the reserved units   otherwise
//
// A counter cannot always record this exactly: its debt is at most one window's count, and a refund
// to a window that is over is dropped.
type Settlement struct {
	rules   []settlingRule
	charges []settledCharge
	text    []byte // the keys of charges
	shown   int32  // the charge that X-RateLimit-Cost shows; -1 if there is none
	source  uint32
	paths   []string
	names   []string
	checks  []counter.Check
}

// settlingRule is a rule whose charges will be settled when the response is known.
type settlingRule struct {
	_ slim.Incomparable

	ruleset *Ruleset
	index   int32 // of the rule in its ruleset
	after   *ruleAfter
	charges [2]int32 // the half-open range of its charges
}

// settledCharge is one charge. A settledCharge shares no memory with the plan.
type settledCharge struct {
	_ slim.Incomparable

	key      [2]int32 // its position in the settlement's text
	scopeLen int
	limit    counter.Limit
	granted  int64
	receipt  counter.Micros
	bounds   counter.Bounds
	calendar bool // the bounds are set
}

func (s *Settlement) reset() {
	s.rules, s.charges, s.text, s.checks = s.rules[:0], s.charges[:0], s.text[:0], s.checks[:0]
	s.shown, s.source = -1, 0
}

// Settlement fills in s for a request that was admitted, and reports whether anything needs to be
// settled. Call it after Decide. If nothing needs to be settled, it does not allocate. After
// Degrade there is never anything to settle, because nothing is known about the charges.
func (p *Plan) Settlement(s *Settlement) bool {
	s.reset()
	s.source = p.Source()
	for i := range p.uses {
		if u := &p.uses[i]; u.rule.after.settles && !u.excused && mayHaveCharged(p.outcomes[i].Outcome) {
			p.keepCharges(s, u, p.outcomes[i].Index)
		}
	}
	return len(s.rules) > 0
}

// Expect fills s with the parts of the response that the settlement will need if the request is
// admitted, and reports whether there are any. It is meant for fronts that must know this before
// Decide. Until Settlement fills in the rest, only Source, Paths, Headers and Awaits may be called.
func (p *Plan) Expect(s *Settlement) bool {
	s.reset()
	s.source = p.Source()
	for i := range p.uses {
		if u := &p.uses[i]; u.rule.after.settles && u.checks[0] < u.checks[1] {
			s.rules = append(s.rules, settlingRule{after: &u.rule.after})
		}
	}
	return len(s.rules) > 0
}

// mayHaveCharged reports whether a rule with the outcome might have been charged.
func mayHaveCharged(o Outcome) bool {
	switch o {
	case OutcomeAllowed, OutcomeDelayed, OutcomeShadowDenied, OutcomeDegradedAllowed, OutcomeDegradedLocal:
		return true
	}
	return false
}

// keepCharges copies the charges of a rule with the given index in its ruleset.
func (p *Plan) keepCharges(s *Settlement, u *ruleUse, index int) {
	first, shown := int32(len(s.charges)), -1
	for i := u.checks[0]; i < u.checks[1]; i++ {
		c, result := &p.checks[i], &p.results[i]
		if result.Granted <= 0 {
			continue // under a log_only rule, this limit denied and charged nothing
		}
		start := int32(len(s.text))
		s.text = append(s.text, c.Key...)
		charge := settledCharge{key: [2]int32{start, int32(len(s.text))}, scopeLen: c.ScopeLen, limit: *c.Limit,
			granted: result.Granted, receipt: result.Receipt}
		if c.Bounds != nil {
			charge.bounds, charge.calendar = *c.Bounds, true
		}
		if shown < 0 && u.rule.after.costs && !result.Local {
			shown = p.shownCost()
		}
		if int(i) == shown {
			s.shown = int32(len(s.charges))
		}
		s.charges = append(s.charges, charge)
	}
	if end := int32(len(s.charges)); end > first {
		s.rules = append(s.rules, settlingRule{ruleset: u.ruleset, index: int32(index), after: &u.rule.after,
			charges: [2]int32{first, end}})
	}
}

// shownCost returns the check whose cost an admitted request shows in X-RateLimit-Cost; -1 if there
// is none.
func (p *Plan) shownCost() int {
	if shown := p.tightest(policy.HeadersX | policy.HeadersIETF | policy.HeadersNone); shown >= 0 && p.showsCheck(shown, policy.HeadersX) {
		return shown
	}
	return p.tightest(policy.HeadersX)
}

// Answer is the response to a request, as a settlement reads it.
type Answer interface {
	// Status is the response's status; 0 if there was no response, or StatusUnread. For a gRPC
	// response, Status is what response.StatusOfGRPC returns.
	Status() int
	// Header returns a response header by its canonical name.
	Header(name string) (value string, ok bool)
	// JSON returns the number at the path in the body, as it is written there. The result ok is
	// false if no number is there. If the body could not be read to its end, the value is
	// [UnreadMark] followed by the number found so far, if any.
	JSON(path string) (value string, ok bool)
}

// StatusUnread is the status of a response whose status could not be read, or does not show whether
// the client has caused it. A request with such a response is charged, whatever count_if and
// refund_on contain.
const StatusUnread = 1

// UnreadMark marks a cost that might be wrong because the client might have prevented it from being
// read. UnreadMark precedes the last number that was read, if any. Header also returns it if a
// field might have been in trailers that were not read. If the status is 0, the mark means that the
// client did not wait for the response.
const UnreadMark = ">"

// Source returns the number of the client's address, as in [counter.Check]. It is 0 for a
// settlement that was read from the compact form.
func (s *Settlement) Source() uint32 { return s.source }

// Paths returns the paths in the body that the settlement needs; if there are none, the body need
// not be read. The result is valid until the settlement is filled in again.
func (s *Settlement) Paths() []string {
	s.paths = s.paths[:0]
	for i := range s.rules {
		if c := s.rules[i].after.costAfter; c != nil && c.JSON != "" && !slices.Contains(s.paths, c.JSON) {
			s.paths = append(s.paths, c.JSON)
		}
	}
	return s.paths
}

// Headers returns the canonical names of the response headers that the settlement needs, for a
// front that forwards them. The result is valid until the settlement is filled in again.
func (s *Settlement) Headers() []string {
	s.names = s.names[:0]
	for i := range s.rules {
		if c := s.rules[i].after.costAfter; c != nil && c.Header != "" && !slices.Contains(s.names, c.Header) {
			s.names = append(s.names, c.Header)
		}
	}
	return s.names
}

// NeedsStatus reports whether a rule has count_if or refund_on. Otherwise the charge does not
// depend on the status of the response.
func (s *Settlement) NeedsStatus() bool {
	for i := range s.rules {
		if a := s.rules[i].after; len(a.countIf)+len(a.refundOn) > 0 {
			return true
		}
	}
	return false
}

// Awaits reports whether a needed response header has not arrived yet and might still arrive in the
// trailers.
func (s *Settlement) Awaits(a Answer) bool {
	for i := range s.rules {
		c := s.rules[i].after.costAfter
		if c == nil || c.Header == "" || !s.rules[i].after.countsStatus(a.Status()) {
			continue
		}
		if _, ok := a.Header(c.Header); !ok {
			return true
		}
	}
	return false
}

// CostNow returns the request's cost under the shown limit, if the response's header determines it.
// X-RateLimit-Cost shows this cost in place of the estimate. The result ok is false if the
// settlement does not change the cost, or if the cost is in the body.
func (s *Settlement) CostNow(a Answer) (cost int64, ok bool) {
	for i := range s.rules {
		r := &s.rules[i]
		if s.shown < r.charges[0] || s.shown >= r.charges[1] {
			continue
		}
		status, after := a.Status(), r.after
		switch {
		case status == 0:
			return 0, false
		case after.costAfter != nil && after.costAfter.JSON != "" && after.countsStatus(status):
			return 0, false
		}
		cost, _ = after.finalCharge(a, s.charges[s.shown].granted)
		return cost, true
	}
	return 0, false
}

// Checks returns the checks for the store, and the number of rules whose cost could not be read
// from the response. If there are no checks, there is nothing to do. Call it once: a second call
// returns nothing, because a charge must not be refunded twice. The checks are valid until the
// settlement is filled in again.
//
// The boundaries of calendar windows are from the time of the request. If the response arrives more
// than one period after that, the store returns [counter.ErrStale] for the whole call. So send the
// checks of calendar windows that are over in calls of their own.
func (s *Settlement) Checks(a Answer) (checks []counter.Check, unreadable int) {
	s.checks = s.checks[:0]
	for i := range s.rules {
		r := &s.rules[i]
		first := r.charges[0]
		if first == r.charges[1] {
			continue // it was filled in by Expect, so nothing is charged yet
		}
		cost, said := r.after.finalCharge(a, s.charges[first].granted)
		if !said {
			unreadable++
		}
		for j := first; j < r.charges[1]; j++ {
			s.settleCharge(&s.charges[j], r.after.onError, cost)
		}
	}
	s.rules = s.rules[:0]
	return s.checks, unreadable
}

// finalCharge returns the final charge of a request with the given reserved units, and whether the
// response had a valid cost if one was needed. finalCharge reads a cost only if the request counts.
func (a *ruleAfter) finalCharge(answer Answer, reserved int64) (cost int64, said bool) {
	status := answer.Status()
	switch {
	case status != 0 && !a.countsStatus(status):
		return 0, true
	case a.costAfter == nil:
		return reserved, true
	}
	text, ok := "", false
	if a.costAfter.Header != "" {
		text, ok = answer.Header(a.costAfter.Header)
	} else {
		text, ok = answer.JSON(a.costAfter.JSON)
	}
	switch unread := strings.HasPrefix(text, UnreadMark); {
	case status == 0 && !unread:
		return reserved, true
	case unread:
		seen, _ := costNumber(text[len(UnreadMark):], a.costAfter.Max)
		if seen = max(seen, a.costAfter.Unread); status == 0 {
			seen = max(seen, reserved)
		}
		return seen, false
	case ok:
		if cost, ok = costNumber(text, a.costAfter.Max); ok {
			return cost, true
		}
	}
	return a.costAfter.Default, false
}

// settleCharge appends a check for the difference between a charge and its final cost. A charge
// without a receipt might not have been made; its refund has no effect.
func (s *Settlement) settleCharge(c *settledCharge, onError counter.OnError, cost int64) {
	key := s.text[c.key[0]:c.key[1]:c.key[1]]
	check := counter.Check{Key: key, ScopeLen: c.scopeLen, Limit: &c.limit, Refundable: true,
		OnError: onError}
	if c.calendar {
		check.Bounds = &c.bounds
	}
	switch {
	case cost > c.granted:
		check.Op, check.Cost = counter.OpForce, cost-c.granted
	case cost < c.granted:
		check.Op, check.Cost, check.Receipt = counter.OpRefund, c.granted-cost, c.receipt
	default:
		return
	}
	s.checks = append(s.checks, check)
}
