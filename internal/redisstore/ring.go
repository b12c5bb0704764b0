// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"bytes"
	"crypto/sha256"
	"strconv"
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

func (r *ring) close() {
	for _, n := range r.nodes {
		n.close()
	}
}
