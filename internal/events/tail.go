// SPDX-License-Identifier: Apache-2.0

package events

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
)

// TailMax is the number of events that a log remembers for those who follow it.
const TailMax = 2048

// tail remembers the latest events. Events are numbered from 0. The zero tail is empty.
type tail struct {
	mu   sync.Mutex
	ring []Event // event number i is ring[i%TailMax]
	next uint64  // the number of the next event
}

// addEvents remembers events.
func (t *tail) addEvents(all []Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range all {
		if len(t.ring) < TailMax {
			t.ring = append(t.ring, all[i])
		} else {
			t.ring[t.next%TailMax] = all[i]
		}
		t.next++
	}
}

// Tail is a part of the latest events of a log.
type Tail struct {
	Events  []Event  // the oldest first
	Numbers []uint64 // the numbers of the events
	// From and Next bound the numbers of this part. If From is greater than the requested number,
	// the events between these numbers are lost.
	From, Next uint64
}

// Tail returns each event e, from the given number on, for which wants(e) is true.
// Events of the last second are not in the log yet.
func (l *Log) Tail(from uint64, wants func(*Event) bool) (t Tail) {
	if l == nil {
		return t
	}
	l.tail.mu.Lock()
	defer l.tail.mu.Unlock()
	t.Next = l.tail.next
	t.From = min(max(from, t.Next-uint64(len(l.tail.ring))), t.Next)
	for n := t.From; n < t.Next; n++ {
		if e := &l.tail.ring[n%TailMax]; wants(e) {
			t.Events, t.Numbers = append(t.Events, *e), append(t.Numbers, n)
		}
	}
	return t
}

// Filter selects events. The zero Filter selects all. Outages and dropped decisions concern every
// client, so each filter selects their events.
type Filter struct {
	// Client is a client, written KIND:ID. An address or a network selects the clients whose
	// addresses it overlaps.
	Client string `json:"client,omitempty"`
	Rule   string `json:"rule,omitempty"`
}

// Wants reports whether the filter selects an event.
func (f *Filter) Wants(e *Event) bool {
	if e.Kind != KindDenied && e.Kind != KindAdmitted {
		return true
	}
	return (f.Rule == "" || f.Rule == e.Rule) && (f.Client == "" || f.Client == e.Client || overlaps(f.Client, e.Client))
}

// overlaps reports whether two clients are addresses or networks with an address in common.
func overlaps(a, b string) bool {
	left, ok := network(a)
	if !ok {
		return false
	}
	right, ok := network(b)
	return ok && left.Overlaps(right)
}

// network returns the network of a client that is written as ip:ADDRESS or ip:CIDR.
func network(client string) (netip.Prefix, bool) {
	id, ok := strings.CutPrefix(client, kindIP+":")
	if !ok {
		return netip.Prefix{}, false
	}
	if addr, err := netip.ParseAddr(id); err == nil {
		addr = addr.Unmap().WithZone("")
		return netip.PrefixFrom(addr, addr.BitLen()), true
	}
	prefix, err := netip.ParsePrefix(id)
	return prefix, err == nil
}

// Sort sorts events by time, then by node and client.
func Sort(all []Event) {
	slices.SortStableFunc(all, byTime)
}
