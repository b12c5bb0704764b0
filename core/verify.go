// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"strconv"
	"strings"
)

// verifier finds everything that is wrong with a policy, but for what its matches say: [compileMatch] reports that. What
// a policy says without effect is wrong too: a word that is ignored is a limit that its author believes in.
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
	v.identify()
	v.rules()
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

func notNameRune(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-')
}

func (v *verifier) onError(path string, e OnError) {
	if e > OnErrorDeny {
		v.problem(path, strconv.Itoa(int(e)), "is unknown", "write allow or deny")
	}
}

func (v *verifier) identify() {
	if n := len(v.policy.Identify); n > IdentifyMax {
		v.problem("identify", strconv.Itoa(n), fmt.Sprintf("are more than %d ways", IdentifyMax), "leave some out")
		return
	}
	seen := map[string]int{}
	for i, m := range v.policy.Identify {
		at := "identify[" + strconv.Itoa(i) + "]"
		label, known := v.identifyBy(at, m)
		if !known {
			continue
		}
		if first, twice := seen[label]; twice {
			v.problem(at, label, fmt.Sprintf("is identify[%d] again and finds nobody else", first), "leave it out")
			continue
		}
		seen[label] = i
	}
}

// identifyBy checks one way of identifying and returns what it is called in keys.
func (v *verifier) identifyBy(at string, m Identify) (label string, known bool) {
	switch m.Kind {
	case IdentifyIP:
		label = "ip"
		v.prefixes(at, m)
		if m.Name != "" {
			v.problem(at+".name", m.Name, "does not go with ip", "leave it out")
		}
	case IdentifyHeader:
		label = headerLabel(m.Name)
		v.header(at, m.Name)
		if !m.Unverified {
			v.problem(at, m.Name, "is a header that anyone can write, and so be anyone",
				"write unverified: true if something in front sets or removes it")
		}
	case IdentifyAttr:
		label = attrLabel(m.Name)
		v.attr(at, m.Name)
	default:
		v.problem(at, strconv.Itoa(int(m.Kind)), "is an unknown way of identifying", "write ip, header or attr")
		return "", false
	}
	if m.Unverified && m.Kind != IdentifyHeader {
		v.problem(at+".unverified", "true", "goes with header only", "leave it out")
	}
	if m.Kind != IdentifyIP && (m.IPv4Prefix != 0 || m.IPv6Prefix != 0) {
		v.problem(at, "", "has a prefix, which goes with ip only", "leave it out")
	}
	return label, true
}

func (v *verifier) prefixes(at string, m Identify) {
	if m.IPv4Prefix < 0 || m.IPv4Prefix > 32 {
		v.problem(at+".ipv4_prefix", strconv.Itoa(m.IPv4Prefix), "is no length of an IPv4 prefix", "write 1 to 32")
	}
	if m.IPv6Prefix < 0 || m.IPv6Prefix > 128 {
		v.problem(at+".ipv6_prefix", strconv.Itoa(m.IPv6Prefix), "is no length of an IPv6 prefix", "write 1 to 128")
	}
}

func (v *verifier) header(at, name string) {
	switch {
	case name == "" || strings.ContainsFunc(name, notToken):
		v.problem(at, name, "is not the name of a header", "write one such as X-User")
	case canonicalHeader(name) == "Host":
		v.problem(at, name, "is not among a request's header fields", "a rule can count per host")
	default:
		v.label(at, name)
	}
}

func (v *verifier) attr(at, name string) {
	switch {
	case name == "" || strings.ContainsFunc(name, func(r rune) bool { return r < 0x20 || r == 0x7f }):
		v.problem(at, name, "is not the name of an attribute", "write attr: and a name that the proxy knows")
	default:
		v.label(at, name)
	}
}

// labelBytesMax bounds the name of a header or attribute, for it stands in keys.
const labelBytesMax = headerNameBytesMax

// label checks the name of a header or attribute as it is to stand in keys.
func (v *verifier) label(at, name string) {
	if len(name) > labelBytesMax {
		v.problem(at, name[:NameBytesMax]+"…", fmt.Sprintf("has %d bytes", len(name)),
			fmt.Sprintf("write at most %d", labelBytesMax))
	}
	if strings.HasSuffix(strings.ToLower(name), hashSuffix) {
		v.problem(at, name, "ends in "+hashSuffix+", which marks the hashes that stand for long values", "use another name")
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
		for j := range r.Limits {
			if r.Limits[j].algorithm == 0 {
				continue
			}
			// A name twice in one rule is a limit twice, which is reported as that.
			if name := policyName(r, j); name != r.Name && !strings.HasPrefix(names[name], at+".") {
				v.unique(names, fmt.Sprintf("%s.limit[%d]", at, j), name)
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
