// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// match checks a match; at says where it stands, such as "rules[2].match".
func (v *verifier) match(at string, m *Match) {
	if v.bounded(at, ".path", len(m.Path)) && v.bounded(at, ".method", len(m.Method)) && v.bounded(at, ".host", len(m.Host)) &&
		v.bounded(at, ".header", len(m.Header)) && v.bounded(at, ".ip", len(m.IP)) && v.bounded(at, ".attr", len(m.Attr)) {
		v.paths(at, m)
		v.methods(at, m.Method)
		v.hosts(at, m.Host)
		v.matchedHeaders(at, m.Header)
		v.matchedAttrs(at, m.Attr)
		v.ranges(at+".ip", m.IP)
	}
	v.matchedClients(at, m)
}

// bounded checks how long the list is that stands at a place, in two parts: putting them together is for problems only.
func (v *verifier) bounded(at, word string, n int) bool {
	if n > matchListMax {
		v.problem(at+word, "", fmt.Sprintf("has %d entries, more than %d", n, matchListMax), "use a wildcard, or several rules")
	}
	return n <= matchListMax
}

func (v *verifier) paths(at string, m *Match) {
	for i, text := range m.Path {
		if _, why, remedy := parsePattern(text, m.CaseSensitive, m.StrictSlash); why != "" {
			v.problem(fmt.Sprintf("%s.path[%d]", at, i), text, why, remedy)
		}
	}
	if len(m.Path) == 0 && m.CaseSensitive {
		v.problem(at+".case_sensitive", "true", "has no effect: the match has no path", "leave it out")
	}
	if len(m.Path) == 0 && m.StrictSlash {
		v.problem(at+".trailing_slash", "strict", "has no effect: the match has no path", "leave it out")
	}
}

func (v *verifier) methods(at string, methods []string) {
	for i, text := range methods {
		place := fmt.Sprintf("%s.method[%d]", at, i)
		isGet := func(s string) bool { return strings.EqualFold(s, "GET") }
		switch {
		case text == "":
			v.problem(place, "", "is empty", "leave it out to match every method")
		case len(text) > methodBytesMax || strings.ContainsFunc(text, notToken):
			v.problem(place, text, "is not a method", "write one such as GET or POST; leave method out to match every one")
		case strings.EqualFold(text, "HEAD") && !slices.ContainsFunc(methods, isGet):
			v.problem(place, text, "counts as GET", "write GET, which also matches HEAD")
		}
	}
}

func (v *verifier) hosts(at string, hosts []string) {
	for i, text := range hosts {
		if _, why, remedy := parseHost(text); why != "" {
			v.problem(fmt.Sprintf("%s.host[%d]", at, i), text, why, remedy)
		}
	}
}

func (v *verifier) matchedHeaders(at string, headers []HeaderMatch) {
	for i, m := range headers {
		place := at + ".header." + m.Name
		switch {
		case m.Name == "":
			v.problem(fmt.Sprintf("%s.header[%d]", at, i), "", "has no name", "write the header's name, such as X-Plan")
		case len(m.Name) > headerNameBytesMax || strings.ContainsFunc(m.Name, notToken):
			v.problem(place, m.Name, "is not a header's name", "write one such as X-Plan, without colon")
		case canonicalHeader(m.Name) == "Host":
			v.problem(place, m.Name, "is not among a request's header fields", "use host")
		}
		if !v.bounded(place, "", len(m.Values)) {
			continue
		}
		for j, text := range m.Values {
			if _, why, remedy := parseHeaderValue(text); why != "" {
				v.problem(fmt.Sprintf("%s[%d]", place, j), text, why, remedy)
			}
		}
	}
}

// matchedAttrs checks what the match says of attributes.
func (v *verifier) matchedAttrs(at string, attrs []AttrMatch) {
	for i, m := range attrs {
		place := at + ".attr." + m.Name
		switch {
		case m.Name == "" || strings.ContainsFunc(m.Name, isControl):
			v.problem(fmt.Sprintf("%s.attr[%d]", at, i), m.Name, "is not the name of an attribute", "write a name that the proxy knows")
		case len(m.Name) > labelBytesMax:
			v.problem(place, m.Name[:NameBytesMax]+"…", fmt.Sprintf("has %d bytes", len(m.Name)),
				fmt.Sprintf("write at most %d", labelBytesMax))
		}
		if !v.bounded(place, "", len(m.Values)) {
			continue
		}
		for j, text := range m.Values {
			if why, remedy := badAttrValue(text); why != "" {
				v.problem(fmt.Sprintf("%s[%d]", place, j), text, why, remedy)
			}
		}
	}
}

// badAttrValue says what is wrong with a value; why is "" if nothing is.
func badAttrValue(text string) (why, remedy string) {
	switch {
	case text == "":
		return "is empty", `leave the values out to match any`
	case len(text) > headerValuesBytesMax:
		return "is longer than 4096 bytes", "end it earlier, with *"
	case strings.Count(text, "*") > attrStarsMax:
		return fmt.Sprintf("holds more than %d stars", attrStarsMax), "write fewer: one star stands for any run of characters"
	}
	return "", ""
}

// matchedClients checks what the match says of the client.
func (v *verifier) matchedClients(at string, m *Match) {
	for f, listed := range [clientFields][]string{m.Tier, m.User, m.APIKey, m.Tenant} {
		if len(listed) > 0 && v.bounded(at, "."+clientWords[f], len(listed)) {
			v.clientValues(at, clientField(f), listed)
		}
	}
}

// clientValues checks values that a match or list names.
func (v *verifier) clientValues(at string, f clientField, values []string) {
	for i, text := range values {
		if why, remedy := badClientValue(f, text); why != "" {
			v.problem(fmt.Sprintf("%s.%s[%d]", at, clientWords[f], i), text, why, remedy)
		}
	}
}

// clientWords are what the fields of a client are called in a policy.
var clientWords = [clientFields]string{clientTier: "tier", clientUser: "user", clientAPIKey: "api_key",
	clientTenant: "tenant"}

// badClientValue says what is wrong with a value that a match or list names; why is "" if nothing is. Values are compared
// exactly, so that one which no credential can hold is a mistake.
func badClientValue(f clientField, text string) (why, remedy string) {
	switch {
	case text == "":
		return "is empty", "leave it out"
	case len(text) > credentialBytesMax:
		return "has " + strconv.Itoa(len(text)) + " bytes, more than any credential", "leave it out"
	case strings.Trim(text, " \t\r\n") != text:
		return "starts or ends with a space", "leave the space out: values are compared exactly"
	case text == "*":
		return "is no wildcard here: values are compared exactly", "leave " + clientWords[f] + " out to match everybody"
	}
	return "", ""
}

// ranges checks address ranges.
func (v *verifier) ranges(at string, prefixes []netip.Prefix) {
	for i, p := range prefixes {
		_, ok := compilePrefix(p)
		if ok {
			continue
		}
		place := fmt.Sprintf("%s[%d]", at, i)
		switch {
		case p.IsValid():
			v.problem(place, p.String(), "is IPv4 mapped into IPv6 and wider than all of IPv4", `write "0.0.0.0/0" for all of IPv4`)
		default:
			v.problem(place, "", "is not an address range", `write one such as "10.0.0.0/8"`)
		}
	}
}
