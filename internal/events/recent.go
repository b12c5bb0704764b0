// SPDX-License-Identifier: Apache-2.0

package events

import (
	"container/list"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/penstock/penstock/core/policy"
)

// Bounds of the remembered denials.
const (
	RecentClientsMax = 1024
	recentEach       = 8
)

// recentDenials remembers the latest denials of the clients that were denied most recently. The
// zero value is empty.
type recentDenials struct {
	mu      sync.Mutex
	clients map[string]*list.Element
	order   list.List // a list of *denials; the client that was denied last comes first
}

// denials are the latest denials of one client.
type denials struct {
	client string
	last   []Event // the denials, with the newest last
}

// addEvents remembers the denials among the events.
func (r *recentDenials) addEvents(all []Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range all {
		if e := &all[i]; e.Kind == KindDenied && e.Client != "" {
			d := r.client(e.Client)
			if len(d.last) == recentEach {
				copy(d.last, d.last[1:])
				d.last = d.last[:recentEach-1]
			}
			d.last = append(d.last, *e)
		}
	}
}

// recentDenials.client returns the denials of a client, and moves the client to the front of the
// order.
func (r *recentDenials) client(name string) *denials {
	if known := r.clients[name]; known != nil {
		r.order.MoveToFront(known)
		return known.Value.(*denials)
	}
	if r.clients == nil {
		r.clients = make(map[string]*list.Element)
	}
	if oldest := r.order.Back(); oldest != nil && r.order.Len() == RecentClientsMax {
		delete(r.clients, oldest.Value.(*denials).client)
		r.order.Remove(oldest)
	}
	d := &denials{client: name}
	r.clients[name] = r.order.PushFront(d)
	return d
}

// denialsOf returns the latest denials of a client, the newest first. For an
// address, they include the denials of its prefix, because a policy may show only the prefix.
func (r *recentDenials) denialsOf(client string) (all []Event) {
	names := []string{client}
	if id, ok := strings.CutPrefix(client, kindIP+":"); ok {
		if addr, err := netip.ParseAddr(id); err == nil {
			names = append(names, kindIP+":"+ShownAddress(addr, policy.AddressPrefix))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		if known := r.clients[name]; known != nil {
			all = append(all, known.Value.(*denials).last...)
		}
	}
	slices.SortStableFunc(all, func(a, b Event) int { return b.Time.Compare(a.Time) })
	return all
}
