// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"github.com/caddyserver/caddy/v2"

	"github.com/penstock/penstock/core"
)

// stores holds the stores of the configuration that runs and of the one that is being loaded, by what they were made
// from. A reload that does not change the store finds it here with its counters.
var stores = caddy.NewUsagePool()

// pooledStore is a store in use by one or several configurations.
type pooledStore struct {
	core.Store
	counters  func() int     // counters held; nil if the store cannot tell
	overflows func() uint64  // checks answered by shared counters because the store was full; nil with counters
	breaker   func() float64 // what the circuit breaker does, as the metric says it; nil if there is none
	close     func() error
	settler   *settler
	counting  counting
}

// Destruct closes the store when no configuration uses it any more: its requests have been answered then, and what
// remained to be done about them is done first.
func (s *pooledStore) Destruct() error {
	if !s.settler.stop(settleDeadline) {
		caddy.Log().Named("penstock").Warn("the store closes before everything was settled: what was reserved stands as charged")
	}
	return s.close()
}
