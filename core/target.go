// SPDX-License-Identifier: Apache-2.0

package core

import (
	"strings"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// ServesTarget reports whether the request target has a form that every server reads in the same
// way, so that the rules apply to the resource that is really served. A front responds with 400 to
// any other request, regardless of the rules.
//
// The path must begin with "/", be "*" for OPTIONS, or be empty for CONNECT, which names an
// authority. The host may be empty. Otherwise it must be a name or an address as in RFC 9110, with
// or without a port. It must have no percent-encoding, user information, empty label or IPv6 zone.
// ServesTarget checks nothing else.
//
// A zone has a meaning only on the machine that connects. Some proxies, such as Caddy, remove it
// before they forward the host, and others, such as Envoy, do not.
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

// ServesTarget is like the function [ServesTarget], but allows any path if the policy does not
// compare paths, and any host if it does not compare hosts. ServesTarget is meant for a front whose
// requests can have other kinds of values in place of a path and a host.
func (rs *Ruleset) ServesTarget(method, path, host string) bool {
	if ServesTarget(method, path, host) {
		return true
	}
	paths, hosts := false, rs.who.ReadsHost()
	for i := range rs.rules {
		r := &rs.rules[i]
		if r.when == nil {
			continue
		}
		paths, hosts = paths || len(r.when.Patterns) > 0, hosts || r.when.ReadsHost()
		for k := range r.costs {
			paths, hosts = paths || len(r.costs[k].when.Patterns) > 0, hosts || r.costs[k].when.ReadsHost()
		}
		for k := range r.dims {
			hosts = hosts || r.dims[k].kind == policy.PerHost
		}
	}
	return (!paths || ServesTarget(method, path, "")) && (!hosts || validHost(host))
}

// validHost reports whether all servers find the same name in a host, with or without a port.
func validHost(host string) bool {
	// inside: c is in IPv6 brackets; colons: how many precede c there; port: c is in the port
	inside, colons, port := false, 0, false
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
		case !isNameByte(c), c == '.' && (i == 0 || host[i-1] == '.'):
			return false // not a byte of a name, or an empty label, which some servers ignore
		}
	}
	return !inside
}

// isNameByte reports whether a registered name of RFC 3986 can contain the byte unescaped: a
// letter, a digit or one of -._~!$&'()*+,;=.
func isNameByte(c byte) bool {
	return slim.IsDigit(c) || c|0x20 >= 'a' && c|0x20 <= 'z' || strings.IndexByte("-._~!$&'()*+,;=", c) >= 0
}
