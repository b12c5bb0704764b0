// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"hash/maphash"
	"math/bits"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

const shardCount = 64

// entry is the remembered record of one client or one API key. Only its atomic fields change.
type entry struct {
	name   policy.ClientName
	record *Record // nil if the client has none
	key    *key    // for an API key; nil if the key does not exist
	fresh  counter.Micros
	epoch  uint64 // of the directory when the record was read

	now        atomic.Pointer[effective]
	used       atomic.Int32 // the recent number of uses, at most usedMax
	refreshing atomic.Bool  // a read of the record is queued or running
	place      int          // in the shard's ring; the shard's lock guards it
	hash       uint64       // of the name; the key in the shard's map
}

// present reports whether there is a record.
func (e *entry) present() bool { return e.record != nil || e.key != nil }

// at returns the part of a client's record that is in force at an instant.
func (e *entry) at(now counter.Micros) *policy.ClientRecord {
	said := e.now.Load()
	if now >= said.until {
		said = e.record.at(now)
		e.now.Store(said)
	}
	return said.record
}

// usedMax is the greatest use count of an entry. A made-up client is used once, so its entry is
// evicted before that of a client that has returned.
const usedMax = 3

// cache holds the entries of the clients that have been used recently. It is safe for concurrent
// use. Each shard has a lock, which a lookup of a remembered client does not take.
//
// The entries are found by a hash of 64 bits, so that a name is hashed once. Two names with one hash
// evict each other, and neither is taken for the other. The seed is secret, so nobody can choose them.
//
// A full shard evicts an entry for each new one. Its CLOCK hand visits one entry after another. If
// the use count of the entry is 0, the entry is evicted. Otherwise the count is reduced by one.
type cache struct {
	seed   maphash.Seed
	most   int // entries of a shard
	shards [shardCount]shard
}

type shard struct {
	table atomic.Pointer[table] // nil without entries; the lock guards changes
	mu    sync.Mutex
	ring  []*entry
	hand  int
	_     [64]byte // keeps the next shard off this cache line
}

// newCache returns a cache of at most the given number of entries, rounded up to a multiple of the
// number of shards.
func newCache(most int) *cache {
	return &cache{seed: maphash.MakeSeed(), most: (most + shardCount - 1) / shardCount}
}

// hash returns the hash of a name.
func (c *cache) hash(name policy.ClientName) uint64 {
	return maphash.String(c.seed, name.ID) ^ bits.RotateLeft64(maphash.String(c.seed, name.Kind), 1) | 1<<63 // never 0
}

func (c *cache) shard(hash uint64) *shard { return &c.shards[hash%shardCount] }

// find returns the entry of a client, or nil, and counts the use.
func (c *cache) find(name policy.ClientName) *entry {
	e := c.peek(name)
	if e != nil {
		if n := e.used.Load(); n < usedMax { // an unconditional write would contend for the cache line
			e.used.Store(n + 1)
		}
	}
	return e
}

// peek returns the entry of a client, or nil.
func (c *cache) peek(name policy.ClientName) *entry {
	hash := c.hash(name)
	s := c.shard(hash)
	if e := s.find(hash); e != nil && e.name == name {
		return e
	}
	s.mu.Lock() // find may have missed it during a change
	e := s.find(hash)
	s.mu.Unlock()
	if e == nil || e.name != name {
		return nil
	}
	return e
}

// put stores an entry, in place of the client's previous one. The entry's name is copied, because it
// may refer to the memory of a request.
func (c *cache) put(e *entry) {
	e.name = policy.ClientName{Kind: strings.Clone(e.name.Kind), ID: strings.Clone(e.name.ID)}
	e.hash = c.hash(e.name)
	s := c.shard(e.hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.find(e.hash); old != nil {
		e.place = old.place
		s.ring[e.place] = e
		e.used.Store(old.used.Load())
		s.table.Load().put(e)
		return
	}
	if len(s.ring) < c.most {
		e.place = len(s.ring)
		s.ring = append(s.ring, e)
	} else {
		e.place = s.evict()
		s.ring[e.place] = e
	}
	s.add(e)
}

// find returns the entry of a hash, or nil.
func (s *shard) find(hash uint64) *entry {
	if t := s.table.Load(); t != nil {
		return t.find(hash)
	}
	return nil
}

// add adds an entry that the ring has already to the table, or to a larger one. The caller holds the
// lock.
func (s *shard) add(e *entry) {
	t := s.table.Load()
	if t != nil && !t.full(len(s.ring)) {
		t.put(e)
		return
	}
	t = newTable(len(s.ring) + 1)
	for _, one := range s.ring {
		t.put(one)
	}
	s.table.Store(t)
}

// evict removes an entry that was not used recently, and returns its place. The caller holds the
// lock.
func (s *shard) evict() (place int) {
	for {
		n := s.ring[s.hand].used.Load()
		if n == 0 {
			break
		}
		s.ring[s.hand].used.Store(n - 1)
		s.hand = (s.hand + 1) % len(s.ring)
	}
	place = s.hand
	s.table.Load().remove(s.ring[place].hash)
	s.hand = (s.hand + 1) % len(s.ring)
	return place
}

// len returns the number of entries.
func (c *cache) len() (n int) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		n += len(s.ring)
		s.mu.Unlock()
	}
	return n
}
