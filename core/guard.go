// SPDX-License-Identifier: Apache-2.0

package core

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// penaltyScope is what stands for the rule in the key of a client's penalty; no rule is called so:
//
//	rl1:NAMESPACE:~penalty:{CLIENT}     rl1:shop:~penalty:{ip:192.0.2.7}
const penaltyScope = ":~penalty:"

// guard appends the check of the client's penalty and returns its number among the checks, counted from 1; 0 if the
// policy has no penalties, if nobody was found, or if no rule is in play.
//
// Policies of one namespace that know the client by the same name share the client's record. It is asked for once, and the
// penalty of the policy that was added first is the one that holds.
func (p *Plan) guard(rs *Ruleset) int {
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
	if len(p.checks) >= ChecksMax {
		p.refusal = max(p.refusal, refusalCrowded)
		return 0
	}
	u := p.use(rs, policyItself)
	p.checks = append(p.checks, Check{Key: key, ScopeLen: scope, Op: OpTake, Penalty: rs.penalty, OnError: rs.onError,
		Source: p.request.source()})
	p.results = append(p.results, Result{})
	p.asked = append(p.asked, asked{use: int32(len(p.uses) - 1)})
	u.checks[1] = int32(len(p.checks))
	return len(p.checks)
}

// guardOf returns the number of the check of a penalty that has the key, 0 if there is none. Only the first check of each
// policy can be one.
func (p *Plan) guardOf(key []byte) int {
	for i := range p.uses {
		if u := &p.uses[i]; u.guards() && bytes.Equal(p.checks[u.checks[0]].Key, key) {
			return int(u.checks[0]) + 1
		}
	}
	return 0
}

// guards reports whether what is in play is no rule, but the client's penalty.
func (u *use) guards() bool { return u.rule == &noRule && u.checks[0] < u.checks[1] }

// penalty reports whether a check is of a penalty: it has no limit then, and no rule.
func (p *Plan) penalty(check int) bool { return p.checks[check].Penalty != nil }

// penalized returns whether a penalty is in force, be it since this very request.
func (p *Plan) penalized() bool {
	for i := range p.results {
		if p.results[i].Refused && p.penalty(i) {
			return true
		}
	}
	return false
}

// violation returns in whose record a refusal by a check of the rule counts, and under which number; 0 and 0 if it is no
// violation. guard is the number of the client's penalty, key is the check's.
//
// A limit that others share is exhausted by others, so it says nothing of this client. One that requests wait for, or
// that only reports, refuses nobody for misbehaving.
func (p *Plan) violation(rs *Ruleset, r *rule, guard int, key []byte) (int, int64) {
	if guard == 0 || r.action != ActionReject || !p.countsClient(r) {
		return 0, 0
	}
	if r.spread != nil {
		return guard, r.spread.violation(p, key)
	}
	return guard, violationOf(key)
}

// countsClient reports whether the rule counts this client apart from others: per holds the client, or what the client
// was found by. A user may be found behind an API key, and then shares what is per user with the user's other keys. One that
// the policy takes from elsewhere may be what the client was found by, as in identify: [{attr: A}] with user: {attr: A}.
func (p *Plan) countsClient(r *rule) bool {
	for i := range r.dims {
		switch r.dims[i].kind {
		case PerClient:
			return true
		case PerUser:
			if p.asking.User != "" && (isKind(p.asking.Kind, "user") || p.asking.APIKey == "" && p.asking.User == p.asking.ID) {
				return true
			}
		case PerAPIKey:
			if p.asking.APIKey != "" && isKind(p.asking.Kind, "api_key") {
				return true
			}
		}
	}
	return false
}

// isKind reports whether an identity's kind is that one, be it with an ID that was too long.
func isKind(kind, want string) bool {
	return strings.HasPrefix(kind, want) && (len(kind) == len(want) || kind[len(want):] == hashSuffix)
}

// violationOf returns the number that a counter's refusals have among one client's violations: the FNV-1a hash of its
// key, folded to 52 bits, and never 0. Two of a client's few counters that shared a number would pass for one, which errs
// towards fewer violations.
func violationOf(key []byte) int64 {
	hash := fnv(key)
	folded := int64(hash>>52) ^ int64(hash)&ViolationMax
	return max(1, folded)
}

// fnvPrime is the prime of the 64-bit FNV hash.
const fnvPrime = 1099511628211

// fnv returns the 64-bit FNV-1a hash. It is for numbers that nobody gains from choosing.
func fnv[T string | []byte](text T) uint64 {
	hash := uint64(14695981039346656037)
	for i := 0; i < len(text); i++ {
		hash = (hash ^ uint64(text[i])) * fnvPrime
	}
	return hash
}

// penaltyMin is the shortest window and the shortest longest penalty that a policy may have: Retry-After counts seconds.
const penaltyMin = Second

// penalty checks the policy's penalties; nil is fine.
func (v *verifier) penalty(p *Penalty) {
	if p == nil {
		return
	}
	const spans = "write 1s to 366d"
	if p.Window < penaltyMin || p.Window > PenaltyMax {
		v.problem("penalty.window", p.Window.String(), "is out of bounds", spans)
	}
	if p.Threshold < 1 || p.Threshold > ViolationsMax {
		v.problem("penalty.threshold", strconv.FormatInt(p.Threshold, 10), "is out of bounds",
			fmt.Sprintf("write 1 to %d, which is how many violations are remembered", ViolationsMax))
	}
	if p.Max != 0 && (p.Max < penaltyMin || p.Max > PenaltyMax) {
		v.problem("penalty.max", p.Max.String(), "is out of bounds", spans+"; left out it is the window")
	}
	switch n := len(p.Multipliers); {
	case n == 0:
		v.problem("penalty.multipliers", "", "are missing", "write one or more, for example [1, 2, 4, 8]")
	case n > MultipliersMax:
		v.problem("penalty.multipliers", strconv.Itoa(n), fmt.Sprintf("are more than %d", MultipliersMax),
			"leave some out: the last one holds for all further violations")
		return
	}
	for i, m := range p.Multipliers {
		if m < 1 || m > MultiplierMax {
			v.problem(fmt.Sprintf("penalty.multipliers[%d]", i), strconv.FormatInt(m, 10), "is out of bounds",
				fmt.Sprintf("write 1 to %d", MultiplierMax))
		}
	}
	if len(v.policy.Rules) > 0 && !v.anyViolates() { // without rules, it is said for policies that have some
		v.problem("penalty", "", "has no effect: no rule has action: reject and counts each client, user or API key apart",
			"add such a rule, or leave it out")
	}
}

// anyViolates reports whether a refusal by one of the rules can be a violation.
func (v *verifier) anyViolates() bool {
	for i := range v.policy.Rules {
		r := &v.policy.Rules[i]
		if r.Disabled || r.Action != ActionReject || r.PerNone {
			continue
		}
		if len(r.Per) == 0 {
			return true
		}
		for _, d := range r.Per {
			if d.Kind == PerClient || d.Kind == PerUser || d.Kind == PerAPIKey {
				return true
			}
		}
	}
	return false
}
