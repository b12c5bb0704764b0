// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"slices"
)

// Attributes is a request as the front sees it: Caddy, Envoy and Envoy's rate limit protocol are three sources of it.
// Values are untrusted. Implementations need not be safe for concurrent use.
type Attributes interface {
	// Path is the original request path, before rewrites, still percent-encoded, without the query.
	Path() string
	// Method is the request method as sent.
	Method() string
	// Host is the request's host, with or without port.
	Host() string
	// Header returns a request header by its canonical name; several lines are put together as JoinLines does.
	Header(name string) (value string, ok bool)
	// Query is the query string as sent, without the question mark.
	Query() string
	// Peer is the client's address as the front knows it, forwarded addresses taken into account as the front is set up
	// to; the zero Addr if there is none.
	Peer() netip.Addr
	// Remote is the address of whoever holds the connection, a proxy in front included; the zero Addr if there is none.
	Remote() netip.Addr
	// Now is the front's clock. It decides no counter: it is for what policies state in dates.
	Now() Micros
	// Attr returns a value that the proxy itself knows.
	Attr(name string) (value string, ok bool)
}

// Plan is what one request asks of the store and what comes of it. The zero Plan is ready to use; reuse it after Reset,
// so that its buffers are. It must not be used concurrently, nor copied once used.
//
//	plan.Reset()
//	plan.Add(ruleset, attributes)            // once per policy the request is under
//	if checks := plan.Checks(); len(checks) > 0 {
//		err = store.Take(ctx, checks, plan.Results())
//	}
//	decision := plan.Decide()                // or plan.Degrade() if err != nil
//	fields := plan.Headers(&decision)
type Plan struct {
	rulesets []*Ruleset
	request  request
	client   Identity // as the first policy added found
	asking   Identity // as the policy being added found
	// credentials are what became of every credential that was looked at.
	credentials []CredentialUse
	// badCredential is the state of the credential that the request is refused for; toldBy is the entry of a list that told
	// of the client, as the policy added last says. Nil: none did.
	badCredential CredentialState
	toldBy        *listed
	asker         Asker
	// clientPart is how the client that the policy being added found stands in keys; "" for nobody.
	clientPart string

	refusal   refusal
	oversized int // the status of refusalOversized
	uses      []use
	outcomes  []RuleOutcome // of uses
	checks    []Check
	results   []Result
	asked     []asked // of checks
	// throttled are the checks that requests may wait for, as last asked for.
	throttled []Throttled

	// text holds the keys and what the identity's strings point to; it only grows until Reset. Values, dimensions and
	// checks are bounded, so it is too: 64 keys of 8 escaped values make half a megabyte at worst.
	text    []byte
	out     []byte  // header fields while they are put together
	matched []int32 // rules that match
	winners []int32 // of each group the winner so far, plus one
	// replaced are the rules that others in play replace, in the policy being added.
	replaced []*rule
	parts    []part   // of descriptors
	trace    *trace   // for Explain; nil if nobody asked for it
	turns    spreader // of a rule with shards that is in play; nil: there is none
}

// use is a rule in play in a request.
type use struct {
	ruleset *Ruleset
	rule    *rule
	checks  [2]int32 // the first of its checks and the one after the last
	excused bool     // exempt, or an allow rule: nothing is asked
	missing bool     // a dimension is missing and missing: deny
	// unlimited says that the client's own limits, or those of its tier, are none: nothing is asked.
	unlimited bool
	whose     whose // limits are asked for
	// shards is over how many each of its counters is spread, 0 for none; the shard is the remainder of turn.
	shards, turn uint64
}

// asked says which limit a check is of.
type asked struct {
	use   int32
	limit *ruleLimit
}

// refusal says why a request is refused whatever the store would say.
type refusal uint8

const (
	refusalNone refusal = iota
	refusalCrowded
	refusalMissing
	refusalUnauthorized // a credential that was taken back, or an invalid one under on_invalid: deny
	refusalOversized    // it has more to be read than is read
	refusalBlocked      // the strongest
)

// Reset forgets the last request and keeps the buffers.
func (p *Plan) Reset() {
	p.request.attrs, p.request.unreadable = nil, 0
	p.client, p.asking, p.clientPart, p.refusal = Identity{}, Identity{}, "", refusalNone
	p.credentials, p.badCredential, p.toldBy = p.credentials[:0], CredentialAbsent, nil
	p.asker = Asker{}
	p.rulesets = p.rulesets[:0]
	p.uses, p.outcomes = p.uses[:0], p.outcomes[:0]
	p.checks, p.results, p.asked = p.checks[:0], p.results[:0], p.asked[:0]
	p.text, p.parts, p.trace = p.text[:0], p.parts[:0], nil
	p.turns = nil
}

