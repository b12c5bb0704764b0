// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// hostLogEvery is the least time between two log lines about unknown hosts.
const hostLogEvery = time.Minute

// rejectPages rejects requests that come from a page in a browser. If the bridge has no token, a
// page opened on this machine could otherwise use up any client's limit and read the policy.
//
// A browser names the origin of a page in its requests, unless the page asks its own host. An
// attacker's page can load from a name that later resolves to this machine, and then ask its own
// host. Over plain TCP without a token, nothing else stops that page. So the host must then be one
// that an attacker cannot own: an address, localhost, a name without a dot such as the filter's
// penstock, or one of Options.Hosts. Browsers cannot connect to Unix sockets.
func (b *Bridge) rejectPages(next http.Handler, token string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		site := r.Header.Get("Sec-Fetch-Site") // "none": the user typed the address
		switch {
		case r.Header.Get("Origin") != "" || site != "" && site != "none":
			b.metrics.calls.WithLabelValues(callUnauthorized).Inc()
			http.Error(w, "calls from browser pages are not allowed", http.StatusForbidden)
		case token == "" && r.TLS == nil && overTCP(r) && !b.knowsHost(r.Host):
			b.metrics.calls.WithLabelValues(callUnauthorized).Inc()
			b.warnOfHost(r.Host)
			http.Error(w, "the bridge does not have this host name: use its address or localhost, or start it with --host and the name or with a token",
				http.StatusMisdirectedRequest)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// overTCP reports whether the request came over TCP, not over a Unix socket.
func overTCP(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && local.Network() != "unix"
}

// knowsHost reports whether the host is one that an attacker's page cannot have. The port is
// ignored.
func (b *Bridge) knowsHost(host string) bool {
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
	return slices.ContainsFunc(b.options.Hosts, func(known string) bool { return strings.EqualFold(known, host) })
}

// warnOfHost logs an unknown host at a bounded rate: the filters' configuration may call the bridge
// by that name.
func (b *Bridge) warnOfHost(host string) {
	const most = 100
	now := time.Now().Unix()
	if last := b.hostLoggedAt.Load(); now-last < int64(hostLogEvery/time.Second) || !b.hostLoggedAt.CompareAndSwap(last, now) {
		return
	}
	b.logger.Warn("a call with an unknown host is rejected: if filters send this host, start the bridge with --host",
		"host", host[:min(len(host), most)])
}
