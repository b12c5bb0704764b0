// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Bounds of one match. What is longer is refused.
const (
	matchListMax         = 1000 // entries of one list: more belong into several rules, or into the upstream
	hostBytesMax         = 253  // the longest name that DNS can hold
	methodBytesMax       = 32   // the longest registered one has 17
	headerNameBytesMax   = 256
	headerValuesBytesMax = 4096 // one value
)

// matchCompiler compiles one Match and collects what is wrong with it.
type matchCompiler struct {
	at        string
	condition condition
	problems  Problems
}

// compileMatch checks m and compiles it; at says where it stands, such as "rules[2].match". With problems, all of them
// reported, the condition is of no use.
func compileMatch(at string, m Match) (condition, Problems) {
	c := matchCompiler{at: at}
	if c.bounded("path", len(m.Path)) && c.bounded("method", len(m.Method)) && c.bounded("host", len(m.Host)) &&
		c.bounded("header", len(m.Header)) && c.bounded("ip", len(m.IP)) &&
		c.bounded("attr", len(m.Attr)) {
		c.paths(m)
		c.methods(m.Method)
		c.hosts(m.Host)
		c.headers(m.Header)
		c.attrs(m.Attr)
		c.prefixes(m.IP)
	}
	c.clients(m)
	return c.condition, c.problems
}

func (c *matchCompiler) problem(place, value, why, remedy string) {
	c.problems = append(c.problems, Problem{Path: c.at + "." + place, Value: value, Why: why, Remedy: remedy})
}

func (c *matchCompiler) bounded(list string, n int) bool {
	if n > matchListMax {
		c.problem(list, "", fmt.Sprintf("has %d entries, more than %d", n, matchListMax), "use a wildcard, or several rules")
	}
	return n <= matchListMax
}

func (c *matchCompiler) paths(m Match) {
	everything := false
	for i, text := range m.Path {
		p, why, remedy := parsePattern(text, m.CaseSensitive, m.StrictSlash)
		if why != "" {
			c.problem(fmt.Sprintf("path[%d]", i), text, why, remedy)
			continue
		}
		c.condition.patterns = append(c.condition.patterns, p)
		everything = everything || p.everything()
	}
	slices.SortStableFunc(c.condition.patterns, func(a, b pattern) int { return compareSpecific(&a, &b) })
	if len(m.Path) == 0 && m.CaseSensitive {
		c.problem("case_sensitive", "true", "has no effect: the match has no path", "leave it out")
	}
	if len(m.Path) == 0 && m.StrictSlash {
		c.problem("trailing_slash", "strict", "has no effect: the match has no path", "leave it out")
	}
	if len(m.Path) > 0 && !everything {
		c.condition.parts |= partPath
	}
}

func (c *matchCompiler) methods(methods []string) {
	for i, text := range methods {
		method := strings.ToUpper(text)
		place := fmt.Sprintf("method[%d]", i)
		isGet := func(s string) bool { return strings.EqualFold(s, "GET") }
		switch {
		case text == "":
			c.problem(place, "", "is empty", "leave it out to match every method")
		case len(text) > methodBytesMax || strings.ContainsFunc(text, notToken):
			c.problem(place, text, "is not a method", "write one such as GET or POST; leave method out to match every one")
		case method == "HEAD" && !slices.ContainsFunc(methods, isGet):
			c.problem(place, text, "counts as GET", "write GET, which also matches HEAD")
		case method != "HEAD" && !slices.Contains(c.condition.methods, method):
			c.condition.methods = append(c.condition.methods, method)
		}
	}
	if len(methods) > 0 {
		c.condition.parts |= partMethod
	}
}

// notToken reports whether r cannot stand in a method or a header's name (RFC 9110, 5.6.2).
func notToken(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
		r < 0x80 && strings.ContainsRune("!#$%&'*+-.^_`|~", r))
}

func (c *matchCompiler) hosts(hosts []string) {
	for i, text := range hosts {
		h, why, remedy := parseHost(text)
		if why != "" {
			c.problem(fmt.Sprintf("host[%d]", i), text, why, remedy)
		} else if !slices.Contains(c.condition.hosts, h) {
			c.condition.hosts = append(c.condition.hosts, h)
		}
	}
	if len(hosts) > 0 {
		c.condition.parts |= partHost
	}
}

// parseHost compiles a host: a name, an address (IPv6 in brackets), or "*." and a name, for any number of labels.
func parseHost(text string) (h hostPattern, why, remedy string) {
	const howTo = `write a name without port, such as "example.com" or "*.example.com"`
	switch {
	case text == "":
		return h, "is empty", "leave host out to match every host"
	case text == "*":
		return h, "matches every host", "leave host out"
	case strings.Contains(text, "://") || strings.Contains(text, "/"):
		return h, "is not a host", howTo
	case text[0] == '[' || strings.Count(text, ":") > 1:
		if strings.HasPrefix(text, "[") == strings.HasSuffix(text, "]") {
			text = strings.Trim(text, "[]")
		}
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Zone() != "" || !addr.Is6() {
			return h, "is not an IPv6 address in brackets", `write one without port and zone, such as "[2001:db8::1]"`
		}
		return hostPattern{name: "[" + addr.String() + "]"}, "", ""
	case strings.Contains(text, ":"):
		return h, "holds a port", "write it without: ports are not compared"
	}
	name := strings.TrimSuffix(text, ".")
	h.any = strings.HasPrefix(name, "*.")
	name = strings.TrimPrefix(name, "*.")
	switch {
	case strings.Contains(name, "*"):
		return h, `has a "*" that is not its first label`, howTo
	case strings.ContainsFunc(name, func(r rune) bool { return r >= 0x80 }):
		return h, "is not ASCII", `write it as it is sent, starting with "xn--"`
	case len(name) > hostBytesMax || strings.ContainsFunc(name, notHostByte) || slices.Contains(strings.Split(name, "."), ""):
		return h, "is not a host", howTo
	}
	h.name = strings.ToLower(name)
	if h.any {
		h.name = "." + h.name
	}
	return h, "", ""
}