// Hurry bounds how long verifiers may take for the credentials of the requests that are added until Reset: left is taken from,
// and may be shared by plans that are decided one after the other. Without it a verifier takes what it finds right.
func (p *Plan) Hurry(left *Micros) { p.asker.Left = left }

// Add identifies the client, matches the policy's rules and appends their checks. Adding a policy again does nothing.
// Adding more than ChecksMax checks in all refuses the request with 503; Compile refuses policies that alone would come
// to that, as far as it can tell from the policy. It does not allocate once the plan's buffers have grown.
func (p *Plan) Add(rs *Ruleset, a Attributes) {
	if slices.Contains(p.rulesets, rs) {
		return
	}
	p.rulesets = append(p.rulesets, rs)
	p.request.read(a)
	p.replaced = p.replaced[:0]
	if p.trace != nil {
		p.trace.add(p, rs)
		return
	}
	p.add(rs)
}

func (p *Plan) add(rs *Ruleset) {
	if rs.disabled {
		return
	}
	refused := p.identify(rs)
	if p.client.Kind == "" {
		p.client = p.asking
	}
	if p.refusal == refusalBlocked {
		return
	}
	if e := p.find(rs.block); e != nil {
		p.blockBy(rs, policyItself)
		return
	}
	if status := p.request.oversizedFor(rs); status != 0 {
		p.refuseOversized(rs, status)
		return
	}
	if p.match(rs); len(p.matched) == 0 {
		return
	}
	if p.trace != nil {
		p.trace.matched = append(p.trace.matched, p.matched...)
	}
	if rs.blocks && p.block(rs) {
		return
	}
	if refused {
		p.refuse(rs)
		return
	}
	if p.request.oversized != 0 && p.enforced(rs) {
		p.refuseOversized(rs, p.request.oversized)
		return
	}
	p.clientPart = p.identityPart(&p.asking)
	p.compete(rs)
	excused, guard := p.find(rs.exempt) != nil, 0
	if !excused {
		guard = p.guard(rs)
	}
	for _, index := range p.matched {
		p.enter(rs, index, excused, guard)
	}
}

// policyItself stands where the index of a rule would, for what the policy decides and none of its rules.
const policyItself = -1

// refuse refuses the request for its credential.
func (p *Plan) refuse(rs *Ruleset) {
	p.refusal = max(p.refusal, refusalUnauthorized)
	p.use(rs, policyItself)
}

// blockBy refuses the request: no other rule is in play then, whatever its policy.
func (p *Plan) blockBy(rs *Ruleset, index int32) {
	p.refusal = refusalBlocked
	p.passTurns()
	p.uses, p.outcomes = p.uses[:0], p.outcomes[:0]
	p.use(rs, index)
}

// block refuses the request if a rule that matches blocks. Then no other rule is in play, whatever its policy.
func (p *Plan) block(rs *Ruleset) bool {
	for _, index := range p.matched {
		if rs.rules[index].action == ActionBlock {
			p.blockBy(rs, index)
			return true
		}
	}
	return false
}

// passTurns gives back the turns of rules with shards that charged nothing.
//
//go:noinline
func (p *Plan) passTurns() {
	if p.turns != nil {
		p.turns.pass(p)
	}
}

// use puts a rule in play.
//
//go:noinline
func (p *Plan) use(rs *Ruleset, index int32) *use {
	next := int32(len(p.checks))
	u := use{ruleset: rs, rule: &noRule, checks: [2]int32{next, next}}
	if index >= 0 {
		u.rule = &rs.rules[index]
	}
	p.uses = append(p.uses, u)
	p.outcomes = append(p.outcomes, RuleOutcome{Ruleset: rs, Index: int(index)})
	return &p.uses[len(p.uses)-1]
}

// noRule stands for the rule where the policy itself decides.
var noRule = rule{hidden: true, group: -1}

