// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"strings"
)

// forwardedHeader is the request header in which each proxy writes down, behind what is there, whom it heard from. What
// stands left of the words of proxies that are ours, the client may have written.
const forwardedHeader = "X-Forwarded-For"

// Bounds of what is read of a chain of addresses, from the right. A client can write as much as the server takes; none of
// ours stands behind that many proxies.
const (
	forwardedMax          = 64  // elements, empty ones included; what stands left of them is not looked at
	forwardedElementBytes = 128 // of one element, with its spaces; a longer one is no address
)

// forwarding says whose word about a client's address a policy believes. The zero forwarding believes the front.
type forwarding struct {
	hops    int
	trusted addrSet
}

// addressOrigin says why an address is taken for the client's.
type addressOrigin uint8

const (
	addressOfFront      addressOrigin = iota // neither trusted_proxies nor trusted_hops is set
	addressOfConnection                      // the peer is no trusted proxy
	addressForwarded                         // a trusted proxy named it
	addressAllTrusted                        // the chain names trusted proxies only: the left-most of them
	addressShort                             // the chain is shorter than trusted_hops: that of the connection
	addressGarbage                           // left of it the chain holds something that is no address
)

var addressOrigins = [...]string{"as the proxy knows it", "of the connection, which is from no trusted proxy",
	"named by the last trusted proxy in X-Forwarded-For", "of the first trusted proxy: X-Forwarded-For names no other",
	"of the connection: X-Forwarded-For is shorter than trusted_hops",
	"of the last trusted proxy before something in X-Forwarded-For that is no address"}

// String says it as explanations do.
func (o addressOrigin) String() string { return addressOrigins[o] }

// client returns the client's address, plain; the zero Addr if it is unknown. What is no address tells nothing about who
// is behind it, so the address right of it, the last that a trusted proxy vouches for, stands for all it forwards.
func (f *forwarding) client(a Attributes) (netip.Addr, addressOrigin) {
	if f.hops == 0 && f.trusted.empty() {
		return plainAddr(a.Peer()), addressOfFront
	}
	remote := plainAddr(a.Remote())
	if f.hops > 0 {
		value, _ := a.Header(forwardedHeader)
		return chainAddr(value, remote, f.hops)
	}
	if !f.trusted.contains(remote) {
		return remote, addressOfConnection
	}
	value, _ := a.Header(forwardedHeader)
	return f.rightmost(value, remote)
}

// rightmost returns the right-most address that is not trusted. last is the trusted one right of the chain.
func (f *forwarding) rightmost(value string, last netip.Addr) (netip.Addr, addressOrigin) {
	c := chain{rest: value, left: forwardedMax}
	for {
		element, more := c.next()
		if !more {
			return last, addressAllTrusted
		}
		addr, ok := parseForwarded(element)
		switch {
		case !ok:
			return last, addressGarbage
		case !f.trusted.contains(addr):
			return addr, addressForwarded
		}
		last = addr
	}
}

// chainAddr returns the address so many places left of the peer, and the peer's own if the chain is shorter: then the
// request did not come through all the proxies, and whoever sent it wrote the chain.
func chainAddr(value string, peer netip.Addr, hops int) (netip.Addr, addressOrigin) {
	c := chain{rest: value, left: forwardedMax}
	last, origin := peer, addressForwarded
	for range hops {
		element, more := c.next()
		if !more {
			return peer, addressShort
		}
		addr, ok := parseForwarded(element)
		if origin = addressGarbage; ok {
			last, origin = addr, addressForwarded
		}
	}
	return last, origin
}

// chain is what remains to be read of a list of addresses, from the right.
type chain struct {
	rest string
	left int // elements that may still be looked at
}

// next returns the next element that is not empty, without spaces. Of one that is too long it returns enough to be no
// address, and then no more.
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

// parseForwarded reads an element of a chain: an address, with port ("192.0.2.1:80", "[2001:db8::1]:80") or without, an
// IPv6 address with or without brackets and zone. The result is plain.
func parseForwarded(text string) (addr netip.Addr, ok bool) {
	if four, ok := parseIPv4(text); ok { // most are just that
		return netip.AddrFrom4(four), true
	}
	if six, ok := parseIPv6(text); ok {
		return six.addr().Unmap(), true
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
	addr, ok = parseAddr(text)
	if zoned && (addr.Is4() || addr.Is4In6()) {
		return addr, false
	}
	return addr.Unmap(), ok
}

// isPortOrNone reports whether the text is empty, or a colon and the number of a port.
func isPortOrNone(text string) bool {
	if text == "" {
		return true
	}
	_, ok := wholeNumber(text[1:], 1<<16-1)
	return ok && text[0] == ':'
}
