// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// ring is a set of independent servers that share the counters. A ring never changes. If a server
// fails, its counters do not move to another server, because every client would start with its full
// limit there.
//
// While an operator adds or removes servers, nodes with both rings charge a moving counter on both
// of its servers. Such nodes deny a request if either server denies it. So the previous server of
// the counter counts all requests as long as some nodes know only the previous ring. After the
// longest window the new server has counted the same requests, and nodes may use only the new ring.
type ring struct {
	nodes  []*node
	homes  [slotCount]uint8  // index of the server by slot
	before *[slotCount]uint8 // the same for the previous ring; nil unless the ring is changing
}

// newRing returns a ring of the servers that the options name.
func newRing(s *Store) *ring {
	r := &ring{}
	addrs := slices.Clone(s.settings.seeds)
	for _, addr := range s.settings.before {
		if !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	for _, addr := range addrs {
		r.nodes = append(r.nodes, newNode(s, s.settings.at(addr)))
	}
	for slot := range r.homes {
		r.homes[slot] = uint8(homeOf(slot, s.settings.seeds))
	}
	if s.settings.before != nil {
		r.before = new([slotCount]uint8)
		for slot := range r.before {
			before := s.settings.before[homeOf(slot, s.settings.before)]
			r.before[slot] = uint8(slices.Index(addrs, before))
		}
	}
	return r
}

// homeBefore returns the index of the server that held a slot before the ring changed, and whether
// that server differs from the present one.
func (r *ring) homeBefore(slot int) (home int, moved bool) {
	if r.before == nil {
		return 0, false
	}
	return int(r.before[slot]), r.before[slot] != r.homes[slot]
}

// homeOf returns the index of the server that holds a slot in a ring: the address for which the
// SHA-256 of "ADDRESS SLOT" is the greatest. The order of addresses therefore does not matter. A
// new server takes only its share from the other servers, and removing a server does not move the
// counters of the other servers. homeOf must never change: a counter whose home changes starts
// again.
func homeOf(slot int, addrs []string) (home int) {
	var most [sha256.Size]byte
	text := make([]byte, 0, 64)
	for i, addr := range addrs {
		text = strconv.AppendInt(append(append(text[:0], addr...), ' '), int64(slot), 10)
		if sum := sha256.Sum256(text); i == 0 || bytes.Compare(sum[:], most[:]) > 0 {
			home, most = i, sum
		}
	}
	return home
}

// Places returns texts that name where the counters are. Stores that have a text in common have the
// same counters. A ring is a single place, made up of all its servers, because each of them has
// only a part of the counters. While a ring is being changed, the previous ring is a place, too. In
// the other modes, each server or sentinel of the options is a place.
func (s *Store) Places() (all []string) {
	o := &s.settings
	of := func(servers string) string {
		return fmt.Sprintf("%s/%d %s", strings.ToLower(servers), o.database, o.master)
	}
	switch {
	case o.mode == ModeRing && o.before != nil:
		return []string{of(RingNames(o.seeds)), of(RingNames(o.before))}
	case o.mode == ModeRing:
		return []string{of(RingNames(o.seeds))}
	case o.mode == ModeSingle && o.network == "unix":
		return []string{fmt.Sprintf("%s?db=%d", o.target, o.database)}
	case o.mode == ModeSingle:
		return []string{of(o.target)}
	}
	for _, seed := range o.seeds {
		all = append(all, of(seed))
	}
	return all
}

// RingKey is the key at which each server of a ring stores the addresses of all servers, as spelled
// by the node that connected last (see [RingNames]). No rule's key has this form.
const RingKey = "rl1:~ring:{~ring}"

// RingNames returns how [RingKey] spells the servers of a ring.
func RingNames(addrs []string) string { return strings.Join(slices.Sorted(slices.Values(addrs)), ",") }

// ringBefore separates the servers of a ring from those of the previous ring, in the value at
// [RingKey] of a node with both.
const ringBefore = " before "

// ringNames returns the value that the node stores at [RingKey].
func (s *settings) ringNames() string {
	if s.before == nil {
		return RingNames(s.seeds)
	}
	return RingNames(s.seeds) + ringBefore + RingNames(s.before)
}

// RingsCountTogether reports whether limits hold between two nodes with these values at [RingKey]:
// the ring of one node is the ring of the other, or the other's previous ring.
func RingsCountTogether(a, b string) bool {
	now, before, _ := strings.Cut(a, ringBefore)
	nowToo, beforeToo, _ := strings.Cut(b, ringBefore)
	return now == nowToo || now == beforeToo || before == nowToo
}

// node.agree stores the addresses of the ring, as this node knows them, on a server. It warns if
// another node has stored different ones.
func (n *node) agree(ctx context.Context) error {
	if n.store.settings.mode != ModeRing {
		return nil
	}
	mine := n.store.settings.ringNames()
	theirs, err := n.client.Get(ctx, RingKey).Result()
	if theirs == mine || err != nil && err != redis.Nil {
		return nil // no warning for a user without the right to GET
	}
	if err := n.client.Set(ctx, RingKey, mine, 0).Err(); err != nil || theirs == "" || RingsCountTogether(mine, theirs) {
		return nil
	}
	return &unsafeError{fmt.Sprintf("another node named the servers of the ring %.500q, and this one names them %q: while both run they "+
		"count apart, and limits do not hold: write the same addresses everywhere, and to change them, addrs_before first", theirs, mine)}
}

func (r *ring) close() {
	for _, n := range r.nodes {
		n.close()
	}
}