// enter puts a rule in play and asks for its limits. guard is the number of the check that a refusal is recorded with.
func (p *Plan) enter(rs *Ruleset, index int32, excused bool, guard int) {
	u := p.use(rs, index)
	r := u.rule
	if u.excused = excused || r.action == ActionAllow; u.excused {
		return
	}
	limits := r.limits
	if r.tiers != nil || p.asking.Overrides != nil {
		var set limitSet
		set, u.whose = p.limitsOf(r)
		if u.unlimited = set.unlimited; u.unlimited {
			return
		}
		limits = set.limits
	}
	if len(p.checks)+len(limits) > ChecksMax {
		p.refusal = max(p.refusal, refusalCrowded)
		return
	}
	if r.spread != nil {
		if u.shards = shardsOf(limits); u.shards > 0 {
			r.spread.take(p, u)
		}
	}
	start := len(p.text)
	if !p.appendCounter(rs, u) {
		p.text = p.text[:start]
		u.missing = true
		switch {
		case r.action == ActionLogOnly:
		case p.request.oversized != 0:
			p.oversize(p.request.oversized)
		default:
			p.refusal = max(p.refusal, refusalMissing)
		}
		return
	}
	p.askFor(u, limits, start, guard)
}

// askFor appends the checks of a rule's limits. The key of its counters stands in the text from start.
func (p *Plan) askFor(u *use, limits []ruleLimit, start, guard int) {
	r, end := u.rule, len(p.text)
	cost := r.cost(&p.request)
	for i := range limits {
		l := &limits[i]
		if i > 0 {
			mark := len(p.text)
			p.text = append(p.text, p.text[start:end]...)
			start, end = mark, len(p.text)
		}
		p.text = append(p.text, l.tail...)
		p.checks = append(p.checks, Check{Key: p.text[start:len(p.text):len(p.text)], ScopeLen: len(r.scope),
			Limit: &l.limit, Op: OpTake, Shadow: r.action == ActionLogOnly, Cost: cost,
			Lease: r.leases && l.limit.leasable(r.after.settles), Refundable: r.after.settles, OnError: r.onError,
			Source: p.request.source()})
		c := &p.checks[len(p.checks)-1]
		if l.shard != nil {
			c.Whole = &l.shard.whole
		}
		if l.limit.calendar != 0 && u.ruleset.calendar != nil {
			c.Bounds = u.ruleset.calendar.bounds(&l.limit, p.request.attrs.Now())
		}
		if guard != 0 {
			c.Guard, c.Violation = p.violation(u.ruleset, r, guard, c.Key)
		}
		p.results = append(p.results, Result{})
		p.asked = append(p.asked, asked{use: int32(len(p.uses) - 1), limit: l})
	}
	u.checks[1] = int32(len(p.checks))
}

// Checks returns what to ask the store; none means that no call is needed. Valid until Reset.
func (p *Plan) Checks() []Check {
	if p.refusal != refusalNone {
		return nil
	}
	return p.checks
}

// Results returns the slice for the store's answers, as long as Checks.
func (p *Plan) Results() []Result {
	if p.refusal != refusalNone {
		return nil
	}
	return p.results
}

// Identity returns who is asking, as the first policy added found. Its strings are valid until Reset.
func (p *Plan) Identity() Identity { return p.client }

// CredentialUse is what became of one credential that a policy looked at.
type CredentialUse struct {
	Ruleset *Ruleset
	Method  int // the index in the policy's identify
	State   CredentialState
	// Identity is what the verifier said of a valid one, before a tenant or tier from elsewhere; nil of any other.
	Identity *Identity
	// Unchecked says that the verifier had no time for it: what it is worth is not known, and must not be remembered.
	Unchecked bool
}

// Credentials returns what became of every credential that was looked at, for metrics; absent ones are not listed.
// Valid until Reset.
func (p *Plan) Credentials() []CredentialUse { return p.credentials }

// UnreadableCosts returns how many costs were charged by the policy's number because the header of a trusted peer said
// none, or an absurd one, for metrics. Valid until Reset.
func (p *Plan) UnreadableCosts() int { return p.request.unreadable }

// Outcomes says what became of each rule in play, for metrics and logs: valid after Decide or Degrade, until Reset.
func (p *Plan) Outcomes() []RuleOutcome { return p.outcomes }

// RuleOutcome is what became of one rule in one request.
type RuleOutcome struct {
	Ruleset *Ruleset
	Index   int // of the rule in its Ruleset; -1 for what the policy itself decides: block, credentials, penalties
	Outcome Outcome
}
