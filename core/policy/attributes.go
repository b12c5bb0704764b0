// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"strings"

	"github.com/penstock/penstock/core/counter"
)

// Attributes is a request as a front sees it. A front is a source of requests: Caddy, Envoy, or
// Envoy's rate limit protocol. All values are untrusted. Implementations need not be safe for
// concurrent use.
type Attributes interface {
	// Path is the original request path, before rewrites, still percent-encoded, without the query.
	Path() string
	// Method is the request method as sent.
	Method() string
	// Host is the request's host, with or without port.
	Host() string
	// Header returns a request header by its canonical name. Several lines are joined as JoinLines
	// joins them.
	Header(name string) (value string, ok bool)
	// Query is the query string as sent, without the question mark.
	Query() string
	// Peer is the client's address as the front determines it. The front's configuration decides
	// whether it reads forwarded addresses. Peer is the zero Addr if the address is unknown.
	Peer() netip.Addr
	// Remote is the address at the other end of the connection, which may be a proxy's. Remote is
	// the zero Addr if that address is unknown.
	Remote() netip.Addr
	// Now is the front's clock. Now is used for the dates in a policy; counters use the store's
	// clock.
	Now() counter.Micros
	// Attr returns a value that the proxy itself provides.
	Attr(name string) (value string, ok bool)
}

// JoinLines joins the lines of a request header by ", ", or by "; " for Cookie, as RFC 9113
// requires. Servers read every line of Cookie, so a second line must not hide a credential.
// JoinLines allocates only for several lines. If the lines together exceed [CarrierBytesMax], it
// joins only as many of the last ones as are needed to exceed the bound. Callers can therefore
// still detect the excess, and every part of X-Forwarded-For that is read is included.
func JoinLines(name string, lines []string) string {
	first := len(lines)
	for size := 0; first > 0 && size <= CarrierBytesMax+len(", "); {
		first--
		size += len(lines[first]) + len(", ")
	}
	lines = lines[first:]
	if name == "Cookie" {
		return strings.Join(lines, "; ")
	}
	return strings.Join(lines, ", ")
}
