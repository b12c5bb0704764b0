// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"
	"unsafe"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/internal/identify"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// Plan holds the checks that one request sends to the store, and their results. The zero Plan is
// ready to use. A Plan can be reused after Reset, which keeps its buffers. A Plan must not be used
// concurrently, nor copied after first use.
//
//	plan.Reset()
//	plan.Add(ruleset, attributes)            // once per policy that applies to the request
//	if checks := plan.Checks(); len(checks) > 0 {
//		err = store.Take(ctx, checks, plan.Results())
//	}
//	decision := plan.Decide()                // or plan.Fail(err) if err != nil
//	fields := plan.Headers(&decision)
type Plan struct {
	rulesets []*Ruleset
	who      identify.Client // the client as found by the policy that is being added
	client   policy.Identity // the client as found by the policy that was added first
	records  records         // the client's records in the directory
	// credentials are the credentials that were read, with their states.
	credentials []CredentialUse
	// badCredential is the state of the credential that causes the denial.
	badCredential policy.CredentialState
	// blockedBy is the entry of the policy's list "block" that denies the request; "" if none does.
	blockedBy string
	// clientPart is the client that the policy being added has found, as written in keys; "" if it
	// found no client.
	clientPart string

	denial    denial
	oversized int // the status of denialOversized
	uses      []ruleUse
	outcomes  []RuleOutcome // of uses
	checks    []counter.Check
	results   []counter.Result
	asked     []checkOrigin // of checks
	// throttled is the last result of Throttled.
	throttled []Throttled

	// text holds the keys, and the bytes that the identity's strings point to. Until Reset, the
	// text never shrinks. The text is bounded, like the lengths of values and the numbers of
	// dimensions and checks: 64 keys of 8 escaped values take at most half a megabyte.
	text    []byte
	matched []int32 // the rules that match
	winners []int32 // the index of the winner of each group so far, plus one
	// replaced are the rules that other rules of the policy being added replace.
	replaced []*rule
	parts    []part     // of descriptors
	trace    *planTrace // for Explain; nil without Trace
	rotation sharding   // set if a rule with shards applies, otherwise nil
	// endpoint is the endpoint for the current reading of the path while a rule is added to the
	// plan. At other times it is "".
	endpoint string
}

// ruleUse is a rule that applies to a request.
type ruleUse struct {
	_ slim.Incomparable

	ruleset *Ruleset
	rule    *rule
	checks  [2]int32 // the half-open range of its checks
	excused bool     // the client is exempt, or an allow rule applies: there are no checks
	missing bool     // a dimension is missing, under missing: deny
	// unlimited reports whether the client's own limits, or those of its tier, are empty; there are
	// no checks then.
	unlimited bool
	whose     limitOwner // the owner of the limits in use
	// shards is the number of shards of each counter, 0 for none. The shard is turn modulo shards.
	shards, turn uint64
}

// checkOrigin holds the rule and the limit of a check.
type checkOrigin struct {
	use   int32
	limit *ruleLimit
}

// denial is a reason to deny a request, whatever the store answers. Higher values take
// precedence.
type denial uint8

const (
	denialNone denial = iota
	denialTooManyChecks
	denialMissing
	denialUnauthorized // a revoked credential, or an invalid one under on_invalid: deny
	// a credential that could not be verified in time, under a policy that depends on it
	denialUnchecked
	denialOversized // the path or a header field is too long to be compared
	denialBlocked   // takes precedence over all others
)

// Reset forgets the last request and keeps the buffers. Inlining is disabled to keep the filter
// small.
//
//go:noinline
func (p *Plan) Reset() {
	p.who.Reset()
	p.client, p.clientPart, p.denial = policy.Identity{}, "", denialNone
	p.credentials, p.badCredential = p.credentials[:0], policy.CredentialAbsent
	p.rulesets = p.rulesets[:0]
	p.uses, p.outcomes = p.uses[:0], p.outcomes[:0]
	p.checks, p.results, p.asked = p.checks[:0], p.results[:0], p.asked[:0]
	p.text, p.parts, p.trace = p.text[:0], p.parts[:0], nil
	p.rotation, p.blockedBy = nil, ""
	p.records.reset()
}

