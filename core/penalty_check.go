// SPDX-License-Identifier: Apache-2.0

package core

import (
	"bytes"
	"strings"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// penaltyScope stands in place of a rule in the key of a client's penalty. No rule has this name.
// An example:
//
//	rl1:NAMESPACE:~penalty:{CLIENT}     rl1:shop:~penalty:{ip:192.0.2.7}
const penaltyScope = ":~penalty:"

// addGuard appends the check of the client's penalty and returns its number among the checks,
// counted from 1. addGuard returns 0 if the policy has no penalties, if no client was found, or if
// no rule is in play.
//
// Policies of one namespace that identify the client in the same way share the client's penalty
// counter. It is checked once, under the penalty of the policy that was added first.
func (p *Plan) addGuard(rs *Ruleset) int {
	if rs.penalty == nil || p.clientPart == "" || len(p.matched) == 0 {
		return 0
	}
	start := len(p.text)
	p.text = append(append(p.text, keyVersion...), ':')
	p.text = append(appendEscaped(p.text, rs.name), penaltyScope...)
	scope := len(p.text) - start
	p.text = append(append(append(p.text, '{'), p.clientPart...), '}')
	key := p.text[start:len(p.text):len(p.text)]
	if shared := p.guardOf(key); shared != 0 {
		return shared
	}
	if len(p.checks) >= counter.ChecksMax {
		p.denial = max(p.denial, denialTooManyChecks)
		return 0
	}
	u := p.appendUse(rs, policyItself)
	p.checks = append(p.checks, counter.Check{Key: key, ScopeLen: scope, Op: counter.OpTake, Penalty: rs.penalty, OnError: rs.onError,
		Source: p.who.Request.Source()})
	p.results = append(p.results, counter.Result{})
	p.asked = append(p.asked, checkOrigin{use: int32(len(p.uses) - 1)})
	u.checks[1] = int32(len(p.checks))
	return len(p.checks)
}

// guardOf returns the number of the penalty check with the key, or 0 if there is none. Only the
// first check of a policy can be a penalty check.
func (p *Plan) guardOf(key []byte) int {
	for i := range p.uses {
		if u := &p.uses[i]; u.isPenalty() && bytes.Equal(p.checks[u.checks[0]].Key, key) {
			return int(u.checks[0]) + 1
		}
	}
	return 0
}

// isPenalty reports whether the use is for the client's penalty rather than for a rule.
func (u *ruleUse) isPenalty() bool { return u.rule == &noRule && u.checks[0] < u.checks[1] }

// penaltyAt reports whether a check is for a penalty. Such a check has no limit and no rule.
func (p *Plan) penaltyAt(check int) bool { return p.checks[check].Penalty != nil }

// inPenalty reports whether a penalty is in force, including one that this request has caused.
func (p *Plan) inPenalty() bool {
	for i := range p.results {
		if p.results[i].Denied && p.penaltyAt(i) {
			return true
		}
	}
	return false
}

// Plan.violation returns the Guard and the Violation of a check of the rule; 0 and 0 if a denial by
// the check is not a violation. The argument guard is the number of the client's penalty check, and
// key is the key of the rule's check.
//
// Other clients can exhaust a shared limit, so a denial by it is not evidence against this client.
// Denials by throttle and log_only rules are not a sign of misuse.
func (p *Plan) violation(rs *Ruleset, r *rule, guard int, key []byte) (int, int64) {
	if guard == 0 || r.action != policy.ActionReject || !p.countsClient(r) {
		return 0, 0
	}
	if r.spread != nil {
		return guard, r.spread.violation(p, key)
	}
	return guard, violationOf(key)
}

// countsClient reports whether the rule counts this client separately: the rule's dimensions
// include the client, or the property by which the client was found. A client identified by an API
// key shares counters per user with the user's other keys, so such a counter does not count this
// client separately. But it does if the policy takes the user from the value that identifies the
// client, as in identify: [{attr: A}] with user: {attr: A}.
func (p *Plan) countsClient(r *rule) bool {
	for i := range r.dims {
		switch r.dims[i].kind {
		case policy.PerClient:
			return true
		case policy.PerUser:
			if p.who.Identity.User != "" && (isKind(p.who.Identity.Kind, "user") || p.who.Identity.APIKey == "" && p.who.Identity.User == p.who.Identity.ID) {
				return true
			}
		case policy.PerAPIKey:
			if p.who.Identity.APIKey != "" && isKind(p.who.Identity.Kind, "api_key") {
				return true
			}
		}
	}
	return false
}

// isKind reports whether an identity is of the kind, including identities whose ID was hashed
// because of its length.
func isKind(kind, want string) bool {
	return strings.HasPrefix(kind, want) && (len(kind) == len(want) || kind[len(want):] == policy.HashSuffix)
}

// violationOf returns the number that identifies a counter's denials among one client's
// violations: the FNV-1a hash of its key, folded to 52 bits, and never 0. Two counters of a client
// with the same number would count as one, which can only lower the number of violations.
func violationOf(key []byte) int64 {
	hash := slim.FNV(key)
	folded := int64(hash>>52) ^ int64(hash)&counter.ViolationMax
	return max(1, folded)
}
