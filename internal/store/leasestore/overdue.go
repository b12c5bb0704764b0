// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"math"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/lease"
)

// A call that hangs must not make every request that waits for it fail. When a call has taken
// several times as long as usual, the first waiting request makes another call for all of them, and
// whichever call returns first answers them. If the second call is overdue too, the next request
// waits twice as long. So a hanging store gets a few calls for a counter, not one from each
// request. If only individual calls hang, only their own requests fail, as without leases. If the
// store has only become slow, the second call comes early enough for all waiting requests.

// overdueAfter is the multiple of the usual duration after which a call is overdue.
const overdueAfter = 4

// overduePart sets a least time: no call is overdue before 1/overduePart of the timeout has passed.
// A shorter delay is often caused by this process itself.
const overduePart = 10

// triesMax bounds how many times the time after which a call is overdue is doubled. After that many
// doublings, this time exceeds the timeout.
const triesMax = 8

// heldCounter.ask prepares a call of the store for the counter. It returns false if no such call
// can be made now. The caller holds the lock.
func (h *heldCounter) ask(now counter.Micros, l *counter.Limit, cost int64) (lease.Call, bool) {
	asking, ok := h.counter.Ask(now, l, cost)
	if ok {
		h.pins++
		h.asked = now
	}
	return asking, ok
}

// Store.overdue returns the time until the call under way is overdue. The caller holds the lock.
func (s *Store) overdue(h *heldCounter) time.Duration {
	span := max(s.timeout/overduePart, overdueAfter*s.responseTime()) << h.tries
	return span - time.Duration(s.now()-h.asked)*time.Microsecond
}

// Store.patience returns how long a request waits before it checks whether the call under way is
// overdue.
func (s *Store) patience(p *part, w *waiter) time.Duration {
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	if w.decided {
		return math.MaxInt64
	}
	return max(0, s.overdue(p.held))
}

// Store.overtake makes a waiting request call the store if the call for which it waits is overdue
// and there is time. The request is then decided. Otherwise the method returns the time until the
// next check.
func (s *Store) overtake(p *part, w *waiter) (more time.Duration, over bool) {
	h := p.held
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	switch more = s.overdue(h); {
	case w.decided:
		return 0, true
	case more > 0:
		return more, false
	case time.Until(w.deadline) < s.responseTime(), s.responseTime() == 0 && h.tries > 0:
		// There is no time left, or the store's response time is unknown and a second call has
		// already been made.
		return math.MaxInt64, false
	}
	h.remove(w)
	h.counter.Leave(w.cost)
	h.counter.Overdue()
	h.tries = min(h.tries+1, triesMax)
	w.decided, w.verdict, w.err = true, lease.Ask, nil
	// The request calls only for itself, so another request must make the call for the other
	// waiting requests.
	if w.ask(h, s.now(), nil); w.verdict != lease.Ask {
		s.serve(h, nil, true)
	}
	w.done <- struct{}{}
	return 0, true
}