// Hurry limits the time that verifiers may spend on credentials of requests added until Reset.
// Verifiers subtract the time that they use from *left. Plans that are decided one after the other
// can share this variable. Without Hurry, each verifier applies its own bound.
func (p *Plan) Hurry(left *counter.Micros) { p.who.Asker.Left = left }

// AcceptExpired makes Add accept, until Reset, tokens that expired a short time ago.
// AcceptExpired is meant for reports of usage: the token of a client can expire during a stream.
func (p *Plan) AcceptExpired() { p.who.Asker.Past = true }

// Add identifies the client, matches the policy's rules and appends their checks. Adding the same
// policy again does nothing. A request that needs more than ChecksMax checks for all policies is
// denied (503). Compile rejects a policy if it finds that some request needs more than that under
// this policy alone. Once the plan's buffers have grown, Add does not allocate.
func (p *Plan) Add(rs *Ruleset, a policy.Attributes) {
	if slices.Contains(p.rulesets, rs) {
		return
	}
	p.rulesets = append(p.rulesets, rs)
	p.who.Request.Read(a)
	p.replaced = p.replaced[:0]
	if p.trace != nil {
		p.trace.add(p, rs)
		return
	}
	p.addRuleset(rs)
}

// addRuleset does the work of Add for one ruleset. The request has been read before.
func (p *Plan) addRuleset(rs *Ruleset) {
	if rs.disabled {
		return
	}
	denied := p.identify(rs)
	if p.client.Kind == "" {
		p.client = p.who.Identity
	}
	if p.denial == denialBlocked {
		return
	}
	if p.records.blocked || p.who.Find(rs.block) != nil {
		p.blockBy(rs, policyItself)
		return
	}
	if status := oversizedFor(&p.who.Request, rs); status != 0 {
		p.denyOversized(rs, status)
		return
	}
	if p.isUnchecked(rs) {
		p.denial = max(p.denial, denialUnchecked)
		p.appendUse(rs, policyItself)
		return
	}
	if p.matchRules(rs); len(p.matched) == 0 {
		return
	}
	if p.trace != nil {
		p.trace.matched = append(p.trace.matched, p.matched...)
	}
	if rs.blocks && p.applyBlock(rs) {
		return
	}
	if denied {
		p.denyCredential(rs)
		return
	}
	if p.who.Request.Oversized != 0 && p.isEnforced(rs) {
		p.denyOversized(rs, p.who.Request.Oversized)
		return
	}
	p.clientPart = p.identityPart(&p.who.Identity)
	p.chooseWinners(rs)
	excused, guard := p.records.exempt || p.who.Find(rs.exempt) != nil, 0
	if !excused {
		guard = p.addGuard(rs)
	}
	for _, index := range p.matched {
		p.enterEndpoints(rs, index, excused, guard)
	}
}

// Plan.identify finds the client of the request that was read last, and the client's records. It
// records the states of the client's credentials, and reports whether the request is denied because
// of one of them.
func (p *Plan) identify(rs *Ruleset) (denied bool) {
	bad := p.who.Identify(&rs.who)
	p.readRecords()
	for _, use := range p.who.Uses {
		p.credentials = append(p.credentials, CredentialUse{Ruleset: rs, Method: use.Method, State: use.State,
			Identity: use.Identity, Unchecked: use.Unchecked})
	}
	p.who.Uses = p.who.Uses[:0]
	if bad == policy.CredentialAbsent {
		return false
	}
	if p.denial != denialUnauthorized { // otherwise an earlier policy has already denied the request
		p.badCredential = bad
	}
	return true
}

