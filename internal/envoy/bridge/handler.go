// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/listen"
	"github.com/penstock/penstock/internal/operator"
)

// Handler serves filters and the JSON API. /healthz and /readyz only report whether the bridge
// works. All other paths need the token, except that the paths of operators need the token of
// operators. Requests of browser pages are rejected.
func (b *Bridge) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/check", b.requireToken(b.sendNodes(b.serveCheck)))
	mux.HandleFunc("GET /v1/policy", b.requireToken(b.servePolicy))
	mux.HandleFunc("GET /metrics", b.requireToken(promhttp.HandlerFor(b.options.Registry, promhttp.HandlerOpts{}).ServeHTTP))
	mux.HandleFunc(operator.Prefix, b.serveOperatorsByToken())
	mux.HandleFunc("GET /healthz", b.open(func(http.ResponseWriter, *http.Request) {}))
	mux.HandleFunc("GET /readyz", b.open(b.serveReady))
	mux.HandleFunc("GET "+StatusPath, b.serveStatus)
	checked := b.guard.RejectPages(mux, b.options.Token)
	return listen.Restrain(b.recoverPanics(b.closeAfterReply(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == StatusPath && b.fromEnvoy(r) {
			// Over HTTP/1.1, net/http would otherwise read the body before it sends the answer, so
			// a client that keeps its body back would hold the connection.
			_ = http.NewResponseController(w).EnableFullDuplex()
			mux.ServeHTTP(w, r) // unchecked: a browser page may send it through Envoy
			return
		}
		checked.ServeHTTP(w, r)
	}))))
}

var nodesHeader = http.CanonicalHeaderKey(wire.NodesHeader)

// sendNodes sends filters the number of nodes that count in the store. A filter that cannot reach
// its bridge computes its share under on_error: local from that number.
func (b *Bridge) sendNodes(next http.HandlerFunc) http.HandlerFunc {
	if b.options.Nodes == nil {
		return next
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if nodes := b.options.Nodes(); nodes > 1 {
			w.Header()[nodesHeader] = []string{strconv.Itoa(nodes)}
		}
		next(w, r)
	}
}

// closeAfterReply closes each HTTP/1.1 connection after its next answer, if the bridge is about to
// stop. If the bridge closed an idle connection, a caller might send a call at that moment, and
// the call would be lost. HTTP/2 announces the end of a connection by itself.
func (b *Bridge) closeAfterReply(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b.leaving.Load() && r.ProtoMajor == 1 {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// recoverPanics answers 500 to a call that panics, and logs the panic. Otherwise net/http would
// close the connection, with all its other calls, and write to a log that is meant for errors of
// callers.
func (b *Bridge) recoverPanics(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if reason := recover(); reason != nil {
				b.metrics.calls.WithLabelValues(callPanic).Inc()
				b.panicked(reason)
				http.Error(w, "internal error (panic): see the log", http.StatusInternalServerError)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// requireToken admits callers that send the token.
func (b *Bridge) requireToken(next http.HandlerFunc) http.HandlerFunc {
	return b.requireTokenOf("the token of the bridge", b.options.Token, next)
}

// requireTokenOf admits callers that send the token, or every caller if the token is "". The
// argument name is the name of the token in messages.
func (b *Bridge) requireTokenOf(name, token string, next http.HandlerFunc) http.HandlerFunc {
	if token == "" {
		return b.open(next)
	}
	return b.guard.RequireToken(name, token, next)
}

// Bridge.open admits every caller.
func (b *Bridge) open(next http.HandlerFunc) http.HandlerFunc {
	known := b.options.Token == ""
	return func(w http.ResponseWriter, r *http.Request) {
		b.options.Called(r.Context(), known)
		next(w, r)
	}
}
