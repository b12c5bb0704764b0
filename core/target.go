// SPDX-License-Identifier: Apache-2.0

package core

import "strings"

// ServesTarget reports whether a request names what it asks for in a form that every server reads alike, so that the rules
// decide about what will be served. A front answers any other request with 400, whatever its rules are.
//
// The path begins with "/"; or it is "*" of OPTIONS, or empty for CONNECT, which names an authority. The host is empty, or a
// name or an address, and a port or not: what RFC 9110 allows, without percent-encoding and without user information.
// Neither is read further.
func ServesTarget(method, path, host string) bool {
	switch {
	case strings.HasPrefix(path, "/"):
	case path == "*" && method == "OPTIONS":
	case path == "" && method == "CONNECT":
	default:
		return false
	}
	return validHost(host)
}

// BadTarget is the body of the answer to a request that [ServesTarget] does not report.
const BadTarget = `{"type":"about:blank","title":"Bad Request","status":400,` +
	`"detail":"The request target or the host is of a form that is not served.","error":"Bad request"}`

// validHost reports whether servers look a host up under one name: that of the text without its port.
func validHost(host string) bool {
	port := ""
	if rest, ok := strings.CutPrefix(host, "["); ok {
		end := strings.IndexByte(rest, ']')
		if end < 0 || strings.IndexByte(rest[:end], ':') < 0 {
			return false // no address of IPv6; some servers take the brackets off a name
		}
		for i := range end {
			if c := rest[i]; !isNameByte(c) && c != ':' && c != '%' {
				return false
			}
		}
		if port = rest[end+1:]; port != "" && port[0] != ':' {
			return false
		}
	} else {
		name := host
		if colon := strings.IndexByte(host, ':'); colon >= 0 {
			name, port = host[:colon], host[colon:]
		}
		for i := range len(name) {
			if !isNameByte(name[i]) {
				return false
			}
		}
	}
	for i := 1; i < len(port); i++ {
		if !isDigit(port[i]) {
			return false
		}
	}
	return true
}

// isNameByte reports whether the byte may be in a registered name of RFC 3986 as it is: a letter, a digit or one of
// -._~!$&'()*+,;=.
func isNameByte(c byte) bool {
	letter := c | 0x20
	return isDigit(c) || letter >= 'a' && letter <= 'z' || strings.IndexByte("-._~!$&'()*+,;=", c) >= 0
}
