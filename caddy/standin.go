// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/fallback"
	"github.com/penstock/penstock/internal/leasestore"
	"github.com/penstock/penstock/internal/redisstore"
	"github.com/penstock/penstock/internal/tally"
)

// standIn returns what the handlers ask: the store that processes share and, while it does not answer, this
// process' memory, which bounds what on_error: allow and on_error: local let through.
func standIn(shared *leasestore.Store, memory core.Store, redis *redisstore.Store) core.Store {
	return fallback.New(shared, fallback.Options{Local: memory, Nodes: redis.Nodes, Prepare: redis.CountNodes, Known: shared.Used,
		Failed: func(err error) { common.StoreErrors.WithLabelValues(tally.FailureKind(err)).Inc() }})
}
