// SPDX-License-Identifier: Apache-2.0

package identify

import (
	"net/netip"
	"strconv"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// Bounds of a list of clients. A list of ListedMax entries with one client each takes about 30 MB.
// A lookup in such a list takes as long as in a short one.
const (
	ListedMax         = 100_000 // bound of the entries, and of the clients in all of them together
	ListedReasonBytes = 256     // reasons are logged
)

// List is a compiled list of entries, indexed by client. A nil List contains no client. A List is
// immutable.
type List struct {
	entries []Entry
	// all listed addresses; a client outside them, as most are, needs no lookup in ranges
	within  match.AddrSet
	ranges  match.RangeTables // maps to links
	clients match.ClientTable // maps to links
	links   []link            // link 0 means none
	dated   bool              // at least one entry has an end
}

// Entry is a compiled [policy.Listed].
type Entry struct {
	_ slim.Incomparable

	At     string // its path in the policy: "block[2]"
	Reason string
	until  counter.Micros
}

// link is a node in the list of entries that name a client: an entry, and the index of the
// next link. The index 0 ends the list.
type link struct{ entry, next int32 }

// CompileList builds the index of a list, which is at the given path in the policy. The result ok
// is false if an entry has an invalid address range.
func CompileList(at string, entries []policy.Listed) (l *List, ok bool) {
	if len(entries) == 0 {
		return nil, true
	}
	l = &List{links: make([]link, 1, 1+ListedClients(entries))}
	for i := range entries {
		e := &entries[i]
		l.entries = append(l.entries, Entry{At: at + "[" + strconv.Itoa(i) + "]", Reason: e.Reason, until: e.Until})
		l.dated = l.dated || e.Until != 0
	}
	var ranges []netip.Prefix
	// from last to first, so that each link refers to later entries
	for i := len(entries) - 1; i >= 0; i-- {
		l.index(int32(i), &entries[i])
		masked, ok := match.CompilePrefixes(entries[i].IP)
		if !ok {
			return nil, false
		}
		for _, p := range masked {
			l.ranges.Set(p, l.linked(int32(i), l.ranges.Number(p)))
		}
		ranges = append(ranges, masked...)
	}
	l.within = match.NewAddrSet(ranges)
	return l, true
}

// ListedClients returns the number of clients and address ranges in a list.
func ListedClients(entries []policy.Listed) (n int) {
	for i := range entries {
		n += entries[i].Clients()
	}
	return n
}

// ByField returns the values of the entry by field.
func ByField(e *policy.Listed) [match.ClientFields][]string {
	return [match.ClientFields][]string{match.ClientTier: e.Tier, match.ClientUser: e.User, match.ClientAPIKey: e.APIKey, match.ClientTenant: e.Tenant}
}

// List.index adds the entry under every client that it names.
func (l *List) index(entry int32, e *policy.Listed) {
	for f, values := range ByField(e) {
		for _, text := range values {
			l.clients.Set(f, text, l.linked(entry, l.clients[f][text]))
		}
	}
}

// List.linked returns a link to the entry, ahead of the link named next. If an entry names a client
// twice, only one link is made.
func (l *List) linked(entry, next int32) int32 {
	if next != 0 && l.links[next].entry == entry {
		return next
	}
	l.links = append(l.links, link{entry, next})
	return int32(len(l.links) - 1)
}

// Find returns the first entry that names the client and has not ended, or nil. It also stores the
// entry in cl.Entry. Find does not allocate.
//
// A longer list makes Find slower in two ways only: the binary search over the address ranges takes
// more steps, and ended entries for the same client are skipped one by one. If a range contains the
// client's address, Find looks up the address once for each prefix length in the list. There are at
// most 33 lengths for IPv4 and 129 for IPv6.
func (cl *Client) Find(l *List) *Entry {
	if l == nil {
		return nil
	}
	now := counter.Micros(0)
	if l.dated {
		now = cl.Request.Attrs.Now()
	}
	first := int32(len(l.entries))
	for f, links := range l.clients {
		if links != nil {
			first = min(first, l.inForce(links[match.ClientField(f).Of(&cl.Identity)], now))
		}
	}
	if l.within.Contains(cl.Request.Peer) {
		t, key := l.ranges.Of(cl.Request.Peer), match.NewAddrKey(cl.Request.Peer)
		for _, bits := range t.Bits {
			first = min(first, l.inForce(t.Numbers[key.Masked(bits)], now))
		}
	}
	if int(first) == len(l.entries) {
		return nil
	}
	cl.Entry = &l.entries[first]
	return cl.Entry
}

// inForce returns the first entry in a chain of links that has not ended, or the number of entries
// if all have ended.
func (l *List) inForce(at int32, now counter.Micros) int32 {
	for ; at != 0; at = l.links[at].next {
		if e := &l.entries[l.links[at].entry]; e.until == 0 || now < e.until {
			return l.links[at].entry
		}
	}
	return int32(len(l.entries))
}
