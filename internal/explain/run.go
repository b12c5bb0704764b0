// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
)

// Question is the argument of [Run]: the request to explain, and the rules, records and counters
// that decide it. Records may be nil.
type Question struct {
	Rules   *core.Ruleset
	Request *Request
	Records directory.Source // of clients, networks and API keys
	Store   counter.Store
	// StoreName is where the counters are; "" if the store is empty.
	StoreName string
	// Wait bounds each read of records.
	Wait time.Duration
}

// Errors that Run wraps.
var (
	ErrRecords = errors.New("reading the records of clients")
	ErrStore   = errors.New("reading the counters")
)

// Run explains a request.
func Run(ctx context.Context, q *Question) (*Explanation, error) {
	var plan core.Plan
	add := func() {
		plan.Trace()
		plan.Add(q.Rules, q.Request)
	}
	if q.Records == nil {
		add()
	} else if err := q.addWithRecords(ctx, &plan, add); err != nil {
		return nil, err
	}
	if err := look(ctx, q.Store, &plan); err != nil {
		return nil, err
	}
	decision := plan.Decide()
	return newExplanation(&plan.Explain()[0], &decision, q.StoreName), nil
}

// addWithRecords plans the request with the records of a source.
func (q *Question) addWithRecords(ctx context.Context, plan *core.Plan, add func()) error {
	source := &failingSource{Source: q.Records}
	clients, err := directory.Open(directory.Options{Source: source, Timeout: q.Wait, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer clients.Close() //nolint:errcheck // nothing was written
	plan.UseDirectory(clients)
	add()
	if len(plan.Unresolved()) > 0 {
		clients.Resolve(ctx, plan, add)
	}
	if err := source.failed(); err != nil {
		return fmt.Errorf("%w: %w", ErrRecords, err)
	}
	return nil
}

// look evaluates the plan's checks, and those of all shards, without charging anything.
func look(ctx context.Context, store counter.Store, plan *core.Plan) error {
	looks := plan.Looks()
	results := make([]counter.Result, len(looks))
	for from := 0; from < len(looks); from += counter.ChecksMax {
		to := min(from+counter.ChecksMax, len(looks))
		if err := store.Take(ctx, looks[from:to], results[from:to]); err != nil {
			return fmt.Errorf("%w: %w", ErrStore, err)
		}
	}
	plan.Looked(results)
	return nil
}

// failingSource keeps the error of the last failed read of records. A directory hides such an
// error, because it continues without records. If the end of the command interrupts a read, that
// error is not kept.
type failingSource struct {
	directory.Source
	mu      sync.Mutex
	failure error
}

// Read implements [directory.Source].
func (s *failingSource) Read(ctx context.Context, names []policy.ClientName, texts [][]byte) error {
	err := s.Source.Read(ctx, names, texts)
	s.keep(ctx, err)
	return err
}

func (s *failingSource) keep(ctx context.Context, err error) {
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
		s.mu.Lock()
		s.failure = err
		s.mu.Unlock()
	}
}

// failingSource.failed returns the error of the last read that failed, or nil.
func (s *failingSource) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// Networks implements [directory.Source].
func (s *failingSource) Networks(ctx context.Context) (map[string][]byte, error) {
	texts, err := s.Source.Networks(ctx)
	s.keep(ctx, err)
	return texts, err
}
