// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
)

// Readiness is the answer of /readyz. A text is "ok", or names what cannot be used, without the
// cause, because callers need no token.
type Readiness struct {
	Ready    bool   `json:"ready"`
	Schema   string `json:"schema"`
	Database string `json:"database"`
	Redis    string `json:"redis"`
	// Publisher is "publishes", "stands by", or "is interrupted; see the log". Publisher does not
	// affect readiness, because another process may publish.
	Publisher string `json:"publisher"`
	// OIDC says whether the keys of the issuer for people have arrived. OIDC does not affect
	// readiness, because tokens of the control plane work without them. OIDC is "" without an
	// issuer.
	OIDC string `json:"oidc,omitempty"`
	// Unpublished is the number of changes that are not in Redis yet. Unpublished is only in
	// /metrics.
	Unpublished int64 `json:"-"`
	// Invalid is the number of clients, keys and policies that are not published because their rows
	// are not valid. Invalid is only in /metrics: what is in Redis stays in force.
	Invalid int64 `json:"-"`
}

// looks lets the callers of /readyz and /metrics share a check of the servers, because these
// callers need no token.
type looks struct {
	mu  sync.Mutex
	now *look
}

// A look is a check of the servers that is under way.
type look struct {
	done  chan struct{}
	ready Readiness
}

// looks.look returns the result of the look that is under way, or else of one that begins now. If
// the caller leaves while it waits for the look of another caller, the result is not ready.
func (l *looks) look(ctx context.Context, ready func(context.Context) Readiness) Readiness {
	l.mu.Lock()
	if under := l.now; under != nil {
		l.mu.Unlock()
		select {
		case <-under.done:
			return under.ready
		case <-ctx.Done():
			return Readiness{}
		}
	}
	own := &look{done: make(chan struct{})}
	l.now = own
	l.mu.Unlock()
	defer func() { // after a panic as well: otherwise all later callers would wait forever
		l.mu.Lock()
		l.now = nil
		l.mu.Unlock()
		close(own.done)
	}()
	own.ready = ready(context.WithoutCancel(ctx))
	return own.ready
}

func (a *API) readyz(w http.ResponseWriter, r *http.Request) {
	ready := a.looks.look(r.Context(), a.o.Ready)
	w.Header().Set("Content-Type", "application/json")
	if !ready.Ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(ready)
}
