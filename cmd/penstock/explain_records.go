// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/directory/redisdir"
	"github.com/penstock/penstock/internal/policyfile"
)

// The method plan plans a request with the records of clients and keys: those of the control plane,
// or, if the policy needs a directory, those in Redis. unread is true if no Redis is named for
// them.
func (q *question) plan(ctx context.Context, d *policyfile.Document, store *lookedAt, plan *core.Plan, add func()) (unread bool, err error) {
	needed := d.Directory || d.KeysInDirectory()
	source := new(failingSource)
	switch {
	case q.control != nil:
		source.Source = &recordSource{client: &q.control.controlClient}
	case !needed || store.redis == nil:
		add()
		return needed, nil
	default:
		source.Source = redisdir.New(store.redis)
	}
	if err = withRecords(ctx, source, plan, add); err == nil && source.failure != nil {
		err = fmt.Errorf("reading the records of clients: %w", source.failure)
	}
	return false, err
}

// withRecords plans a request with the records of a source.
func withRecords(ctx context.Context, source directory.Source, plan *core.Plan, add func()) error {
	clients, err := directory.Open(directory.Options{Source: source, Timeout: lookTimeout, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer clients.Close() //nolint:errcheck // nothing was written
	plan.UseDirectory(clients)
	add()
	if len(plan.Unresolved()) > 0 {
		clients.Resolve(ctx, plan, add)
	}
	return nil
}

// failingSource keeps the error of the last read that failed. A directory continues without records
// then. A read that was interrupted by the end of the command is not kept.
type failingSource struct {
	directory.Source
	failure error
}

// Read implements [directory.Source].
func (s *failingSource) Read(ctx context.Context, names []policy.ClientName, texts [][]byte) error {
	err := s.Source.Read(ctx, names, texts)
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
		s.failure = err
	}
	return err
}
