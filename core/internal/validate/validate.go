// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// Verifier finds all errors in a policy except one: core.Compile checks whether too many limits can
// apply to a request. A field without effect is an error too, because its author relies on it.
type Verifier struct {
	policy   *policy.Policy
	Problems policy.Problems
}

// Policy returns all problems of a policy, but does not check whether too many limits can apply to
// a request.
func Policy(p *policy.Policy) policy.Problems {
	v := Verifier{policy: p}
	v.verify()
	return v.Problems
}

func (v *Verifier) problem(path, value, why, remedy string) {
	v.Problems = append(v.Problems, policy.Problem{Path: path, Value: value, Why: why, Remedy: remedy})
}

func (v *Verifier) verify() {
	p := v.policy
	if p.Name != "" {
		v.checkName("name", p.Name)
	}
	if len(p.Rules) > policy.RulesMax {
		v.problem("rules", strconv.Itoa(len(p.Rules)), fmt.Sprintf("are more than %d", policy.RulesMax), "split the policy")
		return
	}
	if p.Headers&^(policy.HeadersX|policy.HeadersIETF|policy.HeadersNone) != 0 {
		v.problem("headers", strconv.Itoa(int(p.Headers)), "is not a set of header families", "write x-ratelimit, ietf or none")
	}
	if p.Headers&policy.HeadersNone != 0 && p.Headers != policy.HeadersNone {
		v.problem("headers", "", "lists none beside others", "write none alone, or leave it out")
	}
	if p.Enforce > policy.EnforceFirst {
		v.problem("enforce", strconv.Itoa(int(p.Enforce)), "is unknown", "write all or first")
	}
	v.onError("on_error", p.OnError)
	v.lease("lease", p.Lease)
	v.checkIdentify()
	v.checkTimezone()
	v.checkPenalty(p.Penalty)
	v.checkRules()
	v.checkRequests()
	v.Lists("exempt", p.Exempt)
	v.Lists("block", p.Block)
}

// checkName checks a name that appears in keys, metrics and header fields.
func (v *Verifier) checkName(path, name string) {
	if len(name) > policy.NameBytesMax {
		v.problem(path, name[:policy.NameBytesMax]+"…", fmt.Sprintf("has %d bytes", len(name)),
			fmt.Sprintf("write at most %d", policy.NameBytesMax))
		return
	}
	if strings.ContainsFunc(name, policy.NotNameRune) {
		v.problem(path, name, "holds a character that names cannot have",
			`write ASCII letters, digits, ".", "_" and "-" only`)
	}
}

func (v *Verifier) onError(path string, e counter.OnError) {
	if e > counter.OnErrorLocal {
		v.problem(path, strconv.Itoa(int(e)), "is unknown", "write allow, deny or local")
	}
}

func (v *Verifier) lease(path string, l policy.Lease) {
	if l > policy.LeaseAuto {
		v.problem(path, strconv.Itoa(int(l)), "is unknown", "write auto or off")
	}
}

// checkRules checks each rule, and the names that must be unique among them.
func (v *Verifier) checkRules() {
	names := make(map[string]string, len(v.policy.Rules))
	for i := range v.policy.Rules {
		r := &v.policy.Rules[i]
		at := policy.RuleAt(i)
		v.rule(at, r)
		if r.Name == "" {
			continue
		}
		v.checkUnique(names, at+".name", r.Name)
		v.checkLimitNames(names, at, r)
	}
	v.checkReplaces()
}

// checkRequests checks the matches and costs of the rules.
func (v *Verifier) checkRequests() {
	for i := range v.policy.Rules {
		r, at := &v.policy.Rules[i], policy.RuleAt(i)
		v.Match(at+".match", &r.Match)
		for j := range r.Cost {
			place := at + ".cost[" + strconv.Itoa(j) + "]"
			v.Match(place+".match", &r.Cost[j].Match)
			if v.checkBounded(place, ".trusted", len(r.Cost[j].Trusted)) {
				v.checkRanges(place+".trusted", r.Cost[j].Trusted)
			}
		}
	}
}

// checkUnique checks that no two rules or limits have the same name, so that clients can
// distinguish them.
func (v *Verifier) checkUnique(names map[string]string, path, name string) {
	if first, taken := names[name]; taken {
		v.problem(path, name, "is also the name of "+strings.TrimSuffix(first, ".name"), "rename one of them")
		return
	}
	names[name] = path
}
