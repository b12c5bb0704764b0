// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"sync"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/enforce"
	"github.com/penstock/penstock/internal/enforce/settle"
	"github.com/penstock/penstock/internal/fleet"
	"github.com/penstock/penstock/internal/status"
	"github.com/penstock/penstock/internal/store"
	"github.com/penstock/penstock/internal/usage/inflate"
)

// stores holds the stores of all loaded configurations, keyed by their settings. A reload that does
// not change the settings keeps the store and its counters.
var stores = caddy.NewUsagePool()

// Through the variable outages, stores that keep their counters in the same place count together
// while Redis does not answer, even if they belong to different configurations. So a reload that
// changes other settings forgets nothing.
var outages store.Pool

// pooledStore is a store that one or several configurations use. A pooledStore stays open until no
// configuration uses it and the requests of all configurations that used it have ended. Caddy lets
// requests continue after a reload, and some of them wait in a throttle queue or serve a stream.
// The body of a response can wait to be decompressed after its request has ended.
type pooledStore struct {
	counter.Store
	opened   *store.Store // the layers of the store, for metrics
	enforcer *enforce.Enforcer
	// directory is the directory of clients in the store; nil without one.
	directory *directory.Directory
	close     func() error
	settler   *settle.Queue
	inflating *inflate.Queue // decompresses bodies that contain a cost
	exiting   func() bool    // reports whether the process exits
	counting  counting
	statuses  *status.Bounds // bounds on the requests by which clients ask for their own limits

	member *fleet.Member // nil before join
	joined sync.Once

	ended sync.Once

	_        [64]byte     // every request changes requests and only reads what precedes
	requests atomic.Int64 // requests being served and bodies in the queue
	removed  atomic.Bool  // whether no configuration uses the store any more
	_        [48]byte
}

// pooledStore.hold keeps the store open until release is called.
func (s *pooledStore) hold() { s.requests.Add(1) }

// pooledStore.release ends one request's hold on the store. If no configuration uses the store, the
// last request corrects all pending charges and then closes the store.
func (s *pooledStore) release() {
	if s.releaseOne() {
		s.endUnused()
	}
}

// pooledStore.releaseBody ends the hold of a body in the queue. If the store must be closed, a new
// goroutine closes it, because other bodies wait for the caller. A process that exits does not wait
// for such a goroutine, so then the caller closes the store.
func (s *pooledStore) releaseBody() {
	switch {
	case !s.releaseOne():
	case s.exiting():
		s.endUnused()
	default:
		go s.endUnused()
	}
}

// pooledStore.releaseOne ends one hold, and reports whether the caller must close the store.
func (s *pooledStore) releaseOne() bool { return s.requests.Add(-1) == 0 && s.removed.Load() }

func (s *pooledStore) endUnused() {
	if err := s.end(); err != nil {
		caddy.Log().Named("penstock").Warn("closing an unused store", zap.Error(err))
	}
}

// pooledStore.finishBodies waits for the bodies in the queue if the process exits. Their requests
// have already ended.
func (s *pooledStore) finishBodies() {
	if s.exiting() && !s.inflating.Wait(settle.Deadline) {
		caddy.Log().Named("penstock").Warn("the process exits before all compressed bodies were read: their reserved units stay charged")
	}
}

// Destruct is called when no configuration uses the store. Destruct closes the store, or leaves
// that to its last request or body. A process that exits has waited for its requests, for at most
// Caddy's grace period, and then for their bodies. Destruct does not wait for requests and bodies
// that are still under way after that.
func (s *pooledStore) Destruct() error {
	s.removed.Store(true)
	if s.requests.Load() > 0 && !s.exiting() {
		return nil
	}
	return s.end()
}

// pooledStore.end closes the store once, after the charges of its requests are corrected.
func (s *pooledStore) end() (err error) {
	s.ended.Do(func() {
		if !s.settler.Stop(settle.Deadline) {
			caddy.Log().Named("penstock").Warn("the store closes before all charges were settled: the reserved units stay charged")
		}
		s.leave()
		err = s.close()
	})
	return err
}
