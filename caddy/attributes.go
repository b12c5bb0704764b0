// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/penstock/penstock/core"
)

// attributes is one request as the policy sees it. It must not be used concurrently; reset makes it ready for the next
// request, and release lets go of the last.
type attributes struct {
	r      *http.Request
	path   string
	opaque bool // the target is, and has no path
	peer   netip.Addr
}

// reset takes the request in. The path is that of the request as it arrived, before any rewrite.
func (a *attributes) reset(r *http.Request) {
	a.r = r
	target, path := r.URL, ""
	if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok && original.URL != nil {
		target, path = original.URL, sentPath(original.URL)
	}
	if a.path = path; target == r.URL {
		a.path = r.URL.EscapedPath()
	}
	if a.path == "" && target.Host != "" && r.Method != http.MethodConnect {
		a.path = "/" // the absolute form without a path
	}
	a.opaque = target.Opaque != ""
	a.peer = clientAddr(r)
}

// served reports whether the request's target is of a form whose path and host are those that will be served. What the
// server could not parse as a path is opaque: it has an empty path here, and proxies send it on as it is.
func (a *attributes) served() bool {
	return !a.opaque && core.ServesTarget(a.r.Method, a.path, a.r.Host)
}

// sentPath is the path as it was sent, from a URL that nobody has changed since. One that is too long to be read is told as
// it is at hand: to escape a megabyte of it would take a millisecond.
func sentPath(u *url.URL) string {
	switch {
	case u.RawPath != "": // its bytes beyond ASCII are not escaped if they were not
		return u.RawPath
	case len(u.Path) > core.PathBytesMax:
		return u.Path
	}
	return u.EscapedPath()
}

func (a *attributes) release() { *a = attributes{} }

// clientAddr is Caddy's client_ip: the address a trusted proxy gave, or else that of the connection.
func clientAddr(r *http.Request) netip.Addr {
	text, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	if text == "" {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil {
			return netip.Addr{} // a Unix socket: nobody is told apart
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
func (a *attributes) Method() string   { return a.r.Method }
func (a *attributes) Host() string     { return a.r.Host }
func (a *attributes) Peer() netip.Addr { return a.peer }
func (a *attributes) Query() string    { return a.r.URL.RawQuery }

// Remote is the address of the connection; none over a Unix socket.
func (a *attributes) Remote() netip.Addr {
	addr, err := netip.ParseAddrPort(a.r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return addr.Addr()
}

func (a *attributes) Now() core.Micros { return core.Micros(time.Now().UnixMicro()) }

func (a *attributes) Header(name string) (string, bool) {
	switch values := a.r.Header[name]; len(values) {
	case 0:
		return "", false
	case 1:
		return values[0], true
	default:
		return core.JoinLines(name, values), true
	}
}

// Attr returns the value of the placeholder with that name. A placeholder that is unknown or empty is missing.
func (a *attributes) Attr(name string) (string, bool) {
	replacer, ok := a.r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok {
		return "", false
	}
	value, _ := replacer.GetString(name)
	return value, value != ""
}

var _ core.Attributes = (*attributes)(nil)
