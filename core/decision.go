// SPDX-License-Identifier: Apache-2.0

package core

// Outcome is what happens to a request, or what one rule made of it.
type Outcome uint8

// The outcomes. OutcomeNone is a request that no rule was for.
const (
	OutcomeNone            Outcome = iota
	OutcomeAllowed                 // within every limit
	OutcomeDenied                  // over a limit: 429
	OutcomeShadowDenied            // a rule only: over the limit of a log_only rule; the request goes on
	OutcomeBlocked                 // a block rule matched: 403
	OutcomeExempt                  // exempt or allowed by an allow rule
	OutcomeMissing                 // a dimension was missing and missing: deny says to refuse: 403
	OutcomeDegradedAllowed         // the store did not answer, on_error: allow
	OutcomeDegradedDenied          // the store did not answer, on_error: deny: 503
	OutcomeUncharged               // a rule only: it would have passed, but another refused the request
	outcomeCount
)

// OutcomeCount is how many outcomes there are, for tables indexed by Outcome.
const OutcomeCount = int(outcomeCount)

var outcomeNames = [...]string{"none", "allowed", "denied", "shadow_denied", "blocked", "exempt", "missing",
	"degraded_allowed", "degraded_denied", "uncharged"}

// String returns the outcome's name as it stands in metrics, logs and placeholders.
func (o Outcome) String() string { return outcomeNames[o] }

// Decision is what happens to a request and what is known about why. The zero Decision is a request that no rule was
// for. It carries what an audit row asks for, but for the latency, which the front measures.
type Decision struct {
	Outcome Outcome
	// Status is the HTTP status of a refusal; 0 if the request goes on.
	Status int
	// Rule is the name of the rule that refused, or whose limit is shown; "" if none is.
	Rule string
	// Policy is the policy name of that limit, as in RateLimit-Policy: the rule's name, with the window appended if the
	// rule has several limits.
	Policy string
	// Limit is its limit (nil if none is shown): Count, Capacity, Window.
	Limit *Limit
	// Remaining is what is left of it, and Used what has been consumed of it.
	Remaining, Used int64
	// RetryAfter is how long until the request would pass every limit: 0 if it did, Never if its cost can never pass.
	RetryAfter Micros
	// Delay is how long the request must wait before it goes on. Always 0 in this version.
	Delay Micros
	// Client is who was counted.
	Client Identity

	shown int // index of the check that Limit is of, -1 if none
}

// Refused reports whether the request must not go on.
func (d *Decision) Refused() bool { return d.Status != 0 }

// Fields are the response header fields of a decision; "" means that the field is absent.
type Fields struct {
	Limit      string // X-RateLimit-Limit
	Remaining  string // X-RateLimit-Remaining
	Reset      string // X-RateLimit-Reset: Unix seconds
	RateLimit  string // RateLimit
	Policy     string // RateLimit-Policy
	RetryAfter string // Retry-After: seconds
}

// Headers returns what the client is told, by the table in docs/policy.md. It allocates once.
func (p *Plan) Headers(d *Decision) Fields { panic("todo") }

// AppendProblem appends the body of a refusal, an application/problem+json document, to dst.
func (p *Plan) AppendProblem(dst []byte, d *Decision) []byte { panic("todo") }
