// SPDX-License-Identifier: Apache-2.0

package core

import (
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

// compileMatch makes m ready for requests. ok is false if it holds what cannot be compiled; what can be and is a mistake all
// the same, the verifier reports.
func compileMatch(m *Match) (c condition, ok bool) {
	var ranges bool
	c.prefixes, ranges = compilePrefixes(m.IP)
	ok = c.addPaths(m) && c.addHosts(m.Host) && ranges
	c.addMethods(m.Method)
	c.addHeaders(m.Header)
	c.addAttrs(m.Attr)
	c.addClients(m)
	if len(m.IP) > 0 {
		c.parts |= partIP
	}
	return c, ok
}

func (c *condition) addPaths(m *Match) (ok bool) {
	everything := false
	for _, text := range m.Path {
		p, why, _ := parsePattern(text, m.CaseSensitive, m.StrictSlash)
		if why != "" {
			return false
		}
		c.patterns = append(c.patterns, p)
		everything = everything || p.everything()
	}
	c.patterns = sorted(c.patterns, compareSpecific)
	if len(m.Path) > 0 && !everything {
		c.parts |= partPath
	}
	return true
}

func (c *condition) addMethods(methods []string) {
	for _, text := range methods {
		method := upperASCII(text)
		if method != "HEAD" && !slices.Contains(c.methods, method) { // GET stands for it
			c.methods = append(c.methods, method)
		}
	}
	if len(methods) > 0 {
		c.parts |= partMethod
	}
}

// notToken reports whether r cannot stand in a method or a header's name (RFC 9110, 5.6.2).
func notToken(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
		r < 0x80 && strings.ContainsRune("!#$%&'*+-.^_`|~", r))
}

func (c *condition) addHosts(hosts []string) (ok bool) {
	for _, text := range hosts {
		h, why, _ := parseHost(text)
		if why != "" {
			return false
		}
		if !slices.Contains(c.hosts, h) {
			c.hosts = append(c.hosts, h)
		}
	}
	if len(hosts) > 0 {
		c.parts |= partHost
	}
	return true
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
	h.name = LowerASCII(name)
	if h.any {
		h.name = "." + h.name
	}
	return h, "", ""
}

func notHostByte(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.')
}

func (c *condition) addHeaders(headers []HeaderMatch) {
	for _, m := range headers {
		h := headerCondition{name: canonicalHeader(m.Name)}
		for _, text := range m.Values {
			v, _, _ := parseHeaderValue(text)
			h.values = append(h.values, v)
		}
		if slices.Contains(h.values, headerValue{prefix: true}) { // any value is one of those
			h.values = nil
		}
		if len(h.values) > fewValues {
			h.table = new(valueTable)
			for _, v := range h.values {
				h.table.set(v.text, v.prefix, 1)
			}
		}
		c.headers = append(c.headers, h)
	}
	if len(headers) > 0 {
		c.parts |= partHeader
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
//
//go:noinline
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

func (c *condition) addClients(m *Match) {
	for f, listed := range [clientFields][]string{m.Tier, m.User, m.APIKey, m.Tenant} {
		if len(listed) == 0 {
			continue
		}
		if c.client == nil {
			c.client = new(clientCondition)
			c.parts |= partClient
		}
		for _, text := range listed {
			if !slices.Contains(c.client[f], text) {
				c.client[f] = append(c.client[f], text)
			}
		}
	}
}

// compilePrefixes brings address ranges into one form. ok is false if one of them is none.
func compilePrefixes(prefixes []netip.Prefix) (masked []netip.Prefix, ok bool) {
	for _, p := range prefixes {
		m, ok := compilePrefix(p)
		if !ok {
			return nil, false
		}
		masked = append(masked, m)
	}
	return masked, true
}

// compilePrefix brings an address range into one form: masked, IPv4 out of IPv6. ok is false for what is no range, and for
// one of mapped addresses that is wider than all of IPv4.
func compilePrefix(p netip.Prefix) (masked netip.Prefix, ok bool) {
	addr, bits := p.Addr(), p.Bits()
	if addr.Is4In6() && bits >= 96 {
		addr, bits = addr.Unmap(), bits-96
	}
	masked, err := addr.Prefix(bits)
	return masked, p.IsValid() && err == nil && !addr.Is4In6()
}
