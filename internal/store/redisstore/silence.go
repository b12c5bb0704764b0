// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"sync/atomic"
	"time"
)

// silentMax is how long a server may leave all batches unanswered while its answers to PINGs still
// excuse it. A busy server answers some batches within that time. A server that answers PINGs and
// no batch is paused (CLIENT PAUSE, a failover), or the network drops long packets.
const silentMax = 5 * time.Second

// starvedMax is how long a server may answer late before that counts as an outage. A burst of one
// client can take the processor from a server on the same machine, or from this process, for about
// a second. A server that has answered nothing in time for longer than that is too slow to be used.
const starvedMax = 2 * time.Second

// processLateMin determines when this process counts as late. If a batch exceeds its patience by
// more than processLateMin plus a tenth of the patience, this process was late to read the reply. A
// server that has not answered such a batch is excused.
const processLateMin = 100 * time.Millisecond

// processLate reports whether this process was late itself. The argument named took is the time
// after which a batch or a PING was given up.
func (s *settings) processLate(took time.Duration) bool {
	return took > s.patience+s.patience/10+processLateMin
}

// lateness is the time during which all answered batches were late. In the zero lateness, no batch
// was late. A lateness is safe for concurrent use.
type lateness struct {
	first atomic.Int64 // the time at which the first late batch was sent; 0 if the last one was in time
}

// lateness.lasts records how long a batch took, by the store's clock, and reports whether all
// batches have been late for starvedMax.
func (l *lateness) lasts(sent, took, timeout time.Duration) bool {
	if took <= timeout {
		if l.first.Load() != 0 {
			l.first.Store(0)
		}
		return false
	}
	l.first.CompareAndSwap(0, int64(sent))
	first := l.first.Load()
	return first != 0 && sent+took-time.Duration(first) >= starvedMax
}

// silence is the time during which batches have timed out and none was answered. The instants of a
// silence are those of the store's clock. A silence is safe for concurrent use.
type silence struct {
	first  atomic.Int64 // the time at which the first batch of the silence was sent
	latest atomic.Int64 // the time at which the latest batch of the silence was sent
}

// silence.note records that a batch timed out. A silence begins with the batch if another batch was
// answered since the previous timeout. A silence also begins if no batch was sent for the duration
// named most or longer, because a time without calls is no evidence against the server.
func (s *silence) note(sent, lastAnswered int64, most time.Duration) {
	first := s.first.Load()
	if first <= lastAnswered || sent-s.latest.Load() >= int64(most) {
		s.first.CompareAndSwap(first, sent)
	}
	s.latest.Store(sent)
}

// node.silent reports whether batches have timed out for silentMax and none was answered.
func (n *node) silent() bool {
	first := n.silence.first.Load()
	return first > n.lastAnswered.Load() && n.store.clock()-time.Duration(first) >= n.store.settings.silentMax
}
