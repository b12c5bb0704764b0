// SPDX-License-Identifier: Apache-2.0

package match

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// Bounds of one match. A match that exceeds them is an error.
const (
	// entries of one list; put longer lists into several rules or into the upstream
	MatchListMax         = 1000
	hostBytesMax         = 253 // length of the longest DNS name
	MethodBytesMax       = 32  // the longest registered method has 17 bytes
	HeaderNameBytesMax   = 256
	HeaderValuesBytesMax = 4096 // bytes of one value
)

// CompileMatch compiles m. The result ok is false if a part of it cannot be compiled. Package
// validate reports other errors.
func CompileMatch(m *policy.Match) (c Condition, ok bool) {
	var ranges bool
	c.prefixes, ranges = CompilePrefixes(m.IP)
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

func (c *Condition) addPaths(m *policy.Match) (ok bool) {
	everything := false
	for _, text := range m.Path {
		p, why, _ := ParsePattern(text, m.CaseSensitive, m.StrictSlash)
		if why != "" {
			return false
		}
		c.Patterns = append(c.Patterns, p)
		everything = everything || p.everything()
	}
	c.Patterns = slim.Sorted(c.Patterns, compareSpecific)
	if len(m.Path) > 0 && !everything {
		c.parts |= partPath
	}
	return true
}

func (c *Condition) addMethods(methods []string) {
	for _, text := range methods {
		method := slim.UpperASCII(text)
		if method != "HEAD" && !slices.Contains(c.methods, method) { // GET includes HEAD
			c.methods = append(c.methods, method)
		}
	}
	if len(methods) > 0 {
		c.parts |= partMethod
	}
}

// NotToken reports whether r is not allowed in a method or header name (RFC 9110, 5.6.2).
func NotToken(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
		r < 0x80 && strings.IndexByte("!#$%&'*+-.^_`|~", byte(r)) >= 0)
}

func (c *Condition) addHosts(hosts []string) (ok bool) {
	for _, text := range hosts {
		h, why, _ := ParseHost(text)
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

// ParseHost compiles a host: a name, an address (IPv6 in brackets), or "*." and a name. The star
// stands for any number of labels.
func ParseHost(text string) (h hostPattern, why, remedy string) {
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
			text = slim.Trim(text, "[]")
		}
		addr, ok := ParseAddr(text)
		if !ok || !addr.Is6() {
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
	case len(name) > hostBytesMax || strings.ContainsFunc(name, notHostByte) || slices.Contains(slim.Split(name, "."), ""):
		return h, "is not a host", howTo
	}
	h.name = slim.LowerASCII(name)
	if h.any {
		h.name = "." + h.name
	}
	return h, "", ""
}

func notHostByte(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.')
}

func (c *Condition) addHeaders(headers []policy.HeaderMatch) {
	for _, m := range headers {
		h := headerCondition{Name: CanonicalHeader(m.Name)}
		for _, text := range m.Values {
			v, _, _ := ParseHeaderValue(text)
			h.Values = append(h.Values, v)
		}
		// every value begins with the empty prefix, so the header only has to be present
		if slices.Contains(h.Values, headerValue{prefix: true}) {
			h.Values = nil
		}
		if len(h.Values) > fewValues {
			h.table = new(valueTable)
			for _, v := range h.Values {
				h.table.set(v.text, v.prefix, 1)
			}
		}
		c.Headers = append(c.Headers, h)
	}
	if len(headers) > 0 {
		c.parts |= partHeader
	}
}

// ParseHeaderValue compiles a value of a header, which may end in "*". If why is not empty, it
// describes the error in the value.
func ParseHeaderValue(text string) (v headerValue, why, remedy string) {
	switch {
	case text == "":
		return v, "is empty", `leave the values out to match any`
	case len(text) > HeaderValuesBytesMax:
		return v, "is longer than 4096 bytes", "end it earlier, with *"
	case slim.Trim(text, " \t") != text:
		return v, "starts or ends with a space", "leave the space out: values arrive without"
	case strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
		return v, "holds a control character", "leave it out"
	}
	v.text, v.prefix = strings.CutSuffix(text, "*")
	return v, "", ""
}

// CanonicalHeader returns the header name in the form that Go's HTTP servers use: each word begins
// with an upper case letter.
//
//go:noinline
func CanonicalHeader(name string) string {
	b := []byte(name)
	for i, c := range b {
		if i == 0 || b[i-1] == '-' {
			b[i] = slim.UpperByte(c)
		} else {
			b[i] = slim.LowerByte(c)
		}
	}
	return string(b)
}

func (c *Condition) addClients(m *policy.Match) {
	for f, listed := range [ClientFields][]string{m.Tier, m.User, m.APIKey, m.Tenant} {
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

// CompilePrefixes normalizes address ranges. The result ok is false if one of them is invalid.
func CompilePrefixes(prefixes []netip.Prefix) (masked []netip.Prefix, ok bool) {
	for _, p := range prefixes {
		m, ok := CompilePrefix(p)
		if !ok {
			return nil, false
		}
		masked = append(masked, m)
	}
	return masked, true
}

// CompilePrefix normalizes an address range: it masks the address, and unmaps IPv4 from IPv6. The
// result ok is false for an invalid range, and for a range of mapped addresses that is wider than
// all of IPv4.
func CompilePrefix(p netip.Prefix) (masked netip.Prefix, ok bool) {
	addr, bits := p.Addr(), p.Bits()
	if addr.Is4In6() && bits >= 96 {
		addr, bits = addr.Unmap(), bits-96
	}
	masked, err := addr.Prefix(bits)
	return masked, p.IsValid() && err == nil && !addr.Is4In6()
}
