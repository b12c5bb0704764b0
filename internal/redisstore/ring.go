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

// ring is independent servers that divide the counters among themselves. It never changes: what a server has that is gone is
// not counted elsewhere, where everybody would begin with a fresh allowance.
type ring struct {
	nodes []*node
	homes [slotCount]uint8 // by slot: the number of the server
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

// homeOf returns the number of the server of a ring that has a slot: of all addresses the one for which the SHA-256 of
// "ADDRESS SLOT" is the greatest. So the order of addresses does not matter, one more takes only its share away from the others,
// and one less leaves the others with what they had. The function is fixed for good: with another one every counter would
// start anew.
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

// RingKey is where each server of a ring keeps the addresses of all, as the last node that connected names them: see [RingNames].
// No rule's key has this form.
const RingKey = "rl1:~ring:{~ring}"

// RingNames returns what stands at [RingKey]: nodes for which it differs count apart.
func RingNames(addrs []string) string { return strings.Join(slices.Sorted(slices.Values(addrs)), ",") }

// agree leaves in a server of a ring how this node names all of them, and warns of one that named them otherwise before.
func (n *node) agree(ctx context.Context) error {
	if n.store.settings.mode != ModeRing {
		return nil
	}
	mine := RingNames(n.store.settings.seeds)
	theirs, err := n.client.Get(ctx, RingKey).Result()
	if theirs == mine || err != nil && err != redis.Nil {
		return nil // who may not ask is not warned
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
