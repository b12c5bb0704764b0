// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"strconv"
	"strings"
)

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
