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
	// readyTime bounds a check of the store.
	readyTime = 500 * time.Millisecond
	// readyAge is how long the result of a check is reused. Any caller may request /readyz, so not
	// every request may cause a call to the store.
	readyAge = time.Second
)

// reached is the result of the last check of the store.
type reached struct {
	mu  sync.Mutex // a lock held during a check, so that checks do not overlap
	at  time.Time
	err error
}

// readiness is the body of /readyz. The body names no server, because any caller may read it.
type readiness struct {
	Ready   bool     `json:"ready"`
	Version string   `json:"policy_version"`
	Missing []string `json:"missing,omitempty"` // the reasons why the bridge is not ready
	// Warnings need attention, but the limits of the last good policy still hold.
	Warnings []string `json:"warnings,omitempty"`
}

// Bridge.readiness checks everything that is needed for decisions.
func (b *Bridge) readiness() (r readiness) {
	now := b.policy.Current()
	r.Version = now.ID
	if b.leaving.Load() {
		r.Missing = append(r.Missing, "the bridge is about to stop")
	}
	if b.options.Reachable != nil {
		if err := b.reachable(); err != nil {
			r.Missing = append(r.Missing, "the store does not answer, or is not set up so that limits hold: the log says why")
		}
	}
	if !now.KeysReady() {
		r.Missing = append(r.Missing, "a key set has not been fetched yet: tokens count as invalid")
	}
	if b.policy.Err() != nil {
		r.Warnings = append(r.Warnings, "the last edit of the policy file is rejected and the previous policy is in force: see the log")
	}
	r.Ready = len(r.Missing) == 0
	return r
}

// Bridge.reachable checks the store, unless it was checked a moment ago. The check does not end
// when a caller disconnects, because others use its result.
func (b *Bridge) reachable() error {
	s := &b.reached
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at.IsZero() || time.Since(s.at) >= readyAge {
		ctx, cancel := context.WithTimeout(context.Background(), readyTime)
		defer cancel()
		s.err, s.at = b.options.Reachable(ctx), time.Now()
		b.logProblem(s.err)
	}
	return s.err
}

// logProblem logs a problem of the store when it changes.
func (b *Bridge) logProblem(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if before := b.storeProblem.Swap(&text); text != "" && (before == nil || *before != text) {
		b.logger.Warn("the bridge is not ready: the store does not answer, or is not set up so that limits hold", "error", err)
	}
}

// serveReady answers 200, or 503 with a list of what is missing.
func (b *Bridge) serveReady(w http.ResponseWriter, _ *http.Request) {
	now := b.readiness()
	w.Header().Set("Content-Type", "application/json")
	if !now.Ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(now) // the caller may have left
}
