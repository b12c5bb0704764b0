// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"net/http"
	"net/http/httptrace"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
)

// Placeholders that reverse_proxy and error routes set.
const (
	proxyRetries = "http.reverse_proxy.retries"          // the number of attempts after the first
	proxyLatency = "http.reverse_proxy.upstream.latency" // the time until an upstream answered
	routeError   = "http.error"                          // the error that error routes handle
)

// sendWatch records whether a request may have been sent to an upstream. If one attempt was sent,
// the upstream may have processed the request, even if later attempts have failed.
type sendWatch struct {
	connected atomic.Bool // an HTTP transport had a connection for the request
	reported  atomic.Bool // the transport reports its attempts; the FastCGI transport does not
	trace     httptrace.ClientTrace
	replacer  *caddy.Replacer
	latency   any  // the value of proxyLatency before the request was passed on
	failed    bool // whether routeError was set before the request was passed on
}

// watchSending adds a sendWatch to the context of a request and returns it.
func watchSending(r *http.Request) *sendWatch {
	watch := new(sendWatch)
	watch.trace.GetConn = func(string) { watch.reported.Store(true) }
	// WroteHeaders would be too late: over HTTP/2 it may be called after the attempt has failed.
	watch.trace.GotConn = func(httptrace.GotConnInfo) { watch.connected.Store(true) }
	watch.replacer = r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	watch.latency, watch.failed = watch.marks()
	// Outer handlers have the same request, so the request is changed in place.
	*r = *r.WithContext(httptrace.WithClientTrace(r.Context(), &watch.trace))
	return watch
}

// marks returns the values of the placeholders that change when another reverse_proxy handles the
// request.
func (w *sendWatch) marks() (latency any, failed bool) {
	latency, _ = w.replacer.Get(proxyLatency)
	_, failed = w.replacer.Get(routeError)
	return latency, failed
}

// mayHaveSent reports whether an upstream may have received a request whose last attempt could not
// connect. If the transport does not report its attempts, any earlier attempt may have sent the
// request.
func (w *sendWatch) mayHaveSent() bool {
	if w.connected.Load() {
		return true
	}
	if latency, failed := w.marks(); latency != w.latency || failed != w.failed {
		return true // another reverse_proxy has handled the request, too, and may have sent it
	}
	if w.reported.Load() {
		return false
	}
	retries, known := w.replacer.Get(proxyRetries)
	return known && retries != 0
}