// textSince returns the text appended to the plan's text after the offset mark. Until Reset, the
// text never shrinks.
func (p *Plan) textSince(mark int) string {
	b := p.text[mark:]
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// policyItself is the index in an outcome that belongs to the policy itself rather than to a rule.
const policyItself = -1

// denyCredential denies the request because of its credential.
func (p *Plan) denyCredential(rs *Ruleset) {
	p.denial = max(p.denial, denialUnauthorized)
	p.appendUse(rs, policyItself)
}

// blockBy blocks the request because of a rule or, if index is policyItself, a list or a record. No
// other rule of any policy is then in play.
func (p *Plan) blockBy(rs *Ruleset, index int32) {
	p.denial = denialBlocked
	p.releaseShardTurns()
	p.uses, p.outcomes = p.uses[:0], p.outcomes[:0]
	switch p.blockedBy = ""; {
	case index != policyItself:
	case p.records.blocked:
		p.blockedBy = blockedByRecord
	default:
		p.blockedBy = p.who.Entry.At
	}
	p.appendUse(rs, index)
}

// BlockedBy returns the entry of a policy's list "block" that denies the request, such as
// "block[2]"; "" if none does.
func (p *Plan) BlockedBy() string { return p.blockedBy }

// applyBlock blocks the request if a matching rule has the action block. No other rule of any
// policy is then in play.
func (p *Plan) applyBlock(rs *Ruleset) bool {
	for _, index := range p.matched {
		if rs.rules[index].action == policy.ActionBlock {
			p.blockBy(rs, index)
			return true
		}
	}
	return false
}

// releaseShardTurns gives back the shard turns of rules that charged nothing.
//
//go:noinline
func (p *Plan) releaseShardTurns() {
	if p.rotation != nil {
		p.rotation.pass(p)
	}
}

// appendUse appends a use of the rule, or of the policy itself if index is negative.
//
//go:noinline
func (p *Plan) appendUse(rs *Ruleset, index int32) *ruleUse {
	next := int32(len(p.checks))
	u := ruleUse{ruleset: rs, rule: &noRule, checks: [2]int32{next, next}}
	if index >= 0 {
		u.rule = &rs.rules[index]
	}
	p.uses = append(p.uses, u)
	p.outcomes = append(p.outcomes, RuleOutcome{Ruleset: rs, Index: int(index)})
	return &p.uses[len(p.uses)-1]
}

// noRule stands for the rule in a use by the policy itself.
var noRule = rule{hidden: true, group: -1}

// enterEndpoints puts a rule in play once for each endpoint of the request. Servers may read one
// path in more than one way. A rule that counts per endpoint charges the endpoint according to each
// reading, so that a client cannot choose the counter by spelling the path differently.
func (p *Plan) enterEndpoints(rs *Ruleset, index int32, excused bool, guard int) {
	r := &rs.rules[index]
	if len(p.who.Request.Readings) > 1 && r.countsPerEndpoint() {
		entered := false
		for i := range p.who.Request.Readings {
			if p.endpoint = r.when.NewEndpoint(&p.who.Request, i); p.endpoint != "" {
				p.enterRule(rs, index, excused, guard)
				entered = true
			}
		}
		if p.endpoint = ""; entered {
			return
		}
	}
	p.enterRule(rs, index, excused, guard)
}

// enterRule puts a rule in play and appends its checks. The argument guard is the number of the
// penalty check that records the rule's denials.
func (p *Plan) enterRule(rs *Ruleset, index int32, excused bool, guard int) {
	u := p.appendUse(rs, index)
	r := u.rule
	if u.excused = excused || r.action == policy.ActionAllow; u.excused {
		return
	}
	limits := r.limits
	if r.tiers != nil || p.who.Identity.Overrides != nil || p.records.overridden > 0 {
		var set limitSet
		set, u.whose = p.limitsOf(r)
		if u.unlimited = set.unlimited; u.unlimited {
			return
		}
		limits = set.limits
		if rs.granting != nil {
			limits = rs.granting.raise(p, rs, r, limits)
		}
	}
	if len(p.checks)+len(limits) > counter.ChecksMax {
		p.denial = max(p.denial, denialTooManyChecks)
		return
	}
	if r.spread != nil {
		if u.shards = shardsOf(limits); u.shards > 0 {
			r.spread.selectShard(p, u)
		}
	}
	start := len(p.text)
	if !p.appendCounter(rs, u) {
		p.text = p.text[:start]
		u.missing = true
		switch {
		case r.action == policy.ActionLogOnly:
		case p.who.Request.Oversized != 0:
			p.oversize(p.who.Request.Oversized)
		default:
			p.denial = max(p.denial, denialMissing)
		}
		return
	}
	p.askFor(u, limits, start, guard)
}

// askFor appends the checks of a rule's limits. Their keys begin with the text from the offset
// start on.
func (p *Plan) askFor(u *ruleUse, limits []ruleLimit, start, guard int) {
	r, end := u.rule, len(p.text)
	cost := r.cost(&p.who.Request)
	for i := range limits {
		l := &limits[i]
		if i > 0 {
			mark := len(p.text)
			p.text = append(p.text, p.text[start:end]...)
			start, end = mark, len(p.text)
		}
		p.text = append(p.text, l.tail...)
		p.checks = append(p.checks, counter.Check{Key: p.text[start:len(p.text):len(p.text)], ScopeLen: len(r.scope),
			Limit: &l.limit, Op: counter.OpTake, Shadow: r.action == policy.ActionLogOnly, Cost: cost,
			Lease: r.leases && l.limit.LeasableWhen(r.after.settles), Refundable: r.after.settles, OnError: r.onError,
			Source: p.who.Request.Source()})
		c := &p.checks[len(p.checks)-1]
		l.adjust(c)
		if l.shard != nil {
			c.UnshardedLimit = &l.shard.whole
		}
		if l.limit.Calendar() != 0 && u.ruleset.calendar != nil {
			c.Bounds = u.ruleset.calendar.bounds(&l.limit, p.who.Request.Attrs.Now())
		}
		if guard != 0 {
			c.Guard, c.Violation = p.violation(u.ruleset, r, guard, c.Key)
		}
		p.results = append(p.results, counter.Result{})
		p.asked = append(p.asked, checkOrigin{use: int32(len(p.uses) - 1), limit: l})
	}
	u.checks[1] = int32(len(p.checks))
}

// Checks returns the checks for the store; if there are none, no call of the store is needed. The
// result is valid until Reset.
func (p *Plan) Checks() []counter.Check {
	if p.denial != denialNone {
		return nil
	}
	return p.checks
}

// Results returns the slice for the store's answers. Results has the same length as Checks.
func (p *Plan) Results() []counter.Result {
	if p.denial != denialNone {
		return nil
	}
	return p.results
}

// Identity returns the client as found by the policy that was added first. The identity's strings
// are valid until Reset.
func (p *Plan) Identity() policy.Identity { return p.client }

// CredentialUse is one credential that a policy read, and its state.
type CredentialUse struct {
	Ruleset *Ruleset
	Method  int // the index in the policy's list "identify"
	State   policy.CredentialState
	// Identity is the verifier's result for a valid credential, without a tenant or tier from
	// another source. Identity is nil for any other credential.
	Identity *policy.Identity
	// Unchecked reports that the verifier had no time for the credential. The credential's state is
	// unknown, and must not be cached.
	Unchecked bool
}

// Credentials returns the credentials that were read, with their states, for metrics. Absent
// credentials are not listed. The result is valid until Reset.
func (p *Plan) Credentials() []CredentialUse { return p.credentials }

// CredentialsSeen returns the number of credentials read so far. If a verifier calls it, the
// credential that it is verifying is not counted yet.
func (p *Plan) CredentialsSeen() int { return len(p.credentials) + len(p.who.Uses) }

// UnreadableCosts returns, for metrics, how often the policy's own number was charged because the
// header of a trusted peer had no valid cost. The result is valid until Reset.
func (p *Plan) UnreadableCosts() int { return p.who.Request.Unreadable }

// Outcomes returns the outcome of each rule in play, for metrics and logs. The result is valid
// after Decide or Degrade, until Reset.
func (p *Plan) Outcomes() []RuleOutcome { return p.outcomes }

// RuleOutcome is the outcome of one rule for one request.
type RuleOutcome struct {
	Ruleset *Ruleset
	// Index is the index of the rule in its Ruleset; -1 if the policy itself decides (block,
	// credentials, penalties).
	Index   int
	Outcome Outcome
}
