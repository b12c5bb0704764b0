// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

const (
	// readyTime is how long the store may take to say that it is there.
	readyTime = 500 * time.Millisecond
	// readyAge is how long what it said is told again: whoever can connect may ask, and should not ask the store by that as
	// often as it likes.
	readyAge = time.Second
)

// reached is what the store said of itself last.
type reached struct {
	mu  sync.Mutex // held while it is asked, so that it is asked by one at a time
	at  time.Time
	err error
}

// readiness is what /readyz says. It names no server: whoever may ask need not know.
type readiness struct {
	Ready   bool     `json:"ready"`
	Version string   `json:"policy_version"`
	Missing []string `json:"missing,omitempty"` // why it is not ready
	// Warnings are what should be looked at: they do not keep anybody from being limited as the last good policy says.
	Warnings []string `json:"warnings,omitempty"`
}

// readiness asks for everything that deciding needs.
func (b *Bridge) readiness() (r readiness) {
	now := b.editions.inForce()
	r.Version = now.version
	if b.leaving.Load() {
		r.Missing = append(r.Missing, "the bridge is about to stop")
	}
	if b.options.Reachable != nil {
		if err := b.reachable(); err != nil {
			r.Missing = append(r.Missing, "the store does not answer, or is not set up so that limits hold: the log says why")
		}
	}
	if !now.keysReady() {
		r.Missing = append(r.Missing, "a key set has not been fetched yet: tokens are taken for invalid")
	}
	if b.editions.refused.Load() {
		r.Warnings = append(r.Warnings, "the policy file was edited and is refused, the policy before is in force: the log says why")
	}
	r.Ready = len(r.Missing) == 0
	return r
}

// reachable asks the store, unless it has just been asked. Who asks first and leaves spoils no answer of others.
func (b *Bridge) reachable() error {
	s := &b.reached
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at.IsZero() || time.Since(s.at) >= readyAge {
		ctx, cancel := context.WithTimeout(context.Background(), readyTime)
		defer cancel()
		s.err, s.at = b.options.Reachable(ctx), time.Now()
		b.tell(s.err)
	}
	return s.err
}

// tell logs what is wrong with the store, when that becomes something else.
func (b *Bridge) tell(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if before := b.told.Swap(&text); text != "" && (before == nil || *before != text) {
		b.logger.Warn("the bridge is not ready: the store does not answer, or is not set up so that limits hold", "error", err)
	}
}

// serveReady answers 200, or 503 and what is missing.
func (b *Bridge) serveReady(w http.ResponseWriter, _ *http.Request) {
	now := b.readiness()
	w.Header().Set("Content-Type", "application/json")
	if !now.Ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(now) // whoever is gone needs none
}
