// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/fallback"
	"github.com/penstock/penstock/internal/redisstore"
	"github.com/penstock/penstock/internal/tally"
)

// standIn returns what the handlers ask: the store that others share, and where it does not answer a rule with
// on_error: local, this process' memory.
func standIn(shared, memory core.Store, redis *redisstore.Store) core.Store {
	return fallback.New(shared, fallback.Options{Local: memory, Nodes: redis.Nodes, Prepare: redis.CountNodes,
		Failed: func(err error) { common.StoreErrors.WithLabelValues(tally.FailureKind(err)).Inc() }})
}
