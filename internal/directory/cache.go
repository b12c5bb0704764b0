// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"strings"
	"sync"
	"sync/atomic"
	"unique"
	"unsafe"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

const shardCount = 64

// idInline is the maximum length of an identifier that is stored in the entry itself. idInline is
// the length of a UUID.
const idInline = 36

// entry is the remembered record of one client or one API key. Only the entry's atomic fields
// change.
//
// An entry takes 128 bytes, which the allocator aligns, so a lookup reads two neighbouring cache
// lines at once. The first line holds the fields that a lookup compares, the second the identifier.
type entry struct {
	name       policy.ClientName
	now        atomic.Pointer[effective]
	fresh      counter.Micros
	epoch      uint64       // the epoch of the directory when the record was read
	used       atomic.Int32 // the recent number of uses, at most usedMax
	refreshing atomic.Bool  // whether a read of the record is queued or running

	id     [idInline]byte // the bytes of name.ID, unless it is longer
	place  int32          // the index in the shard's ring, guarded by the shard's lock
	hash   uint64         // the hash of the name, which is the key in the shard's table
	record *Record        // the record; nil if the client has none
	key    *key           // the data of an API key; nil if the key does not exist
}

// This does not compile if an entry takes more than two cache lines.
const _ = uint(128 - unsafe.Sizeof(entry{}))

// entry.present reports whether there is a record.
func (e *entry) present() bool { return e.record != nil || e.key != nil }

// entry.at returns the part of a client's record that is in force at an instant.
func (e *entry) at(now counter.Micros) *policy.ClientRecord {
	if said := e.now.Load(); now < said.until {
		return said.record
	}
	said := e.record.at(now)
	e.now.Store(said)
	return said.record
}

// hasName reports whether the entry belongs to a name. The bytes of a short identifier are compared
// in the entry itself, so the processor need not load the first cache line before the second.
func (e *entry) hasName(name policy.ClientName) bool {
	n := len(name.ID)
	if n > idInline {
		return e.name == name
	}
	return len(e.name.ID) == n && string(e.id[:n]) == name.ID && e.name.Kind == name.Kind
}

// keepName copies the name, because it may refer to the memory of a request. All entries of one
// kind share the text of the kind, so this text stays in the processor's cache.
func (e *entry) keepName() {
	e.name.Kind = unique.Make(e.name.Kind).Value()
	if n := len(e.name.ID); n > idInline {
		e.name.ID = strings.Clone(e.name.ID)
	} else {
		copy(e.id[:], e.name.ID)
		e.name.ID = unsafe.String(&e.id[0], n)
	}
}

// usedMax is the greatest use count of an entry. A made-up client is used only once, so its entry
// is evicted before that of a client that has returned.
const usedMax = 3

// cache holds the entries of the clients that have been used recently. A cache is safe for
// concurrent use. Each shard has a lock, which a lookup of a remembered client does not take.
//
// A lookup hashes the name once, to 64 bits, and finds the entry by this hash. Two names with the
// same hash evict each other, but neither is mistaken for the other. The hash has a secret key, so
// clients cannot choose such names.
//
// A full shard evicts an entry for each new one. The CLOCK hand of the shard visits one entry after
// another. If an entry's use count is 0, the entry is evicted. Otherwise the count is reduced by
// one.
type cache struct {
	key    hashKey
	most   int // the greatest number of entries in a shard
	shards [shardCount]shard
}

type shard struct {
	table atomic.Pointer[table] // nil while there are no entries; mu guards changes
	mu    sync.Mutex
	ring  []*entry
	hand  int
	_     [64]byte // this separates the cache line that lookups write from the one that they read
	hits  atomic.Uint64
	_     [64]byte
}

// newCache returns a cache of at most the given number of entries, rounded up to a multiple of the
// number of shards.
func newCache(most int) *cache {
	return &cache{key: newHashKey(), most: (most + shardCount - 1) / shardCount}
}

func (c *cache) shard(hash uint64) *shard { return &c.shards[hash%shardCount] }

// cache.find returns the entry of a client, or nil, and counts the use.
func (c *cache) find(name policy.ClientName) *entry {
	hash := c.key.hashOf(name)
	s := c.shard(hash)
	e := s.find(hash)
	if e == nil || !e.hasName(name) {
		if e = s.findLocked(hash, name); e == nil {
			return nil
		}
	}
	s.hits.Add(1)
	if n := e.used.Load(); n < usedMax { // an unconditional write would contend for the cache line
		e.used.Store(n + 1)
	}
	return e
}

// cache.peek returns the entry of a client, or nil.
func (c *cache) peek(name policy.ClientName) *entry {
	hash := c.key.hashOf(name)
	return c.shard(hash).findLocked(hash, name)
}

// findLocked does what the method named find does, for an entry that find may have missed because
// of a concurrent change.
func (s *shard) findLocked(hash uint64, name policy.ClientName) *entry {
	s.mu.Lock()
	e := s.find(hash)
	s.mu.Unlock()
	if e == nil || !e.hasName(name) {
		return nil
	}
	return e
}

// cache.put stores an entry. It replaces the entry with the same hash, if there is one.
func (c *cache) put(e *entry) {
	e.keepName()
	e.hash = c.key.hashOf(e.name)
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
		e.place = int32(len(s.ring))
		s.ring = append(s.ring, e)
	} else {
		e.place = s.evict()
		s.ring[e.place] = e
	}
	s.insert(e)
}

// shard.find returns the entry of a hash, or nil.
func (s *shard) find(hash uint64) *entry {
	if t := s.table.Load(); t != nil {
		return t.find(hash)
	}
	return nil
}

// shard.insert adds an entry to the table, or to a new table if the present one is full. The entry
// must already be in the ring. The caller holds the lock.
func (s *shard) insert(e *entry) {
	t := s.table.Load()
	switch {
	case t == nil:
		t = newTable(len(s.ring))
	case t.full(len(s.ring)):
		t = t.grow(len(s.ring) + 1)
	default:
		t.put(e)
		return
	}
	t.put(e)
	s.table.Store(t)
}

// shard.evict removes an entry that was not used recently, and returns its place. The caller holds
// the lock.
func (s *shard) evict() (place int32) {
	for {
		n := s.ring[s.hand].used.Load()
		if n == 0 {
			break
		}
		s.ring[s.hand].used.Store(n - 1)
		s.hand = (s.hand + 1) % len(s.ring)
	}
	place = int32(s.hand)
	s.table.Load().remove(s.ring[place].hash)
	s.hand = (s.hand + 1) % len(s.ring)
	return place
}

// cache.len returns the number of entries.
func (c *cache) len() (n int) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		n += len(s.ring)
		s.mu.Unlock()
	}
	return n
}

// cache.hits returns the number of lookups that found an entry.
func (c *cache) hits() (n uint64) {
	for i := range c.shards {
		n += c.shards[i].hits.Load()
	}
	return n
}
