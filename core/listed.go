// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"strconv"
)

// Bounds of a list of clients. A list of this length, one entry each, takes some 30 MB and a client is looked up in it as
// in a short one.
const (
	listedMax         = 100_000 // entries, and clients in all of them
	listedReasonBytes = 256     // a reason stands in logs
)

// listing is a list of entries made ready for requests, indexed by who they tell of. A nil listing tells of nobody. It is
// immutable.
type listing struct {
	entries []listed
	within  addrSet     // everybody of whom an entry tells by address: most clients are in none, and need no more
	ranges  rangeTables // their numbers are links
	clients clientTable // so are theirs
	links   []link      // link 0 is none
	dated   bool        // an entry ends some day
}

// listed is a [Listed] made ready for requests.
type listed struct {
	at     string // where it stands: "block[2]"
	reason string
	until  Micros
}

// link says that an entry tells of somebody, and where the next entry is that does.
type link struct{ entry, next int32 }

// compileListed builds the index of a list; at says where its entries stand. ok is false if it holds what is no address
// range.
func compileListed(at string, entries []Listed) (l *listing, ok bool) {
	if len(entries) == 0 {
		return nil, true
	}
	l = &listing{links: make([]link, 1, 1+listedClients(entries))}
	for i := range entries {
		e := &entries[i]
		l.entries = append(l.entries, listed{at: at + "[" + strconv.Itoa(i) + "]", reason: e.Reason, until: e.Until})
		l.dated = l.dated || e.Until != 0
	}
	var ranges []netip.Prefix
	for i := len(entries) - 1; i >= 0; i-- { // from the last to the first, so that each link leads to later entries
		l.index(int32(i), &entries[i])
		masked, ok := compilePrefixes(entries[i].IP)
		if !ok {
			return nil, false
		}
		for _, p := range masked {
			l.ranges.set(p, l.linked(int32(i), l.ranges.number(p)))
		}
		ranges = append(ranges, masked...)
	}
	l.within = newAddrSet(ranges)
	return l, true
}

// listedClients returns how many clients and ranges of clients a list tells of.
func listedClients(entries []Listed) (n int) {
	for i := range entries {
		n += entries[i].clients()
	}
	return n
}

// clients returns how many clients and ranges of clients the entry tells of.
func (e *Listed) clients() int {
	return len(e.IP) + len(e.User) + len(e.APIKey) + len(e.Tier) + len(e.Tenant)
}

// byField returns the values of the entry, field by field.
func (e *Listed) byField() [clientFields][]string {
	return [clientFields][]string{clientTier: e.Tier, clientUser: e.User, clientAPIKey: e.APIKey, clientTenant: e.Tenant}
}

// index puts the entry under every client it names.
func (l *listing) index(entry int32, e *Listed) {
	for f, values := range e.byField() {
		for _, text := range values {
			l.clients.set(f, text, l.linked(entry, l.clients[f][text]))
		}
	}
}

// linked returns a link to the entry and then to what next leads to. An entry that tells of somebody twice is linked once.
func (l *listing) linked(entry, next int32) int32 {
	if next != 0 && l.links[next].entry == entry {
		return next
	}
	l.links = append(l.links, link{entry, next})
	return int32(len(l.links) - 1)
}

// find returns the first entry that tells of the client and has not ended, or nil, and leaves it in p.toldBy. The work does
// not grow with the length of the list but for a comparison for each doubling of its ranges, for ended entries about this
// very client, and, if it is in one of the ranges, for IPv6 and IPv4 with the number of different prefix lengths: 129 and
// 33 at most. It does not allocate.
func (p *Plan) find(l *listing) *listed {
	if l == nil {
		return nil
	}
	now := Micros(0)
	if l.dated {
		now = p.request.attrs.Now()
	}
	first := int32(len(l.entries))
	for f, links := range l.clients {
		if links != nil {
			first = min(first, l.inForce(links[clientField(f).of(&p.asking)], now))
		}
	}
	if l.within.contains(p.request.peer) {
		t, key := l.ranges.of(p.request.peer), newAddrKey(p.request.peer)
		for _, bits := range t.bits {
			first = min(first, l.inForce(t.numbers[key.masked(bits)], now))
		}
	}
	if int(first) == len(l.entries) {
		return nil
	}
	p.toldBy = &l.entries[first]
	return p.toldBy
}

// inForce returns the first entry of a chain of links that has not ended, or the number of entries.
func (l *listing) inForce(at int32, now Micros) int32 {
	for ; at != 0; at = l.links[at].next {
		if e := &l.entries[l.links[at].entry]; e.until == 0 || now < e.until {
			return l.links[at].entry
		}
	}
	return int32(len(l.entries))
}
