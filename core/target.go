// SPDX-License-Identifier: Apache-2.0

package core

import (
	"strings"

	"github.com/penstock/penstock/core/slim"
)

// ServesTarget reports whether the request target has a form that every server reads in the same
// way, so that the rules apply to the resource that is really served. A front responds with 400 to
// any other request, regardless of the rules.
//
// The path must begin with "/". It may be "*" for OPTIONS, and empty for CONNECT, which names an
// authority. The host may be empty; otherwise it must be a name or an address, with or without a
// port, as in RFC 9110, without percent-encoding and user information. ServesTarget checks nothing
// else.
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

// validHost reports whether all servers find the same name in a host, with or without a port.
func validHost(host string) bool {
	inside, colons, port := false, 0, false // an IPv6 address in brackets, which contains colons, optionally with a port
	for i := 0; i < len(host); i++ {
		switch c := host[i]; {
		case port:
			if !slim.IsDigit(c) {
				return false
			}
		case c == '[':
			if inside = i == 0; !inside {
				return false
			}
		case c == ']':
			if !inside || colons == 0 || i+1 < len(host) && host[i+1] != ':' {
				return false // not an address: some servers remove the brackets from a name
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

// isNameByte reports whether a registered name of RFC 3986 can contain the byte unescaped: a
// letter, a digit or one of -._~!$&'()*+,;=.
func isNameByte(c byte) bool {
	return slim.IsDigit(c) || c|0x20 >= 'a' && c|0x20 <= 'z' || strings.IndexByte("-._~!$&'()*+,;=", c) >= 0
}
