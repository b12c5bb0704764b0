// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"strconv"
	"strings"
)

// verifier finds everything that is wrong with a policy, but for requests that too many limits hold for: findCrowd finds
// those. What a policy says without effect is wrong too: a word that is ignored is a limit that its author believes in.
type verifier struct {
	policy   *Policy
	problems Problems
}

func (v *verifier) problem(path, value, why, remedy string) {
	v.problems = append(v.problems, Problem{Path: path, Value: value, Why: why, Remedy: remedy})
}

func (v *verifier) verify() {
	p := v.policy
	if p.Name != "" {
		v.name("name", p.Name)
	}
	if len(p.Rules) > RulesMax {
		v.problem("rules", strconv.Itoa(len(p.Rules)), fmt.Sprintf("are more than %d", RulesMax), "split the policy")
		return
	}
	if p.Headers&^(HeadersX|HeadersIETF|HeadersNone) != 0 {
		v.problem("headers", strconv.Itoa(int(p.Headers)), "is no set of header families", "write x-ratelimit, ietf or none")
	}
	if p.Headers&HeadersNone != 0 && p.Headers != HeadersNone {
		v.problem("headers", "", "holds none beside others", "write none alone, or leave it out")
	}
	if p.Enforce > EnforceFirst {
		v.problem("enforce", strconv.Itoa(int(p.Enforce)), "is unknown", "write all or first")
	}
	v.onError("on_error", p.OnError)
	v.lease("lease", p.Lease)
	v.identify()
	v.timezone()
	v.penalty(p.Penalty)
	v.rules()
	v.requests()
	v.lists("exempt", p.Exempt)
	v.lists("block", p.Block)
}

// name checks a name that stands in keys, metrics and header fields.
func (v *verifier) name(path, name string) {
	if len(name) > NameBytesMax {
		v.problem(path, name[:NameBytesMax]+"…", fmt.Sprintf("has %d bytes", len(name)),
			fmt.Sprintf("write at most %d", NameBytesMax))
		return
	}
	if strings.ContainsFunc(name, notNameRune) {
		v.problem(path, name, "holds a character that names cannot have",
			`write ASCII letters, digits, ".", "_" and "-" only`)
	}
}

// isName reports whether a name is one that a rule can have.
func isName(name string) bool {
	return name != "" && len(name) <= NameBytesMax && !strings.ContainsFunc(name, notNameRune)
}

func notNameRune(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-')
}

func (v *verifier) onError(path string, e OnError) {
	if e > OnErrorLocal {
		v.problem(path, strconv.Itoa(int(e)), "is unknown", "write allow, deny or local")
	}
}

func (v *verifier) lease(path string, l Lease) {
	if l > LeaseAuto {
		v.problem(path, strconv.Itoa(int(l)), "is unknown", "write auto or off")
	}
}

// rules checks every rule, and what must be unique among them.
func (v *verifier) rules() {
	names := make(map[string]string, len(v.policy.Rules))
	for i := range v.policy.Rules {
		r := &v.policy.Rules[i]
		at := ruleAt(i)
		v.rule(at, r)
		if r.Name == "" {
			continue
		}
		v.unique(names, at+".name", r.Name)
		v.limitNames(names, at, r)
	}
	v.replaces()
}

// requests checks what rules and costs say of the requests that they are for.
func (v *verifier) requests() {
	for i := range v.policy.Rules {
		r, at := &v.policy.Rules[i], ruleAt(i)
		v.match(at+".match", &r.Match)
		for j := range r.Cost {
			place := at + ".cost[" + strconv.Itoa(j) + "]"
			v.match(place+".match", &r.Cost[j].Match)
			if v.bounded(place, ".trusted", len(r.Cost[j].Trusted)) {
				v.ranges(place+".trusted", r.Cost[j].Trusted)
			}
		}
	}
}

// unique checks that no rule and no limit is called as another: clients could not tell them apart.
func (v *verifier) unique(names map[string]string, path, name string) {
	if first, taken := names[name]; taken {
		v.problem(path, name, "is also the name of "+strings.TrimSuffix(first, ".name"), "rename one of them")
		return
	}
	names[name] = path
}
