// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"hash/maphash"
	"math/bits"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/penstock/penstock/core/policy"
)

const (
	memoryShardsMax = 64
	// memoryShardMin is the least number of entries of a shard. Hashes spread unevenly. If shards
	// were smaller, some would evict tokens while others have room.
	memoryShardMin = 64
)

// verdict is the remembered result of verifying a token. Only its fields place, used and next
// change.
type verdict struct {
	token    string // the whole token, because an attacker could compute a token with the same hash
	sum      uint64
	bytes    int
	identity *policy.Identity
	state    policy.CredentialState
	key      *key    // the key that verified the token; nil if none did
	set      *keySet // the key set with which a failed token was tried
	// outside this span, a valid token is invalid, and the verdict on a failed one is dropped
	span

	place int         // index in the shard's ring; the shard's lock guards it
	used  atomic.Bool // whether it was used since the CLOCK hand last passed it
	next  atomic.Pointer[verdict]
}

// isStale reports whether the verdict is no longer valid.
func (v *verdict) isStale(current *keySet, now int64) bool {
	return v.key != nil && v.key.gone.Load() || v.set != nil && v.set != current || now >= v.until
}

// memory remembers verdicts by token. Lookups take no lock and do not allocate. Entries and bytes
// are bounded. At a bound, a CLOCK hand per shard evicts stale verdicts and those that were not
// used recently. A memory is safe for concurrent use.
type memory struct {
	seed   maphash.Seed
	shards []memoryShard
	// Bounds of each shard.
	entriesMax, bytesMax int
	buckets              int
}

type memoryShard struct {
	heads atomic.Pointer[[]atomic.Pointer[verdict]] // chains by hash; allocated for the first token

	mu    sync.Mutex
	ring  []*verdict // all verdicts of the shard
	hand  int
	bytes int
	_     [64]byte // keeps the next shard off this cache line
}

// newMemory returns a memory of at most the given numbers of tokens and bytes.
func newMemory(seed maphash.Seed, entries, bytes int) *memory {
	shards := 1
	for shards < memoryShardsMax && entries/(2*shards) >= memoryShardMin {
		shards *= 2
	}
	m := &memory{seed: seed, shards: make([]memoryShard, shards), entriesMax: max(entries/shards, 1), bytesMax: bytes / shards}
	m.buckets = 1 << bits.Len(uint(m.entriesMax-1))
	return m
}

// memory.find returns the verdict on a token, or nil. The argument sum is the token's hash with the
// memory's seed.
func (m *memory) find(sum uint64, token string) *verdict {
	heads := m.shard(sum).heads.Load()
	if heads == nil {
		return nil
	}
	for v := (*heads)[m.bucket(sum)].Load(); v != nil; v = v.next.Load() {
		if v.sum == sum && v.token == token {
			if !v.used.Load() { // an unconditional write would cause contention for the cache line
				v.used.Store(true)
			}
			return v
		}
	}
	return nil
}

// memory.shard returns the shard of a hash, which its high bits select. memory.bucket uses the low
// bits.
func (m *memory) shard(sum uint64) *memoryShard { return &m.shards[(sum>>48)%uint64(len(m.shards))] }

// memory.bucket returns the bucket of a hash in its shard.
func (m *memory) bucket(sum uint64) int { return int(sum & uint64(m.buckets-1)) }

// verdictBytes is the size of a verdict without its texts: the struct, the identity, and its
// pointers in chain and ring.
const verdictBytes = int(unsafe.Sizeof(verdict{})) + int(unsafe.Sizeof(policy.Identity{})) + 32

// overridesBytes bounds the memory for a client's own limits, per byte of the token. The limits
// with the shortest possible text are the worst case, with 26 bytes.
const overridesBytes = 28

// memory.remember stores a verdict. It copies the token, which the caller owns.
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
	if old := m.find(v.sum, v.token); old != nil { // the verdict is stale, or was stored by a concurrent request
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

// memory.evict advances the CLOCK hand to a verdict that is stale or unused since the last pass,
// and removes it.
func (m *memory) evict(s *memoryShard, current *keySet, now int64) {
	for {
		s.hand %= len(s.ring)
		v := s.ring[s.hand]
		if v.isStale(current, now) || !v.used.Swap(false) {
			m.drop(s, v)
			return
		}
		s.hand++
	}
}

// memory.drop removes a verdict from the ring and its chain. The verdict keeps its next pointer for
// concurrent lookups.
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

// memory.forget removes stale verdicts.
func (m *memory) forget(current *keySet, now int64) {
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		for at := 0; at < len(s.ring); {
			if v := s.ring[at]; v.isStale(current, now) {
				m.drop(s, v)
			} else {
				at++
			}
		}
		s.mu.Unlock()
	}
}

// memory.each calls the function named visit for every remembered verdict that is still valid.
func (m *memory) each(current *keySet, now int64, visit func(*verdict)) {
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		for _, v := range s.ring {
			if !v.isStale(current, now) {
				visit(v)
			}
		}
		s.mu.Unlock()
	}
}

// memory.size returns the number of remembered tokens, and their bytes.
func (m *memory) size() (entries, bytes int) {
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		entries, bytes = entries+len(s.ring), bytes+s.bytes
		s.mu.Unlock()
	}
	return entries, bytes
}
