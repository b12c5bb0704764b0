// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"hash/maphash"
	"math/bits"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/penstock/penstock/core"
)

const (
	memoryShardsMax = 64
	// memoryShardMin is the least that a shard holds: smaller ones would drop tokens because of how they spread.
	memoryShardMin = 64
)

// verdict is what is remembered of a token. But for the last fields it never changes.
type verdict struct {
	token    string // the whole of it: a hash that an attacker can compute would let him pass for somebody else
	sum      uint64
	bytes    int
	identity *core.Identity
	state    core.CredentialState
	key      *key    // that verified it; nil if none did
	set      *keySet // that a failed one was tried with
	span             // outside of it a good one is expired, and a failed one forgotten

	place int         // in the shard's ring; by the shard's lock
	used  atomic.Bool // since the hand came by
	next  atomic.Pointer[verdict]
}

// stale reports whether the verdict is worth nothing any more.
func (v *verdict) stale(current *keySet, now int64) bool {
	return v.key != nil && v.key.gone.Load() || v.set != nil && v.set != current || now >= v.until
}

// memory remembers verdicts by token. Finding one takes no lock and allocates nothing. It holds at most as many entries
// and bytes as it was made for; beyond that the CLOCK hand of a shard drops what was not asked for lately, and before that
// what is stale. Safe for concurrent use.
type memory struct {
	seed   maphash.Seed
	shards []memoryShard
	// Of each shard:
	entriesMax, bytesMax int
	buckets              int
}

type memoryShard struct {
	heads atomic.Pointer[[]atomic.Pointer[verdict]] // chains by hash; made for the first token

	mu    sync.Mutex
	ring  []*verdict // all that are held
	hand  int
	bytes int
	_     [64]byte // keeps neighbours off this shard's cache line
}

// newMemory returns a memory for this many tokens and bytes.
func newMemory(seed maphash.Seed, entries, bytes int) *memory {
	shards := 1
	for shards < memoryShardsMax && entries/(2*shards) >= memoryShardMin {
		shards *= 2
	}
	m := &memory{seed: seed, shards: make([]memoryShard, shards), entriesMax: max(entries/shards, 1), bytesMax: bytes / shards}
	m.buckets = 1 << bits.Len(uint(m.entriesMax-1))
	return m
}

// find returns what is remembered of a token, or nil. sum is the hash of the token by the memory's seed.
func (m *memory) find(sum uint64, token string) *verdict {
	heads := m.shard(sum).heads.Load()
	if heads == nil {
		return nil
	}
	for v := (*heads)[m.bucket(sum)].Load(); v != nil; v = v.next.Load() {
		if v.sum == sum && v.token == token {
			if !v.used.Load() { // a write would take the line from the other processors
				v.used.Store(true)
			}
			return v
		}
	}
	return nil
}

// shard goes by the high bits of the hash, and the bucket by the low ones.
func (m *memory) shard(sum uint64) *memoryShard { return &m.shards[(sum>>48)%uint64(len(m.shards))] }

func (m *memory) bucket(sum uint64) int { return int(sum & uint64(m.buckets-1)) }

// verdictBytes is what a verdict takes beside its texts: itself, the identity, its places in chain and ring.
const verdictBytes = int(unsafe.Sizeof(verdict{})) + int(unsafe.Sizeof(core.Identity{})) + 32

// overridesBytes is what limits of a client's own take at most for each byte of the token that they were written in: 26 for
// the shortest that can be written.
const overridesBytes = 28

// remember keeps a verdict. The token is the caller's, so it is copied.
func (m *memory) remember(v *verdict, current *keySet, now int64) {
	v.bytes = verdictBytes + len(v.token)
	if id := v.identity; id != nil {
		v.bytes += len(id.ID) + len(id.User) + len(id.Tenant) + len(id.Tier)
		if id.Overrides != nil {
			v.bytes += overridesBytes * len(v.token)
		}
	}
	if v.bytes > m.bytesMax {
		return
	}
	v.token = strings.Clone(v.token)
	s := m.shard(v.sum)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.heads.Load() == nil {
		heads := make([]atomic.Pointer[verdict], m.buckets)
		s.heads.Store(&heads)
	}
	if old := m.find(v.sum, v.token); old != nil { // it has gone stale, or somebody else verified it at the same time
		m.drop(s, old)
	}
	for len(s.ring) > 0 && (len(s.ring) >= m.entriesMax || s.bytes+v.bytes > m.bytesMax) {
		m.evict(s, current, now)
	}
	head := &(*s.heads.Load())[m.bucket(v.sum)]
	v.next.Store(head.Load())
	head.Store(v)
	v.place = len(s.ring)
	s.ring = append(s.ring, v)
	s.bytes += v.bytes
}

// evict moves the hand to the next verdict that is stale or was not asked for since it last came by, and drops it.
func (m *memory) evict(s *memoryShard, current *keySet, now int64) {
	for {
		s.hand %= len(s.ring)
		v := s.ring[s.hand]
		if v.stale(current, now) || !v.used.Swap(false) {
			m.drop(s, v)
			return
		}
		s.hand++
	}
}

// drop takes one out of the ring and its chain. Who walks the chain at the moment goes on from it: its next stays.
func (m *memory) drop(s *memoryShard, v *verdict) {
	last := s.ring[len(s.ring)-1]
	s.ring[v.place], last.place = last, v.place
	s.ring[len(s.ring)-1] = nil
	s.ring = s.ring[:len(s.ring)-1]
	s.bytes -= v.bytes
	link := &(*s.heads.Load())[m.bucket(v.sum)]
	for at := link.Load(); at != v; at = link.Load() {
		link = &at.next
	}
	link.Store(v.next.Load())
}

// forget drops what is stale.
func (m *memory) forget(current *keySet, now int64) {
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		for at := 0; at < len(s.ring); {
			if v := s.ring[at]; v.stale(current, now) {
				m.drop(s, v)
			} else {
				at++
			}
		}
		s.mu.Unlock()
	}
}

// size returns how many tokens are remembered, in how many bytes.
func (m *memory) size() (entries, bytes int) {
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		entries, bytes = entries+len(s.ring), bytes+s.bytes
		s.mu.Unlock()
	}
	return entries, bytes
}
