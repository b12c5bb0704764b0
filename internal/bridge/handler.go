// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"crypto/subtle"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/penstock/penstock/internal/wire"
)

// Handler serves filters and people. Beside /healthz and /readyz, which say no more than whether it works, everything needs
// the token. No page in a browser is answered.
func (b *Bridge) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/check", b.guarded(b.telling(b.serveCheck)))
	mux.HandleFunc("GET /v1/policy", b.guarded(b.servePolicy))
	mux.HandleFunc("GET /metrics", b.guarded(promhttp.HandlerFor(b.options.Registry, promhttp.HandlerOpts{}).ServeHTTP))
	mux.HandleFunc("GET /healthz", b.open(func(http.ResponseWriter, *http.Request) {}))
	mux.HandleFunc("GET /readyz", b.open(b.serveReady))
	return b.spared(b.parting(b.unpaged(mux)))
}

var nodesHeader = http.CanonicalHeaderKey(wire.NodesHeader)

// telling tells filters how many nodes count in the store, for rules with on_error: local: a filter that cannot reach its bridge
// counts its share by that.
func (b *Bridge) telling(next http.HandlerFunc) http.HandlerFunc {
	if b.options.Fallback.Nodes == nil {
		return next
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if nodes := b.options.Fallback.Nodes(); nodes > 1 {
			w.Header()[nodesHeader] = []string{strconv.Itoa(nodes)}
		}
		next(w, r)
	}
}

// parting closes connections over HTTP/1.1 with their answers once the bridge is about to stop. One that it closed while nobody asks
// over it could be asked over in that moment, and the call would be lost. HTTP/2 has a word of its own for that.
func (b *Bridge) parting(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b.leaving.Load() && r.ProtoMajor == 1 {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// spared answers 500 to a call that panics, and logs it. net/http would hang up, with all that others ask over the
// connection, and tell it to a log that is for what callers do.
func (b *Bridge) spared(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if reason := recover(); reason != nil {
				b.metrics.calls.WithLabelValues(callPanic).Inc()
				b.panicked(reason)
				http.Error(w, "a panic, which the log tells of", http.StatusInternalServerError)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// guarded lets those pass that show the token. It compares in a time that says nothing of the token but its length.
func (b *Bridge) guarded(next http.HandlerFunc) http.HandlerFunc {
	if b.options.Token == "" {
		return b.open(next)
	}
	want := []byte("Bearer " + b.options.Token)
	return func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), want) != 1 {
			b.metrics.calls.WithLabelValues(callUnauthorized).Inc()
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "this needs the token of the bridge: send it as Authorization: Bearer TOKEN", http.StatusUnauthorized)
			return
		}
		b.options.Called(r.Context(), true)
		next(w, r)
	}
}

// open lets everybody pass.
func (b *Bridge) open(next http.HandlerFunc) http.HandlerFunc {
	known := b.options.Token == ""
	return func(w http.ResponseWriter, r *http.Request) {
		b.options.Called(r.Context(), known)
		next(w, r)
	}
}
