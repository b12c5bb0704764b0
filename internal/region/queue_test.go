// SPDX-License-Identifier: Apache-2.0

package region

import (
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/regiontest"
)

// moment is when an event happens. If two events happen at the same time, the one that was
// scheduled first comes first.
type moment struct {
	at    counter.Micros
	order int
}

func (m moment) before(other moment) bool {
	return m.at < other.at || m.at == other.at && m.order < other.order
}

// arrival is the next request of a scene's traffic. It is kept apart from the queue of events, so
// that the queue stays short.
type arrival struct {
	moment
	region int
	cost   int64
	next   regiontest.Source // nil after the last request
}

type event struct {
	moment
	do func()
}

// eventQueue is a heap whose first element is the next event. Unlike package container/heap, it
// does not allocate memory for each event.
type eventQueue []event

func (q *eventQueue) push(e event) {
	*q = append(*q, e)
	all := *q
	i := len(all) - 1
	for i > 0 {
		above := (i - 1) / 2
		if !e.before(all[above].moment) {
			break
		}
		all[i] = all[above]
		i = above
	}
	all[i] = e
}

func (q *eventQueue) pop() event {
	all := *q
	first, last := all[0], all[len(all)-1]
	all[len(all)-1] = event{} // what it refers to is not needed any more
	all = all[:len(all)-1]
	*q = all
	if len(all) == 0 {
		return first
	}
	i := 0
	for {
		below := 2*i + 1
		if below >= len(all) {
			break
		}
		if below+1 < len(all) && all[below+1].before(all[below].moment) {
			below++
		}
		if last.before(all[below].moment) {
			break
		}
		all[i] = all[below]
		i = below
	}
	all[i] = last
	return first
}

// mergeUses merges two lists of admitted requests, each sorted by time. A list is unsorted only if
// a mistake restores an old share, so that the region's clock goes back. In this case the function
// over sorts the merged list.
func mergeUses(a, b []use) []use {
	if len(a) == 0 {
		return b
	}
	all := make([]use, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if b[0].at < a[0].at {
			all, b = append(all, b[0]), b[1:]
		} else {
			all, a = append(all, a[0]), a[1:]
		}
	}
	return append(append(all, a...), b...)
}
