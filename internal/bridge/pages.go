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

// hostLogEvery is the least time between two lines of the log about a host by which the bridge was asked in vain.
const hostLogEvery = time.Minute

// unpaged refuses what a page in a browser asks. A page that somebody on this machine opens could spend any client's
// allowance, where the bridge lets in whoever can connect, and read the policy.
//
// A browser says on behalf of which page it asks, but not of a page that asks the host that it came from. An attacker's page
// does that by a name of its own, which leads to this machine once the page has loaded. So over TCP, where neither a token nor
// the name in a certificate keeps such a page out, the host must be one that no attacker's name can be: an address, localhost,
// a name without a dot such as the filter's penstock, or one of Options.Hosts. Browsers reach no Unix sockets.
func (b *Bridge) unpaged(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		site := r.Header.Get("Sec-Fetch-Site") // none: a person has typed the address
		switch {
		case r.Header.Get("Origin") != "" || site != "" && site != "none":
			b.metrics.calls.WithLabelValues(callUnauthorized).Inc()
			http.Error(w, "no page in a browser may ask", http.StatusForbidden)
		case b.options.Token == "" && r.TLS == nil && overTCP(r) && !b.knowsHost(r.Host):
			b.metrics.calls.WithLabelValues(callUnauthorized).Inc()
			b.warnOfHost(r.Host)
			http.Error(w, "the bridge is not known by this host: ask by its address or as localhost, give it --host with the name, or a token",
				http.StatusMisdirectedRequest)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// overTCP reports whether the request came so, and not over a Unix socket.
func overTCP(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && local.Network() != "unix"
}

// knowsHost reports whether no page of an attacker has the host, with or without a port.
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

// warnOfHost logs a host that is not known, now and then: it may be what filters were told to call the bridge.
func (b *Bridge) warnOfHost(host string) {
	const most = 100
	now := time.Now().Unix()
	if last := b.hostTold.Load(); now-last < int64(hostLogEvery/time.Second) || !b.hostTold.CompareAndSwap(last, now) {
		return
	}
	b.logger.Warn("a call is refused, since its host is none that the bridge is known by: if filters send it, give the bridge --host",
		"host", host[:min(len(host), most)])
}
