// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"sync/atomic"
	"time"
)

// The bounds of a batch, in checks.
const (
	paceMin = 8
	paceMax = 1 << 13
	// paceStart is the bound before the first batch. Even a server that gets little processor time
	// must be able to answer the first batches of several processes in time.
	paceStart = 32
)

// pace bounds how many checks a batch contains, so that the server answers it well within the
// timeout. A check takes the server about 20 µs, and more with a penalty or a long log, so 128
// calls of 24 checks each take longer than the timeout. Calls that do not fit wait in the queue,
// which serves clients fairly, and fail as an overload if they wait for too long. In the server's
// socket they would time out, which would look like an outage although one client has caused it.
// The zero pace is not valid. A pace is safe for concurrent use; a lost update only delays the
// adjustment.
type pace struct {
	most atomic.Int64 // the greatest number of checks in a batch
	// the duration of a small batch, in nanoseconds; it rises slowly, because the network may have
	// changed
	base atomic.Int64
}

// pace.learn adjusts the bound after a batch was answered or timed out.
func (p *pace) learn(took, timeout time.Duration, checks int, answered bool) {
	base := p.base.Load()
	if answered {
		if base == 0 || int64(took) < base {
			base = int64(took)
		} else {
			base += base >> 10
		}
		base = min(base, int64(timeout/2))
		p.base.Store(base)
	}
	most, target := p.most.Load(), time.Duration(base)+timeout/4
	switch {
	case !answered && int64(checks) > paceMin:
		most = min(most, int64(checks)/2)
	case answered && took > target:
		most = min(most, int64(float64(checks)*float64(target)/float64(took)))
	case answered && int64(checks) >= most && took < target/2:
		most *= 2
	default:
		return
	}
	p.most.Store(min(max(most, paceMin), paceMax))
}
