// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"crypto/subtle"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// hostLogEvery is the least time between two log lines about unknown hosts.
const hostLogEvery = time.Minute

// Guard rejects callers. A Guard's fields must not change after its first call. A Guard is safe for
// concurrent use.
type Guard struct {
	// Hosts are additional host names by which callers may reach the process over TCP without a
	// token.
	Hosts []string
	// HostRemedy is the part of a message that explains how to add a host.
	HostRemedy string
	// Rejected is called for each rejected call. Admitted is called for each call that contains the
	// token, and for each call that needs no token.
	Rejected func()
	Admitted func(*http.Request)
	Logger   *slog.Logger

	hostLoggedAt atomic.Int64 // the second in which an unknown host was last logged
}

// RejectPages rejects requests that come from a page in a browser. If callers need no token, a page
// opened on this machine could otherwise use up any client's limit and read the policy.
//
// A browser names the origin of a page in its requests, unless the page asks its own host. An
// attacker's page can be loaded from a name that later resolves to this machine, and can then ask
// its own host. Over plain TCP without a token, nothing else stops that page. So the host must then
// be one that an attacker cannot own: an address, localhost, a name without a dot such as the
// filter's penstock, or one of Hosts. Browsers cannot connect to Unix sockets.
func (g *Guard) RejectPages(next http.Handler, token string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		site := r.Header.Get("Sec-Fetch-Site") // "none": the user typed the address
		switch {
		case r.Header.Get("Origin") != "" || site != "" && site != "none":
			g.Rejected()
			http.Error(w, "calls from browser pages are not allowed", http.StatusForbidden)
		case token == "" && r.TLS == nil && OverTCP(r) && !g.knowsHost(r.Host):
			g.Rejected()
			g.warnOfHost(r.Host)
			http.Error(w, "this is not a host name of the process that you call: "+g.HostRemedy, http.StatusMisdirectedRequest)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// RequireToken admits callers that send the token, or every caller if the token is "". Messages
// refer to the token by the argument name.
func (g *Guard) RequireToken(name, token string, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if token != "" && !Shows(r, token) {
			g.Rejected()
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "this needs "+name+": send it as Authorization: Bearer TOKEN", http.StatusUnauthorized)
			return
		}
		g.Admitted(r)
		next(w, r)
	}
}

// Shows reports whether a request has the token. The time of the comparison reveals only the
// token's length.
func Shows(r *http.Request, token string) bool {
	return subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+token)) == 1
}

// OverTCP reports whether the request arrived over TCP rather than over a Unix socket.
func OverTCP(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && local.Network() != "unix"
}

// knowsHost reports whether the host is one that an attacker's page cannot have. The port is
// ignored.
func (g *Guard) knowsHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(host)
	if !strings.ContainsAny(host, ".:") || host == "localhost." || strings.HasSuffix(host, ".localhost") {
		return true
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return true
	}
	return slices.ContainsFunc(g.Hosts, func(known string) bool { return strings.EqualFold(known, host) })
}

// warnOfHost logs an unknown host at a bounded rate, because an operator's program might be
// configured to call the process by that name.
func (g *Guard) warnOfHost(host string) {
	const most = 100
	now := time.Now().Unix()
	if last := g.hostLoggedAt.Load(); now-last < int64(hostLogEvery/time.Second) || !g.hostLoggedAt.CompareAndSwap(last, now) {
		return
	}
	g.Logger.Warn("a call with an unknown host is rejected: if programs are to send this host, "+g.HostRemedy, "host", host[:min(len(host), most)])
}
