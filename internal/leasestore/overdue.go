// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"math"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/lease"
)

// A call that hangs is not to take with it all who came to wait for it. When it has taken several times as long as calls do,
// the first of those who wait makes another one, for all of them, and whichever returns first answers them. If that is overdue
// as well, the next one waits twice as long. So a store that hangs is asked a few times for a counter, and not by each who
// waits; one whose calls hang now and then fails those that made these calls, as without leases; and one that turns out to be
// far away is asked in time for all who wait for the first answer.

// overdueAfter is how many times as long as a call takes one may take that others wait for.
const overdueAfter = 4

// overduePart is the part of the timeout that such a call may take in any case: what hangs is often this process.
const overduePart = 10

// triesMax bounds how often the time is doubled: by then it is longer than the timeout.
const triesMax = 8

// ask makes a request the one that asks for its counter. The caller holds the lock.
func (h *held) ask(now core.Micros, l *core.Limit, cost int64) (lease.Asking, bool) {
	asking, ok := h.counter.Ask(now, l, cost)
	if ok {
		h.pins++
		h.asked = now
	}
	return asking, ok
}

// overdue returns how long until the call under way is overdue. The caller holds the lock.
func (s *Store) overdue(h *held) time.Duration {
	span := max(s.timeout/overduePart, overdueAfter*s.away()) << h.tries
	return span - time.Duration(s.now()-h.asked)*time.Microsecond
}

// patience returns how long a request is to wait for the call under way before it looks whether that is overdue.
func (s *Store) patience(p *part, w *waiter) time.Duration {
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	if w.decided {
		return math.MaxInt64
	}
	return max(0, s.overdue(p.held))
}

// overtake has a request make the next call, if the one that it waits for is overdue, and if there is time for that: then it
// is decided. Otherwise it says how long to wait until the next look.
func (s *Store) overtake(p *part, w *waiter) (more time.Duration, over bool) {
	h := p.held
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	switch more = s.overdue(h); {
	case w.decided:
		return 0, true
	case more > 0:
		return more, false
	case time.Until(w.deadline) < s.away(), s.away() == 0 && h.tries > 0:
		return math.MaxInt64, false // too late, or it may be with the next one: it is not known how far away the store is
	}
	h.remove(w)
	h.counter.Leave(w.cost)
	h.counter.Overdue()
	h.tries = min(h.tries+1, triesMax)
	w.decided, w.verdict, w.err = true, lease.Ask, nil
	if w.ask(h, s.now(), nil); w.verdict != lease.Ask { // it asks for itself, so that nobody asks for the others
		s.serve(h, nil, true)
	}
	w.done <- struct{}{}
	return 0, true
}
