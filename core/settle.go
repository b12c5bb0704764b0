// SPDX-License-Identifier: Apache-2.0

package core

import (
	"cmp"
	"slices"
	"strings"
)

// ruleAfter is what a rule does once it has decided: what the response makes of the charge, and what a refused client
// is answered.
type ruleAfter struct {
	costAfter               *CostAfter // with its defaults filled in
	countIf, refundOn       []Statuses
	settles                 bool // any of the above is set
	costs                   bool // the rule says something of costs
	throttle                *Throttle
	response                *Response
	retryAfter, retryJitter Micros
}

// compileAfter fills in what the rule does once it has decided. It shares no memory with the source.
func (r *rule) compileAfter(source *Rule) {
	a := &r.after
	if source.CostAfter != nil {
		c := *source.CostAfter
		c.Header = canonicalHeader(c.Header)
		c.Default = cmp.Or(c.Default, c.Estimate)
		c.Unread = cmp.Or(c.Unread, c.Max, c.Default)
		c.Max = cmp.Or(c.Max, CountMax)
		a.costAfter = &c
	}
	a.countIf, a.refundOn = slices.Clone(source.CountIf), slices.Clone(source.RefundOn)
	a.settles = a.costAfter != nil || len(a.countIf)+len(a.refundOn) > 0
	a.costs = a.costAfter != nil || len(source.Cost) > 0
	if source.Throttle != nil && source.Action == ActionThrottle {
		t := *source.Throttle
		a.throttle = &t
	}
	a.response = compileResponse(source.Response)
	a.retryAfter, a.retryJitter = source.RetryAfter, source.RetryJitter
}

// counts reports whether a request with a response of that status counts: if count_if is silent or names it, and
// refund_on does not.
func (a *ruleAfter) counts(status int) bool {
	return (len(a.countIf) == 0 || covers(a.countIf, status)) && !covers(a.refundOn, status)
}

func covers(list []Statuses, status int) bool {
	for _, s := range list {
		if status >= s.From && status <= s.To {
			return true
		}
	}
	return false
}

// Settlement is what remains to be done about the charges of a request that went on, once its response is known: to
// charge more, or to give back. It owns its memory, so it outlives the plan; used again, it uses its buffers again. The
// zero Settlement has nothing to do. It must not be used concurrently.
//
// What is charged in the end, for each rule with cost_after, count_if or refund_on, is
//
//	what was reserved    if there was no response: the proxy, or the connection behind it, died
//	0                    if the status is in refund_on, or if there is a count_if and the status is not in it
//	the response's cost  if the rule has a cost_after: its default if the response says none, or an absurd one, and its
//	                     unread if the response could not be read to its end
//	what was reserved    otherwise
//
// but for what a counter cannot hold: it goes into debt by one window's count at most, and what comes back too late, to a
// window that is over, is dropped.
type Settlement struct {
	rules   []settling
	charges []settledCharge
	text    []byte // the keys of charges
	shown   int32  // the charge that X-RateLimit-Cost tells of, -1 for none
	paths   []string
	names   []string
	checks  []Check
}

// settling is a rule whose charges wait for the response.
type settling struct {
	ruleset *Ruleset
	index   int32 // of the rule there
	after   *ruleAfter
	charges [2]int32 // the first and the one after the last
}

// settledCharge is what is known of a charge. Nothing in it belongs to the plan.
type settledCharge struct {
	key      [2]int32 // where it is in the settlement's text
	scopeLen int
	limit    Limit
	granted  int64
	receipt  Micros
	bounds   Bounds
	calendar bool // there are bounds
}

func (s *Settlement) reset() {
	s.rules, s.charges, s.text, s.checks = s.rules[:0], s.charges[:0], s.text[:0], s.checks[:0]
	s.shown = -1
}

// Settlement fills in what remains to be done about the request after it was admitted, and reports whether anything
// does. Call it after Decide. It does not allocate when nothing does. After Degrade nothing does: what the store charged
// is not known then, and a charge of unknown outcome is never given back.
func (p *Plan) Settlement(s *Settlement) bool {
	s.reset()
	for i := range p.uses {
		if u := &p.uses[i]; u.rule.after.settles && !u.excused && chargedBy(p.outcomes[i].Outcome) {
			p.keepCharges(s, u, p.outcomes[i].Index)
		}
	}
	return len(s.rules) > 0
}

// Expect fills in what the response will be asked for if the request is admitted, and reports whether that is anything: for
// a front that must know before Decide. Until Settlement has filled in the rest, Paths and Awaits can be asked.
func (p *Plan) Expect(s *Settlement) bool {
	s.reset()
	for i := range p.uses {
		if u := &p.uses[i]; u.rule.after.settles && u.checks[0] < u.checks[1] {
			s.rules = append(s.rules, settling{after: &u.rule.after})
		}
	}
	return len(s.rules) > 0
}

// chargedBy reports whether a rule of that outcome was asked about and may have been charged.
func chargedBy(o Outcome) bool {
	return o == OutcomeAllowed || o == OutcomeDelayed || o == OutcomeShadowDenied
}

// keepCharges takes over what a rule charged, which has that index in its ruleset.
func (p *Plan) keepCharges(s *Settlement, u *use, index int) {
	first, shown := int32(len(s.charges)), -1
	for i := u.checks[0]; i < u.checks[1]; i++ {
		c, result := &p.checks[i], &p.results[i]
		if result.Granted <= 0 {
			continue // of a log_only rule, one limit may have passed and another not
		}
		start := int32(len(s.text))
		s.text = append(s.text, c.Key...)
		charge := settledCharge{key: [2]int32{start, int32(len(s.text))}, scopeLen: c.ScopeLen, limit: *c.Limit,
			granted: result.Granted, receipt: result.Receipt}
		if c.Bounds != nil {
			charge.bounds, charge.calendar = *c.Bounds, true
		}
		if shown < 0 && u.rule.after.costs {
			shown = p.shownCost()
		}
		if int(i) == shown {
			s.shown = int32(len(s.charges))
		}
		s.charges = append(s.charges, charge)
	}
	if end := int32(len(s.charges)); end > first {
		s.rules = append(s.rules, settling{ruleset: u.ruleset, index: int32(index), after: &u.rule.after,
			charges: [2]int32{first, end}})
	}
}

