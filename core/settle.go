// SPDX-License-Identifier: Apache-2.0

package core

// ruleAfter is what a rule says of requests that it has decided: what its response makes of the charge, and what a
// refused client is answered.
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
}

// after checks what a rule says of responses: cost_after, count_if, refund_on, response, retry_after, retry_jitter.
func (v *verifier) after(at string, r *Rule) {
}

// Settlement is what remains to be done about the charges of a request that went on, once its response is known: to
// charge more, or to give back. It owns its memory, so it outlives the plan. The zero Settlement has nothing to do. It
// must not be used concurrently.
type Settlement struct{}

// Settlement fills in what remains to be done about the request after it was admitted, and reports whether anything
// does. Call it after Decide. It does not allocate when nothing does.
func (p *Plan) Settlement(s *Settlement) bool { return false }

// Answer is the response to a request as a settlement sees it.
type Answer interface {
	// Status is the response's status; 0 if there was no response.
	Status() int
	// Header returns a response header.
	Header(name string) (value string, ok bool)
	// JSON returns the number at the path in the body, as it is written there; ok is false if it could not be read.
	JSON(path string) (value string, ok bool)
}

// Paths returns the paths in the body that the settlement needs; none means that nobody need read the body.
func (s *Settlement) Paths() []string { return nil }

// Checks returns what to ask the store, and how many of the rules' costs could not be learned from the answer and were
// replaced by their default. Call it once: a charge must not be given back twice. Without checks there is nothing to do.
func (s *Settlement) Checks(a Answer) (checks []Check, unreadable int) { return nil, 0 }
