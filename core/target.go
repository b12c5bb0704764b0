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
	`"detail":"The target or the host is of a form that is not served."}`

// validHost reports whether servers look a host up under one name: that of the text without its port.
func validHost(host string) bool {
	inside, colons, port := false, 0, false // the brackets of an IPv6 address, which has colons; and behind a colon of the host's
	for i := 0; i < len(host); i++ {
		switch c := host[i]; {
		case port:
			if !isDigit(c) {
				return false
			}
		case c == '[':
			if inside = i == 0; !inside {
				return false
			}
		case c == ']':
			if !inside || colons == 0 || i+1 < len(host) && host[i+1] != ':' {
				return false // no address: some servers take the brackets off a name
			}
			inside = false
		case c == ':' && inside:
			colons++
		case c == ':':
			port = true
		case !isNameByte(c) && (c != '%' || !inside):
			return false
		}
	}
	return !inside
}

// isNameByte reports whether the byte may be in a registered name of RFC 3986 as it is: a letter, a digit or one of
// -._~!$&'()*+,;=.
func isNameByte(c byte) bool {
	return isDigit(c) || c|0x20 >= 'a' && c|0x20 <= 'z' || strings.IndexByte("-._~!$&'()*+,;=", c) >= 0
}