// shownCost returns the check whose cost an admitted request is told in X-RateLimit-Cost, -1 if none is.
func (p *Plan) shownCost() int {
	if shown := p.tightest(HeadersX | HeadersIETF | HeadersNone); shown >= 0 && p.shows(shown, HeadersX) {
		return shown
	}
	return p.tightest(HeadersX)
}

// Answer is the response to a request as a settlement sees it.
type Answer interface {
	// Status is the response's status; 0 if there was no response.
	Status() int
	// Header returns a response header by its canonical name.
	Header(name string) (value string, ok bool)
	// JSON returns the number at the path in the body, as it is written there; ok is false if there is none. Behind
	// [UnreadMark] it is what was read of a body that could not be read to its end, or nothing.
	JSON(path string) (value string, ok bool)
}

// UnreadMark stands before a number of which a client can have brought about that it is not the last, or is none. Header
// returns it as well where a field may have been in the trailers. With a status of 0 it says that the client did not wait for
// the answer.
const UnreadMark = ">"

// Paths returns the paths in the body that the settlement needs; none means that nobody need read the body. Valid until
// the settlement is filled in again.
func (s *Settlement) Paths() []string {
	s.paths = s.paths[:0]
	for i := range s.rules {
		if c := s.rules[i].after.costAfter; c != nil && c.JSON != "" && !slices.Contains(s.paths, c.JSON) {
			s.paths = append(s.paths, c.JSON)
		}
	}
	return s.paths
}

// Headers returns the canonical names of the response headers that the settlement needs, for a front that hands them on.
// Valid until the settlement is filled in again.
func (s *Settlement) Headers() []string {
	s.names = s.names[:0]
	for i := range s.rules {
		if c := s.rules[i].after.costAfter; c != nil && c.Header != "" && !slices.Contains(s.names, c.Header) {
			s.names = append(s.names, c.Header)
		}
	}
	return s.names
}

// Awaits reports whether a response header that a cost is read from is not in the answer so far, so that it may yet come
// in the trailers.
func (s *Settlement) Awaits(a Answer) bool {
	for i := range s.rules {
		c := s.rules[i].after.costAfter
		if c == nil || c.Header == "" || !s.rules[i].after.counts(a.Status()) {
			continue
		}
		if _, ok := a.Header(c.Header); !ok {
			return true
		}
	}
	return false
}

// CostNow returns what the request costs under the limit that the client is shown, as far as it is known once the
// response's header is: the cost for X-RateLimit-Cost in place of the estimate. ok is false if the settlement does not
// change it, or if it stands in the body.
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
		case after.costAfter != nil && after.costAfter.JSON != "" && after.counts(status):
			return 0, false
		}
		cost, _ = after.final(a, s.charges[s.shown].granted)
		return cost, true
	}
	return 0, false
}

// Checks returns what to ask the store, and how many of the rules' costs could not be learned from the answer and were
// replaced by their default. Call it once: a charge must not be given back twice, so a second call returns nothing.
// Without checks there is nothing to do. The checks are valid until the settlement is filled in again.
//
// The boundaries of calendar windows are those of the request. A response that comes more than a period later finds the
// store answering [ErrStale]; then what was reserved stands, for all rules of the request.
func (s *Settlement) Checks(a Answer) (checks []Check, unreadable int) {
	s.checks = s.checks[:0]
	for i := range s.rules {
		r := &s.rules[i]
		first := r.charges[0]
		if first == r.charges[1] {
			continue // nothing is charged yet, see Expect
		}
		cost, said := r.after.final(a, s.charges[first].granted)
		if !said {
			unreadable++
		}
		for j := first; j < r.charges[1]; j++ {
			s.settle(&s.charges[j], cost)
		}
	}
	s.rules = s.rules[:0]
	return s.checks, unreadable
}

// final returns what a request is charged in the end for which so much was reserved, and whether the answer said all that
// it was asked for. The answer is asked for a cost only if the request counts.
func (a *ruleAfter) final(answer Answer, reserved int64) (cost int64, said bool) {
	status := answer.Status()
	switch {
	case status != 0 && !a.counts(status):
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
	case status == 0 && unread:
		return max(reserved, a.costAfter.Unread), false
	case status == 0:
		return reserved, true
	case unread:
		seen, _ := costNumber(text[len(UnreadMark):], a.costAfter.Max)
		return max(seen, a.costAfter.Unread), false
	case ok:
		if cost, ok = costNumber(text, a.costAfter.Max); ok {
			return cost, true
		}
	}
	return a.costAfter.Default, false
}

// settle asks for the difference between a charge and what it is to be.
func (s *Settlement) settle(c *settledCharge, cost int64) {
	key := s.text[c.key[0]:c.key[1]:c.key[1]]
	check := Check{Key: key, ScopeLen: c.scopeLen, Limit: &c.limit, Refundable: true}
	if c.calendar {
		check.Bounds = &c.bounds
	}
	switch {
	case cost > c.granted:
		check.Op, check.Cost = OpForce, cost-c.granted
	case cost < c.granted:
		check.Op, check.Cost, check.Receipt = OpGiveBack, c.granted-cost, c.receipt
	default:
		return
	}
	s.checks = append(s.checks, check)
}
