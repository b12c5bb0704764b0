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

// ring is a set of independent servers that share the counters. It never changes. If a server
// fails, its counters do not move to another server, because every client would start with its full
// limit there.
type ring struct {
	nodes []*node
	homes [slotCount]uint8 // index of the server by slot
}

// newRing returns a ring of the servers that the options name.
func newRing(s *Store) *ring {
	r := &ring{}
	for _, addr := range s.settings.seeds {
		r.nodes = append(r.nodes, newNode(s, s.settings.at(addr)))
	}
	for slot := range r.homes {
		r.homes[slot] = uint8(homeOf(slot, s.settings.seeds))
	}
	return r
}

// homeOf returns the index of the server that holds a slot in a ring: the address for which the
// SHA-256 of "ADDRESS SLOT" is the greatest. The order of addresses therefore does not matter, a
// new server takes only its share from the others, and removing one does not move the others'
// counters. The function must never change, because with a different one every counter would start
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

// RingKey is the key at which each server of a ring stores the addresses of all servers, as spelled
// by the node that connected last (see [RingNames]). No rule's key has this form.
const RingKey = "rl1:~ring:{~ring}"

// RingNames returns the value to store at [RingKey]. Nodes with different values count separately.
func RingNames(addrs []string) string { return strings.Join(slices.Sorted(slices.Values(addrs)), ",") }

// agree stores this node's addresses of the ring on a server, and warns if another node has stored
// different ones.
func (n *node) agree(ctx context.Context) error {
	if n.store.settings.mode != ModeRing {
		return nil
	}
	mine := RingNames(n.store.settings.seeds)
	theirs, err := n.client.Get(ctx, RingKey).Result()
	if theirs == mine || err != nil && err != redis.Nil {
		return nil // no warning for a user without the right to GET
	}
	if err := n.client.Set(ctx, RingKey, mine, 0).Err(); err != nil || theirs == "" {
		return nil
	}
	return &unsafeError{fmt.Sprintf("another node named the servers of the ring %.500q, and this one names them %q: while both run they "+
		"count apart, and limits do not hold: write the same addresses everywhere", theirs, mine)}
}

func (r *ring) close() {
	for _, n := range r.nodes {
		n.close()
	}
}
