// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/core/internal/identify"
	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/policy"
)

// Match checks the match at a place in the policy, such as "rules[2].match".
func (v *Verifier) Match(at string, m *policy.Match) {
	if v.checkBounded(at, ".path", len(m.Path)) && v.checkBounded(at, ".method", len(m.Method)) && v.checkBounded(at, ".host", len(m.Host)) &&
		v.checkBounded(at, ".header", len(m.Header)) && v.checkBounded(at, ".ip", len(m.IP)) && v.checkBounded(at, ".attr", len(m.Attr)) {
		v.paths(at, m)
		v.methods(at, m.Method)
		v.hosts(at, m.Host)
		v.matchedHeaders(at, m.Header)
		v.checkAttrs(at, m.Attr)
		v.checkRanges(at+".ip", m.IP)
	}
	v.checkClientFields(at, m)
}

// checkBounded checks the length of a list. The location is passed in two parts, which are joined
// only if there is a problem.
func (v *Verifier) checkBounded(at, word string, n int) bool {
	if n > match.MatchListMax {
		v.problem(at+word, "", fmt.Sprintf("has %d entries, more than %d", n, match.MatchListMax), "use a wildcard, or several rules")
	}
	return n <= match.MatchListMax
}

func (v *Verifier) paths(at string, m *policy.Match) {
	for i, text := range m.Path {
		if _, why, remedy := match.ParsePattern(text, m.CaseSensitive, m.StrictSlash); why != "" {
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

func (v *Verifier) methods(at string, methods []string) {
	for i, text := range methods {
		place := fmt.Sprintf("%s.method[%d]", at, i)
		isGet := func(s string) bool { return strings.EqualFold(s, "GET") }
		switch {
		case text == "":
			v.problem(place, "", "is empty", "leave it out to match every method")
		case len(text) > match.MethodBytesMax || strings.ContainsFunc(text, match.NotToken):
			v.problem(place, text, "is not a method", "write one such as GET or POST; leave method out to match every one")
		case strings.EqualFold(text, "HEAD") && !slices.ContainsFunc(methods, isGet):
			v.problem(place, text, "counts as GET", "write GET, which also matches HEAD")
		}
	}
}

func (v *Verifier) hosts(at string, hosts []string) {
	for i, text := range hosts {
		if _, why, remedy := match.ParseHost(text); why != "" {
			v.problem(fmt.Sprintf("%s.host[%d]", at, i), text, why, remedy)
		}
	}
}

// notAField is the problem of a header that rules never see. A rule that names such a header never
// applies. removedRemedy is the remedy if no other field of a policy can stand for the header.
const (
	notAField     = "is not among a request's header fields"
	removedRemedy = "name another; proxies keep this one"
)

// isRemoved reports whether proxies remove a field when they read the framing of a request.
func isRemoved(header string) bool {
	name := match.CanonicalHeader(header)
	return name == "Transfer-Encoding" || name == "Trailer"
}

func (v *Verifier) matchedHeaders(at string, headers []policy.HeaderMatch) {
	for i, m := range headers {
		place := at + ".header." + m.Name
		switch {
		case m.Name == "":
			v.problem(fmt.Sprintf("%s.header[%d]", at, i), "", "has no name", "write the header's name, such as X-Plan")
		case len(m.Name) > match.HeaderNameBytesMax || strings.ContainsFunc(m.Name, match.NotToken):
			v.problem(place, m.Name, "is not a header's name", "write one such as X-Plan, without colon")
		case match.CanonicalHeader(m.Name) == "Host":
			v.problem(place, m.Name, notAField, "use host")
		case isRemoved(m.Name):
			v.problem(place, m.Name, notAField, removedRemedy)
		}
		if !v.checkBounded(place, "", len(m.Values)) {
			continue
		}
		for j, text := range m.Values {
			if _, why, remedy := match.ParseHeaderValue(text); why != "" {
				v.problem(fmt.Sprintf("%s[%d]", place, j), text, why, remedy)
			}
		}
	}
}

// checkAttrs checks the attributes of the match.
func (v *Verifier) checkAttrs(at string, attrs []policy.AttrMatch) {
	for i, m := range attrs {
		place := at + ".attr." + m.Name
		switch {
		case m.Name == "" || strings.ContainsFunc(m.Name, isControl):
			v.problem(fmt.Sprintf("%s.attr[%d]", at, i), m.Name, "is not the name of an attribute", "write a name that the proxy knows")
		case len(m.Name) > labelBytesMax:
			v.problem(place, m.Name[:policy.NameBytesMax]+"…", fmt.Sprintf("has %d bytes", len(m.Name)),
				fmt.Sprintf("write at most %d", labelBytesMax))
		}
		if !v.checkBounded(place, "", len(m.Values)) {
			continue
		}
		for j, text := range m.Values {
			if why, remedy := badAttrValue(text); why != "" {
				v.problem(fmt.Sprintf("%s[%d]", place, j), text, why, remedy)
			}
		}
	}
}

// badAttrValue describes the error in a value. The result why is "" if the value is valid.
func badAttrValue(text string) (why, remedy string) {
	switch {
	case text == "":
		return "is empty", `leave the values out to match any`
	case len(text) > match.HeaderValuesBytesMax:
		return "is longer than 4096 bytes", "end it earlier, with *"
	case strings.Count(text, "*") > match.AttrStarsMax:
		return fmt.Sprintf("holds more than %d stars", match.AttrStarsMax), "write fewer: one star matches any characters"
	}
	return "", ""
}

// checkClientFields checks the client fields of the match.
func (v *Verifier) checkClientFields(at string, m *policy.Match) {
	for f, listed := range [match.ClientFields][]string{m.Tier, m.User, m.APIKey, m.Tenant} {
		if len(listed) > 0 && v.checkBounded(at, "."+clientWords[f], len(listed)) {
			v.checkClientValues(at, match.ClientField(f), listed)
		}
	}
}

// checkClientValues checks the values of a client field in a match or list.
func (v *Verifier) checkClientValues(at string, f match.ClientField, values []string) {
	for i, text := range values {
		if why, remedy := badClientValue(f, text); why != "" {
			v.problem(fmt.Sprintf("%s.%s[%d]", at, clientWords[f], i), text, why, remedy)
		}
	}
}

// clientWords holds the names of the client fields in a policy.
var clientWords = [match.ClientFields]string{match.ClientTier: "tier", match.ClientUser: "user", match.ClientAPIKey: "api_key",
	match.ClientTenant: "tenant"}

// badClientValue describes the error in a value of a match or list. The result why is "" if the
// value is valid. Values are compared exactly, so one that no credential can contain is an error.
func badClientValue(f match.ClientField, text string) (why, remedy string) {
	switch {
	case text == "":
		return "is empty", "leave it out"
	case len(text) > identify.CredentialBytesMax:
		return "has " + strconv.Itoa(len(text)) + " bytes, more than any credential", "leave it out"
	case strings.Trim(text, " \t\r\n") != text:
		return "starts or ends with a space", "leave the space out: values are compared exactly"
	case text == "*":
		return "is not a wildcard here: values are compared exactly", "leave " + clientWords[f] + " out to match all clients"
	}
	return "", ""
}

// checkRanges checks address ranges.
func (v *Verifier) checkRanges(at string, prefixes []netip.Prefix) {
	for i, p := range prefixes {
		_, ok := match.CompilePrefix(p)
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
