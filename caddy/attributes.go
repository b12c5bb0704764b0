// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// attributes implements [policy.Attributes] for one request. An attributes is not safe for
// concurrent use. The method reset makes it ready for the next request, and the method release
// drops the reference to the request.
type attributes struct {
	r      *http.Request
	path   string
	opaque bool // the target is opaque and has no path
	peer   netip.Addr
	began  counter.Micros // 0 unless usage is counted
}

// attributes.reset loads a request with its variables. The path is the one that the client sent,
// before any rewrite.
func (a *attributes) reset(r *http.Request, vars map[string]any) {
	if a.r, a.began = r, 0; usageMeter.On() {
		a.began = a.Now()
	}
	target, path := r.URL, ""
	if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok && original.URL != nil {
		target, path = original.URL, sentPath(original.URL)
	}
	if a.path = path; target == r.URL {
		a.path = r.URL.EscapedPath()
	}
	if a.path == "" && target.Host != "" && r.Method != http.MethodConnect {
		a.path = "/" // a target in absolute form without a path
	}
	a.opaque = target.Opaque != ""
	a.peer = clientAddr(r, vars)
}

// servesTarget reports whether Caddy will serve the same path and host that the attributes show. A
// target that the server could not parse as a path is opaque. For an opaque target, the attributes
// show an empty path, but proxies forward the target unchanged.
func (a *attributes) servesTarget() bool {
	return !a.opaque && core.ServesTarget(a.r.Method, a.path, a.r.Host)
}

// sentPath returns the path that Caddy forwards for a URL that no handler has modified. The result
// is the path as the client sent it, if every byte in it is allowed in a path. Otherwise Go encodes
// the decoded path anew: "\" becomes "%5C", and "%2F" becomes "/". Other servers may or may not
// treat these as separators. A path over the length limit is returned unescaped, because escaping a
// megabyte would take a millisecond.
func sentPath(u *url.URL) string {
	switch {
	case u.RawPath != "" && isEncoded(u.RawPath):
		return u.RawPath // EscapedPath returns the same, but decodes the path first
	case len(u.Path) > policy.PathBytesMax:
		return u.Path
	}
	return u.EscapedPath()
}

// isEncoded reports whether Go forwards a path with these bytes unchanged.
func isEncoded(path string) bool {
	for i := 0; i < len(path); i++ {
		if c := path[i]; !isPathByte[c] {
			return false
		}
	}
	return true
}

// isPathByte holds the bytes that Go does not escape in a path.
var isPathByte = func() (table [256]bool) {
	for c := '0'; c <= 'z'; c++ {
		table[c] = c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a'
	}
	for _, c := range "-_.~!$&'()*+,;=:@[]%/" {
		table[c] = true
	}
	return table
}()

func (a *attributes) release() { *a = attributes{} }

// clientAddr returns Caddy's client_ip: the address that a trusted proxy reports, or else the
// address of the connection.
func clientAddr(r *http.Request, vars map[string]any) netip.Addr {
	text, _ := vars[caddyhttp.ClientIPVarKey].(string)
	if text == "" {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil {
			return netip.Addr{} // a Unix socket has no client address
		}
		text = host
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}
	}
	return addr.WithZone("")
}

func (a *attributes) Path() string     { return a.path }
func (a *attributes) Host() string     { return a.r.Host }
func (a *attributes) Peer() netip.Addr { return a.peer }
func (a *attributes) Query() string    { return a.r.URL.RawQuery }

// Method returns the request's method as an upstream sees it. For an extended CONNECT that opens a
// WebSocket (RFC 8441, RFC 9220) it returns GET, because the reverse proxy forwards it as an
// HTTP/1.1 WebSocket handshake.
func (a *attributes) Method() string {
	if a.r.Method == http.MethodConnect && opensWebSocket(a.r) {
		return http.MethodGet
	}
	return a.r.Method
}

// opensWebSocket reports whether a CONNECT request is an extended CONNECT that opens a WebSocket.
// Go's HTTP/3 server stores the :protocol field in Proto, and its HTTP/2 server stores it in the
// header.
func opensWebSocket(r *http.Request) bool {
	const protocol = "websocket"
	return r.ProtoMajor == 3 && r.Proto == protocol || r.ProtoMajor == 2 && r.Header.Get(":protocol") == protocol
}

// Remote returns the address of the connection. The result is invalid over a Unix socket.
func (a *attributes) Remote() netip.Addr {
	addr, err := netip.ParseAddrPort(a.r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return addr.Addr()
}

// Began returns the time at which the handler received the request, or 0 unless usage is counted.
func (a *attributes) Began() counter.Micros { return a.began }

func (a *attributes) Now() counter.Micros { return counter.Micros(time.Now().UnixMicro()) }

// Header returns the values of a header field, trimmed and joined into one, as upstreams read them.
// For each folded line after a value, Go's server keeps one space. Without trimming, clients could
// vary the number of spaces to get different values.
func (a *attributes) Header(name string) (string, bool) {
	switch values := a.r.Header[name]; len(values) {
	case 0:
		return "", false
	case 1:
		return trimSpace(values[0]), true
	default:
		if slices.ContainsFunc(values, func(line string) bool { return trimSpace(line) != line }) {
			values = slices.Clone(values)
			for i := range values {
				values[i] = trimSpace(values[i])
			}
		}
		return policy.JoinLines(name, values), true
	}
}

// trimSpace removes leading and trailing whitespace that RFC 9110 excludes from a field value.
func trimSpace(line string) string { return strings.Trim(line, " \t") }

// Attr returns the value of the placeholder with that name. An unknown or empty placeholder counts
// as missing.
func (a *attributes) Attr(name string) (string, bool) {
	replacer, ok := a.r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok {
		return "", false
	}
	value, _ := replacer.GetString(name)
	return value, value != ""
}

var _ policy.Attributes = (*attributes)(nil)
