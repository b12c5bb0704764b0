// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
)

// BreakerState is the state of the circuit breaker.
type BreakerState uint32

// The states of the circuit breaker.
const (
	BreakerClosed BreakerState = iota // calls go to Redis
	BreakerOpen                       // calls fail at once; Redis is probed in the background
	// Redis answered a probe; one call at a time is tried, and other calls fail at once
	BreakerHalfOpen
)

// String returns the state's name: "closed", "open" or "half_open".
func (s BreakerState) String() string {
	switch s {
	case BreakerClosed:
		return "closed"
	case BreakerOpen:
		return "open"
	case BreakerHalfOpen:
		return "half_open"
	default:
		return fmt.Sprintf("BreakerState(%d)", uint32(s))
	}
}

// Worse returns the worse one of two states: open is worse than half open.
func Worse(a, b BreakerState) BreakerState {
	if a == BreakerOpen || b == BreakerClosed {
		return a
	}
	return b
}

// The conditions under which the breaker opens.
const (
	// failuresInRow is the number of consecutive failed batches that opens the breaker. One or two
	// failures can be connections closed by an idle timeout.
	failuresInRow = 5
	// failuresOfLast64 is the number of failed batches among the last 64 that opens the breaker.
	// failuresOfLast64 detects a Redis that is too slow but not down.
	failuresOfLast64 = 32
)

// breaker is the circuit breaker of one server. Batches report their outcome to it. A background
// probe, not a timer, moves it from open to half open. The breaker is not a library type. The
// available library takes a lock for every call. It also waits for a fixed time before it tries
// again, which a probe cannot shorten. The zero breaker is closed. A breaker is safe for concurrent
// use.
type breaker struct {
	state atomic.Uint32 // BreakerState; written under mu
	// the number of changes of state, so that batches from before a change are ignored; written
	// under mu
	epoch atomic.Uint64

	mu      sync.Mutex
	history uint64 // the last 64 batches, the newest in the lowest bit, 1 for a failure
	trial   bool   // whether a call is being tried while the breaker is half open

	// changed is called with the new state while mu is held, so it must not block.
	changed func(BreakerState)
}

// State returns the current state.
func (b *breaker) State() BreakerState { return BreakerState(b.state.Load()) }

// breaker.admit reports whether a call may go to Redis, and whether it is a trial. A trial must end
// with a call of report or of release.
func (b *breaker) admit() (admitted, trial bool) {
	switch b.State() {
	case BreakerClosed:
		return true, false
	case BreakerOpen:
		return false, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.State() {
	case BreakerClosed:
		return true, false
	case BreakerHalfOpen:
		if !b.trial {
			b.trial = true
			return true, true
		}
	}
	return false, false
}

// breaker.release ends a trial whose call was never sent, so that the next call is tried instead.
func (b *breaker) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trial = false
}

// breaker.report records the outcome of a batch that began in the given epoch.
func (b *breaker) report(epoch uint64, failed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if epoch != b.epoch.Load() {
		return
	}
	b.history <<= 1
	if failed {
		b.history |= 1
	}
	switch b.State() {
	case BreakerClosed:
		const row = 1<<failuresInRow - 1
		if failed && (b.history&row == row || bits.OnesCount64(b.history) >= failuresOfLast64) {
			b.setLocked(BreakerOpen)
		}
	case BreakerHalfOpen:
		if failed {
			b.setLocked(BreakerOpen)
		} else {
			b.setLocked(BreakerClosed)
		}
	}
}

// breaker.trip opens a closed breaker at once, unless its state has changed since the epoch.
func (b *breaker) trip(epoch uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if epoch == b.epoch.Load() && b.State() == BreakerClosed {
		b.setLocked(BreakerOpen)
	}
}

// tryAgain moves an open breaker to half open.
func (b *breaker) tryAgain() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.State() == BreakerOpen {
		b.setLocked(BreakerHalfOpen)
	}
}

// whileHalfOpen calls f under the lock if the breaker is half open.
func (b *breaker) whileHalfOpen(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.State() == BreakerHalfOpen {
		f()
	}
}

func (b *breaker) setLocked(state BreakerState) {
	b.state.Store(uint32(state))
	b.epoch.Add(1)
	b.history, b.trial = 0, false
	if b.changed != nil {
		b.changed(state)
	}
}
