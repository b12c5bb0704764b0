// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"sync"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/leasestore"
	"github.com/penstock/penstock/internal/redisstore"
	"github.com/penstock/penstock/internal/settle"
)

// stores holds the stores of the configuration that runs and of the one that is being loaded, by what they were made
// from. A reload that does not change the store finds it here with its counters.
var stores = caddy.NewUsagePool()

// pooledStore is a store in use by one or several configurations. It is open until none has it any more and the requests
// that came to them are done: after a reload Caddy lets those go on, and some wait for a throttle rule, or for the end of
// a stream that says what it cost.
type pooledStore struct {
	core.Store
	counters  func() int        // counters held; nil if the store cannot tell
	overflows func() uint64     // checks answered by shared counters because the store was full; nil with counters
	leases    *leasestore.Store // stands before a store that others share; nil before one in memory
	redis     *redisstore.Store // what the leases are taken from; nil with a store in memory
	close     func() error
	settler   *settle.Queue
	counting  counting

	requests atomic.Int64 // that are under way
	removed  atomic.Bool  // no configuration has it any more
	ended    sync.Once
}

// hold keeps the store open until release.
func (s *pooledStore) hold() { s.requests.Add(1) }

// release is the end of a request that holds the store. The last one closes a store that no configuration has, so that a
// process that waits for its requests has settled them as well.
func (s *pooledStore) release() {
	if s.requests.Add(-1) == 0 && s.removed.Load() {
		if err := s.end(); err != nil {
			caddy.Log().Named("penstock").Warn("closing a store that is used no more", zap.Error(err))
		}
	}
}

// Destruct closes the store when no configuration uses it any more, or leaves that to the last of its requests. A process
// that ends has waited for them as long as it wants to.
func (s *pooledStore) Destruct() error {
	s.removed.Store(true)
	if s.requests.Load() > 0 && !caddy.Exiting() {
		return nil
	}
	return s.end()
}

// end closes the store, once. What remained to be done about its requests is done first.
func (s *pooledStore) end() (err error) {
	s.ended.Do(func() {
		if !s.settler.Stop(settle.Deadline) {
			caddy.Log().Named("penstock").Warn("the store closes before everything was settled: what was reserved stands as charged")
		}
		err = s.close()
	})
	return err
}
