// SPDX-License-Identifier: Apache-2.0

package identify

import (
	"net/netip"
	"strings"

	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// ForwardedHeader is the request header to which each proxy appends the address of its peer.
// Elements to the left of those that trusted proxies wrote can be forged by the client.
const ForwardedHeader = "X-Forwarded-For"

// Bounds of the part of a chain of addresses that is read, from the right. A client can send as
// much as the server accepts, but no real chain has that many trusted proxies.
const (
	ForwardedMax          = 64  // elements, including empty ones; those further left are not read
	forwardedElementBytes = 128 // bytes of one element with its spaces; a longer one is not an address
)

// Forwarding selects the proxies that a policy trusts. The zero Forwarding uses the front's
// address.
type Forwarding struct {
	Hops    int
	Trusted match.AddrSet
}

// Client returns the client's plain address, or the zero Addr if it is unknown. If an element is
// not an address, Client returns the address to its right, which is the last one that a trusted
// proxy wrote.
func (f *Forwarding) Client(a policy.Attributes) (netip.Addr, match.AddressOrigin) {
	if f.Hops == 0 && f.Trusted.Empty() {
		return match.PlainAddr(a.Peer()), match.AddressOfFront
	}
	remote := match.PlainAddr(a.Remote())
	if f.Hops > 0 {
		value, _ := a.Header(ForwardedHeader)
		return ChainAddr(value, remote, f.Hops)
	}
	if !f.Trusted.Contains(remote) {
		return remote, match.AddressOfConnection
	}
	value, _ := a.Header(ForwardedHeader)
	return f.Rightmost(value, remote)
}

// Rightmost returns the right-most address that is not trusted. The argument last is the trusted
// address of the peer.
func (f *Forwarding) Rightmost(value string, last netip.Addr) (netip.Addr, match.AddressOrigin) {
	c := chain{rest: value, left: ForwardedMax}
	for {
		element, more := c.next()
		if !more {
			return last, match.AddressAllTrusted
		}
		addr, ok := parseForwarded(element)
		switch {
		case !ok:
			return last, match.AddressGarbage
		case !f.Trusted.Contains(addr):
			return addr, match.AddressForwarded
		}
		last = addr
	}
}

// ChainAddr returns the address that is the given number of places to the left of the peer. If the
// chain is shorter, it returns the peer's address: the request did not pass through all the
// proxies, so its sender could have written the chain.
func ChainAddr(value string, peer netip.Addr, hops int) (netip.Addr, match.AddressOrigin) {
	c := chain{rest: value, left: ForwardedMax}
	last, origin := peer, match.AddressForwarded
	for range hops {
		element, more := c.next()
		if !more {
			return peer, match.AddressShort
		}
		addr, ok := parseForwarded(element)
		if origin = match.AddressGarbage; ok {
			last, origin = addr, match.AddressForwarded
		}
	}
	return last, origin
}

// chain is the unread rest of a list of addresses, which is read from the right.
type chain struct {
	rest string
	left int // the number of elements that can still be read
}

// chain.next returns the next non-empty element, without spaces. If an element is too long, next
// returns a part that is not an address, and ends the chain.
func (c *chain) next() (element string, more bool) {
	for c.rest != "" && c.left > 0 {
		c.left--
		window := c.rest[max(0, len(c.rest)-forwardedElementBytes-1):]
		comma := strings.LastIndexByte(window, ',')
		if comma < 0 && len(window) > forwardedElementBytes {
			c.rest = ""
			return "?", true
		}
		c.rest = c.rest[:len(c.rest)-len(window)+max(0, comma)]
		if element = trimSpace(window[comma+1:]); element != "" {
			return element, true
		}
	}
	return "", false
}

// parseForwarded parses an element of a chain: an address with or without a port ("192.0.2.1:80",
// "[2001:db8::1]:80"). An IPv6 address may have brackets and a zone. The result is plain.
func parseForwarded(text string) (addr netip.Addr, ok bool) {
	if four, ok := match.ParseIPv4(text); ok { // faster for most elements, which are just an IPv4 address
		return netip.AddrFrom4(four), true
	}
	if six, ok := match.ParseIPv6(text); ok {
		return six.Addr().Unmap(), true
	}
	colon := strings.IndexByte(text, ':')
	switch {
	case text[0] == '[':
		end := strings.IndexByte(text, ']')
		if end < 0 || colon < 0 || colon > end || !isPortOrNone(text[end+1:]) {
			return addr, false
		}
		text = text[1:end]
	case colon >= 0 && colon == strings.LastIndexByte(text, ':'):
		if !isPortOrNone(text[colon:]) {
			return addr, false
		}
		text = text[:colon]
	}
	text, _, zoned := strings.Cut(text, "%")
	addr, ok = match.ParseAddr(text)
	if zoned && (addr.Is4() || addr.Is4In6()) {
		return addr, false
	}
	return addr.Unmap(), ok
}

// isPortOrNone reports whether the text is empty or a colon with a port number.
func isPortOrNone(text string) bool {
	if text == "" {
		return true
	}
	_, ok := slim.WholeNumber(text[1:], 1<<16-1)
	return ok && text[0] == ':'
}