func notHostByte(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.')
}

func (c *matchCompiler) headers(headers []HeaderMatch) {
	for i, m := range headers {
		place := "header." + m.Name
		h := headerCondition{name: canonicalHeader(m.Name)}
		switch {
		case m.Name == "":
			c.problem(fmt.Sprintf("header[%d]", i), "", "has no name", "write the header's name, such as X-Plan")
		case len(m.Name) > headerNameBytesMax || strings.ContainsFunc(m.Name, notToken):
			c.problem(place, m.Name, "is not a header's name", "write one such as X-Plan, without colon")
		case h.name == "Host":
			c.problem(place, m.Name, "is not among a request's header fields", "use host")
		}
		if !c.bounded(place, len(m.Values)) {
			continue
		}
		present := len(m.Values) == 0
		for j, text := range m.Values {
			v, why, remedy := parseHeaderValue(text)
			if why != "" {
				c.problem(fmt.Sprintf("%s[%d]", place, j), text, why, remedy)
			}
			present = present || v.prefix && v.text == ""
			h.values = append(h.values, v)
		}
		if present {
			h.values = nil
		}
		c.condition.headers = append(c.condition.headers, h)
	}
	if len(headers) > 0 {
		c.condition.parts |= partHeader
	}
}

func parseHeaderValue(text string) (v headerValue, why, remedy string) {
	switch {
	case text == "":
		return v, "is empty", `leave the values out to match any`
	case len(text) > headerValuesBytesMax:
		return v, "is longer than 4096 bytes", "end it earlier, with *"
	case strings.Trim(text, " \t") != text:
		return v, "starts or ends with a space", "leave the space out: values arrive without"
	case strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
		return v, "holds a control character", "leave it out"
	}
	v.text, v.prefix = strings.CutSuffix(text, "*")
	return v, "", ""
}

// canonicalHeader returns a header's name as HTTP servers in Go store it: upper case where a word starts.
func canonicalHeader(name string) string {
	b := []byte(name)
	for i, c := range b {
		if i == 0 || b[i-1] == '-' {
			b[i] = upperByte(c)
		} else {
			b[i] = lowerByte(c)
		}
	}
	return string(b)
}

// clients compiles what the match says of the client.
func (c *matchCompiler) clients(m Match) {
	for f, listed := range [clientFields][]string{m.Tier, m.User, m.APIKey, m.Tenant} {
		if len(listed) == 0 || !c.bounded(clientWords[f], len(listed)) {
			continue
		}
		if c.condition.client == nil {
			c.condition.client = new(clientCondition)
			c.condition.parts |= partClient
		}
		values := make([]string, 0, len(listed))
		for i, text := range listed {
			if why, remedy := badClientValue(clientField(f), text); why != "" {
				c.problem(fmt.Sprintf("%s[%d]", clientWords[f], i), text, why, remedy)
			} else if !slices.Contains(values, text) {
				values = append(values, text)
			}
		}
		c.condition.client[f] = values
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
		return fmt.Sprintf("has %d bytes, more than any credential", len(text)), "leave it out"
	case strings.Trim(text, " \t\r\n") != text:
		return "starts or ends with a space", "leave the space out: values are compared exactly"
	case text == "*":
		return "is no wildcard here: values are compared exactly", "leave " + clientWords[f] + " out to match everybody"
	}
	return "", ""
}

// compilePrefixes checks a list of address ranges and brings them into one form; at says where it stands.
func compilePrefixes(at string, prefixes []netip.Prefix) ([]netip.Prefix, Problems) {
	var c matchCompiler
	if c.bounded("ip", len(prefixes)) {
		c.prefixes(prefixes)
	}
	for i := range c.problems {
		c.problems[i].Path = at + strings.TrimPrefix(c.problems[i].Path, ".ip")
	}
	return c.condition.prefixes, c.problems
}

func (c *matchCompiler) prefixes(prefixes []netip.Prefix) {
	for i, p := range prefixes {
		masked, problems := compilePrefix(p)
		for _, problem := range problems {
			c.problem(fmt.Sprintf("ip[%d]", i), problem.Value, problem.Why, problem.Remedy)
		}
		if len(problems) == 0 {
			c.condition.prefixes = append(c.condition.prefixes, masked)
		}
	}
	if len(prefixes) > 0 {
		c.condition.parts |= partIP
	}
}

// compilePrefix brings an address range into one form: masked, IPv4 out of IPv6. The problem has no place.
func compilePrefix(p netip.Prefix) (masked netip.Prefix, problems Problems) {
	addr, bits := p.Addr(), p.Bits()
	if addr.Is4In6() && bits >= 96 {
		addr, bits = addr.Unmap(), bits-96
	}
	masked, err := addr.Prefix(bits)
	switch {
	case !p.IsValid() || err != nil:
		return masked, Problems{{Why: "is not an address range", Remedy: `write one such as "10.0.0.0/8"`}}
	case addr.Is4In6():
		return masked, Problems{{Value: p.String(), Why: "is IPv4 mapped into IPv6 and wider than all of IPv4",
			Remedy: `write "0.0.0.0/0" for all of IPv4`}}
	}
	return masked, nil
}
