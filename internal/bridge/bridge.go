// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"errors"
	"log/slog"
	"net/http"
	"sync"

	"github.com/penstock/penstock/core"
)

// Options set a bridge up.
type Options struct {
	Policy string     // a policy file
	Store  core.Store // answers what only a store knows; it stays the caller's to close
	// Logger is told of policies and failures, never of clients. Nil is silence.
	Logger *slog.Logger
}

// Bridge answers filters. Safe for concurrent use.
type Bridge struct {
	store    core.Store
	logger   *slog.Logger
	editions editions
	plans    sync.Pool
}

// New returns a bridge with the policy in force. The error says what is wrong with the policy, and where.
func New(o Options) (*Bridge, error) {
	if o.Store == nil {
		return nil, errors.New("a bridge needs a store")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	b := &Bridge{store: o.Store, logger: o.Logger}
	b.plans.New = func() any { return new(question) }
	return b, b.editions.open(o.Policy, o.Logger)
}

// Close ends following the policy file. Questions under way are answered.
func (b *Bridge) Close() error { return b.editions.close() }

// Handler serves filters and people.
func (b *Bridge) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/check", b.serveCheck)
	mux.HandleFunc("GET /v1/policy", b.servePolicy)
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	return mux
}
