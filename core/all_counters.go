// SPDX-License-Identifier: Apache-2.0

package core

import (
	"iter"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// AllCounters returns OpLook checks for every counter that a client has under a policy, and charges
// nothing. These counters include those of rules that do not match the request, and of rules that
// another rule of their group would beat. The client is identified as in Add. If the client's
// credential is denied, there are no checks.
//
// The checks come in pages of at most [counter.ChecksMax] checks. During an iteration, the plan has
// the checks of the current page. The plan is reset before each page. Decide must not be called on
// the plan. There is always a first page, even if it is empty, so that the plan contains the
// client. See AllCountersOf for the order.
func (p *Plan) AllCounters(rs *Ruleset, a policy.Attributes) iter.Seq[[]counter.Check] {
	return p.pages(func(from int) (next int) {
		p.who.Request.Read(a)
		if rs.disabled || p.identify(rs) {
			return 0
		}
		return p.addPage(rs, from)
	})
}

// AllCountersOf is AllCounters for a client whose identity is known. The request provides the other
// values that rules count by, for example its host.
//
// Each check asks how the store would answer a request for 1 unit. If the policy has penalties, the
// first check is for the client's penalty. The checks of rules with limits follow, in the order of
// the policy and for all shards. A page can end between two shards of a rule; the next page begins
// with the remaining ones. A rule is omitted if the request lacks a dimension of the rule and no
// substitute is defined. Counter describes the counter of a check.
func (p *Plan) AllCountersOf(rs *Ruleset, who policy.Identity, a policy.Attributes) iter.Seq[[]counter.Check] {
	return p.pages(func(from int) (next int) {
		p.who.Request.Read(a)
		if rs.disabled {
			return 0
		}
		p.identify(rs) // used only to determine the address, because the identity is given
		p.records.unresolved = p.records.unresolved[:0]
		p.who.Identity = who
		p.readRecords()
		return p.addPage(rs, from)
	})
}

// Plan.pages returns the pages of the plan. Before each page it resets the plan and calls add,
// which takes the position of a page and returns the position of the next, or 0 after the last.
func (p *Plan) pages(add func(from int) (next int)) iter.Seq[[]counter.Check] {
	return func(yield func([]counter.Check) bool) {
		for from, more := 0, true; more; more = from != 0 {
			p.Retry() // resets the plan, but keeps the directory
			from = add(from)
			if !yield(p.Checks()) {
				return
			}
		}
	}
}

// addPage appends OpLook checks from a position on. A position is the number of the rule, counted
// from 1, times ShardsMax, plus the shard. The result is the position of the first check that did
// not fit, or 0 if all did.
func (p *Plan) addPage(rs *Ruleset, from int) (next int) {
	if p.client.Kind == "" {
		p.client = p.who.Identity
	}
	p.clientPart = p.identityPart(&p.who.Identity)
	p.matched = p.matched[:0]
	first, shard := from/counter.ShardsMax, uint64(from%counter.ShardsMax)
	for _, index := range rs.enabled {
		if int(index)+1 >= first && len(rs.rules[index].limits) > 0 {
			p.matched = append(p.matched, index)
		}
	}
	if from == 0 {
		if guard := p.addGuard(rs); guard != 0 {
			p.checks[guard-1].Op = counter.OpLook
		}
	}
	for _, index := range p.matched {
		if int(index)+1 > first {
			shard = 0
		}
		if rest, ok := p.appendLooks(rs, index, shard); !ok {
			return (int(index)+1)*counter.ShardsMax + int(rest)
		}
	}
	return 0
}

// appendLooks appends OpLook checks for the client's counters of a rule, for all shards from the
// given one on. If the plan does not have room for all of them, ok is false and rest is the first
// shard that did not fit.
func (p *Plan) appendLooks(rs *Ruleset, index int32, shard uint64) (rest uint64, ok bool) {
	r := &rs.rules[index]
	if r.missing == policy.MissingSkip && !p.hasDimensions(r) || p.countsElsewhere(r) {
		return 0, true
	}
	set, of := p.limitsOf(r)
	if rs.granting != nil {
		set.limits = rs.granting.raise(p, rs, r, set.limits)
	}
	shards := shardsOf(set.limits)
	for ; shard < max(1, shards); shard++ {
		first, start := len(p.checks), len(p.text)
		if first+len(set.limits) > counter.ChecksMax {
			return shard, false
		}
		one := ruleUse{ruleset: rs, rule: r, whose: of, unlimited: set.unlimited, shards: shards, turn: shard}
		if !p.appendCounter(rs, &one) {
			p.text = p.text[:start]
			return 0, true
		}
		u := p.appendUse(rs, index)
		one.checks = u.checks
		*u = one
		p.askFor(u, set.limits, start, 0)
		for i := first; i < len(p.checks); i++ {
			p.checks[i].Op, p.checks[i].Cost = counter.OpLook, 1
		}
	}
	return 0, true
}

// countsElsewhere reports whether the rule counts per endpoint and none of its paths matches the
// request. No request is ever charged to the counter that such a rule would have for this request.
func (p *Plan) countsElsewhere(r *rule) bool {
	for i := range r.dims {
		if d := &r.dims[i]; d.kind == policy.PerEndpoint && p.value(r, d) == "" {
			return true
		}
	}
	return false
}

// Counter describes the counter of a check.
type Counter struct {
	Ruleset *Ruleset
	Rule    int    // the rule's index; -1 for the client's penalty, and then only Ruleset and Hidden are also set
	Policy  string // the limit's name in header fields
	Whose   string // whose limit it is: "the rule", "tier premium", "this client's own"
	Hidden  bool   // the limit is not shown to clients
	Own     bool   // the counter is the client's alone
	// Granted is the number of units that grants add to the limit.
	Granted int64
	// Limit is the limit that clients are told; nil for a penalty. Shards is the number of counters
	// that the limit is spread over, or 0. If Shards is not 0, the check is for one shard and its
	// part of the limit. The shards of a rule follow each other, and each has a check for every
	// limit of the rule. Shards whose checks do not fit into a page are on the next page.
	Limit  *counter.Limit
	Shards int
}

// Counter describes the counter of the plan's i-th check. Counter allocates if the limit belongs to
// a tier.
func (p *Plan) Counter(check int) Counter {
	use := p.asked[check].use
	c := Counter{Ruleset: p.outcomes[use].Ruleset, Rule: p.outcomes[use].Index, Hidden: true}
	if l := p.asked[check].limit; l != nil {
		u := &p.uses[use]
		c.Policy, c.Whose, c.Hidden = l.text.Name, p.explainWhose(u.whose), u.rule.hidden
		c.Limit, c.Shards, c.Granted = l.wholeLimit(), int(u.shards), p.grantedUnits(check)
		c.Own = p.countsClient(u.rule) || u.rule.missing == policy.MissingClient && p.clientPart != "" && !p.hasDimensions(u.rule)
	}
	return c
}
