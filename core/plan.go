// SPDX-License-Identifier: Apache-2.0

package core

import "net/netip"

// Attributes is a request as the front sees it: Caddy, Envoy and Envoy's rate limit protocol are three sources of it.
// Values are untrusted. Implementations need not be safe for concurrent use.
type Attributes interface {
	// Path is the original request path, before rewrites, still percent-encoded, without the query.
	Path() string
	// Method is the request method as sent.
	Method() string
	// Host is the request's host, with or without port.
	Host() string
	// Header returns a request header by its canonical name; several lines are joined by ", ".
	Header(name string) (value string, ok bool)
	// Peer is the address the client is counted by; the zero Addr if there is none.
	Peer() netip.Addr
	// Attr returns a value that the proxy itself knows.
	Attr(name string) (value string, ok bool)
}

// Identity is who is asking.
type Identity struct {
	Kind   string // "ip", "header.x-user", "attr.name"; "" if nobody was found
	ID     string // at most 255 bytes; a longer one is replaced by its hash, and Kind says so
	Tier   string // "" in this version
	Tenant string // "" in this version
	// Overrides are limits of this client's own, by rule name. Always nil in this version.
	Overrides map[string][]Limit
}

// Ruleset is a compiled policy. It is immutable and safe for concurrent use.
type Ruleset struct{ todo int }

// Compile checks the whole policy and builds its index. The error is [Problems], with every problem found.
func Compile(p Policy) (*Ruleset, error) { panic("todo") }

// Name returns the policy's namespace.
func (rs *Ruleset) Name() string { panic("todo") }

// Len returns the number of rules, disabled ones included; RuleName(i) is for i below it.
func (rs *Ruleset) Len() int { panic("todo") }

// RuleName returns the name of the i-th rule of the policy.
func (rs *Ruleset) RuleName(i int) string { panic("todo") }

// Plan is what one request asks of the store and what comes of it. The zero Plan is ready to use; reuse it after Reset,
// so that its buffers are. It must not be used concurrently.
//
//	plan.Reset()
//	plan.Add(ruleset, attributes)            // once per policy the request is under
//	if checks := plan.Checks(); len(checks) > 0 {
//		err = store.Take(ctx, checks, plan.Results())
//	}
//	decision := plan.Decide()                // or plan.Degrade() if err != nil
//	fields := plan.Headers(&decision)
type Plan struct{ todo int }

// Reset forgets the last request and keeps the buffers.
func (p *Plan) Reset() { panic("todo") }

// Add identifies the client, matches the policy's rules and appends their checks. Adding more than ChecksMax checks in
// all refuses the request (it cannot happen with one policy that compiled). It does not allocate once the plan's buffers
// have grown.
func (p *Plan) Add(rs *Ruleset, a Attributes) { panic("todo") }

// Checks returns what to ask the store; none means that no call is needed. Valid until Reset.
func (p *Plan) Checks() []Check { panic("todo") }

// Results returns the slice for the store's answers, as long as Checks.
func (p *Plan) Results() []Result { panic("todo") }

// Identity returns who is asking, as the first policy added found. Its strings are valid until Reset.
func (p *Plan) Identity() Identity { panic("todo") }

// Decide turns the store's answers into a decision.
func (p *Plan) Decide() Decision { panic("todo") }

// Degrade decides without the store: on_error of the limits the request is under, the strictest holds.
func (p *Plan) Degrade() Decision { panic("todo") }

// Outcomes says what became of each rule in play, for metrics and logs: valid after Decide or Degrade, until Reset.
func (p *Plan) Outcomes() []RuleOutcome { panic("todo") }

// RuleOutcome is what became of one rule in one request.
type RuleOutcome struct {
	Ruleset *Ruleset
	Index   int // of the rule in its Ruleset
	Outcome Outcome
}
