// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"sync/atomic"
	"time"
)

// silentMax is how long a server may answer no batch while the answers to PINGs still excuse the
// batches that time out. A busy server answers some batches within that time. A server that answers
// PINGs and no batch is paused (CLIENT PAUSE, a failover), or the network drops long packets.
const silentMax = 5 * time.Second

// The type silence is the time during which batches have timed out and none was answered. The
// instants of a silence are those of the store's clock. A silence is safe for concurrent use.
type silence struct {
	first  atomic.Int64 // the time at which the first batch of the silence was sent
	latest atomic.Int64 // the time at which the latest batch of the silence was sent
}

// The method note records that a batch timed out. A silence begins with the batch if another batch
// was answered since the previous timeout. A silence also begins if there were no batches for the
// time most, since a time without calls is no evidence against the server.
func (s *silence) note(sent, lastAnswered int64, most time.Duration) {
	first := s.first.Load()
	if first <= lastAnswered || sent-s.latest.Load() >= int64(most) {
		s.first.CompareAndSwap(first, sent)
	}
	s.latest.Store(sent)
}

// The method silent reports whether batches have timed out for silentMax and none was answered.
func (n *node) silent() bool {
	first := n.silence.first.Load()
	return first > n.lastAnswered.Load() && n.store.clock()-time.Duration(first) >= n.store.settings.silentMax
}
