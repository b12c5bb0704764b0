// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock/core"
)

// Bounds of a store.
const (
	// CountersMaxDefault is how many counters a store holds unless told otherwise: about 100 MB of them.
	CountersMaxDefault = 1 << 20
	// CountersMaxBound is the greatest bound that can be asked for: what 32-bit record numbers hold, even if every key
	// has a page to itself.
	CountersMaxBound = 1 << 28

	// BytesMaxDefault is how many bytes counters take unless told otherwise, if CountersMax is not greater than its own default:
	// so many of a greater store's as bytesPerCounter says.
	BytesMaxDefault = CountersMaxDefault * bytesPerCounter
	// BytesMaxLeast is the least bound that can be asked for: each shard takes some pages before it is of use.
	BytesMaxLeast = 16 << 20
	// bytesPerCounter lets all counters be held if their keys have some 200 bytes.
	bytesPerCounter = 256

	// shardBits make more shards than there are cores, so that calls seldom meet.
	shardBits = 8
	shardsMax = 1 << shardBits
	// shardFill is how many counters a shard of a small store has to itself: with fewer, a full store could have shards
	// that hold nothing, and a newcomer there would find nothing to reclaim.
	shardFill = 64

	// backwards is how long a store with a clock of the caller's keeps fresh counters while there is room, lest a clock
	// that goes forth and back again by an hour costs their memory.
	backwards = 2 * core.Hour
)

// Options configures a store. The zero Options are the defaults.
type Options struct {
	// CountersMax is how many counters the store holds at most: 0 means CountersMaxDefault, otherwise 1 to
	// CountersMaxBound.
	CountersMax int
	// BytesMax is how many bytes the counters take at most, as doc.go says under Price: 0 means 256 for each of CountersMax,
	// and BytesMaxDefault at least; otherwise it is BytesMaxLeast or more. What is held already may grow beyond it.
	BytesMax int64
	// Now is the store's clock; it must be safe for concurrent use. Nil means the wall clock at New plus the time since
	// then on the monotonic clock, which does not go back; it follows the wall clock when it is asked about a calendar
	// period that it does not know.
	Now func() core.Micros
	// Logger is told, at most once a minute, that the store is full. Nil means nobody is.
	Logger *slog.Logger
}

// Store is a [core.Store] in memory. Make one with [New]; it is safe for concurrent use.
type Store struct {
	now       func() core.Micros
	clock     *ownClock   // nil: the clock is the caller's
	slack     core.Micros // how long after it is fresh a counter is kept while there is room
	max       int64
	bytesMax  int64
	seed      maphash.Seed
	shards    []shard
	shardBits uint8
	overflow  overflow
	alarm     alarm

	_     [64]byte // counters is written by every newcomer, what is above is only read
	held  atomic.Int64
	bytes atomic.Int64 // of all shards, as they told last
	_     [48]byte
}

// shard is a part of the counters, by the leading bits of their keys' hashes.
type shard struct {
	mu sync.Mutex
	table
	_ [56]byte // to eight cache lines, so that the lock and what is read first begin one in every shard
}

// New returns an empty store. The error says which option is out of bounds.
func New(o Options) (*Store, error) {
	if o.CountersMax < 0 || o.CountersMax > CountersMaxBound {
		return nil, fmt.Errorf("counters max %d is out of bounds: it must be between 1 and %d", o.CountersMax,
			CountersMaxBound)
	}
	if o.CountersMax == 0 {
		o.CountersMax = CountersMaxDefault
	}
	if o.BytesMax != 0 && o.BytesMax < BytesMaxLeast {
		return nil, fmt.Errorf("bytes max %d is out of bounds: it must be at least %d", o.BytesMax, BytesMaxLeast)
	}
	if o.BytesMax == 0 {
		o.BytesMax = max(BytesMaxDefault, int64(o.CountersMax)*bytesPerCounter)
	}
	s := &Store{now: o.Now, slack: backwards, max: int64(o.CountersMax), bytesMax: o.BytesMax, seed: maphash.MakeSeed()}
	s.alarm.log = o.Logger
	if o.Now == nil {
		s.clock = newOwnClock()
		s.now, s.slack = s.clock.now, 0
	}
	for s.shardBits < shardBits && o.CountersMax>>s.shardBits >= 2*shardFill {
		s.shardBits++
	}
	s.shards = make([]shard, 1<<s.shardBits)
	for i := range s.shards {
		s.shards[i].init(s.seed)
	}
	s.overflow.init(s.seed)
	return s, nil
}

// Len returns how many counters the store holds, without those of overflow. While calls are under way it may count a
// newcomer that will not be kept.
func (s *Store) Len() int { return int(s.held.Load()) }

// Bytes returns how many bytes the counters take, without those of overflow.
func (s *Store) Bytes() int64 { return s.bytes.Load() }

// Overflows returns how many checks overflow counters have answered since New.
func (s *Store) Overflows() uint64 { return s.overflow.answered.Load() }

// Close does nothing and returns nil: the store has no goroutine, and calls that are still under way are answered.
func (s *Store) Close() error { return nil }

var _ core.Store = (*Store)(nil)

// smallCall is the number of checks of most calls: so many are answered on a small stack.
const smallCall = 4

// Take answers the checks as [core.Store] says. When ctx is done already it charges nothing and the error wraps
// [core.ErrUnavailable] and the context's; otherwise it never waits for more than other calls' locks. A key longer than
// [KeyMax] is refused with [core.ErrInvalid]. When its clock is outside of a calendar window's boundaries the error wraps
// [core.ErrStale].
func (s *Store) Take(ctx context.Context, checks []core.Check, results []core.Result) error {
	if err := core.ValidateChecks(checks, results); err != nil {
		return err
	}
	for i := range checks {
		if n := len(checks[i].Key); n > KeyMax {
			return fmt.Errorf("%w: check %d: the key has %d bytes, at most %d can be held", core.ErrInvalid, i, n, KeyMax)
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", core.ErrUnavailable, err)
	}
	err := s.answer(checks, results[:len(checks)])
	if err != nil && s.clock != nil && s.clock.follow() { // it is stale, and has changed nothing
		err = s.answer(checks, results[:len(checks)])
	}
	return err
}

func (s *Store) answer(checks []core.Check, results []core.Result) error {
	c := call{store: s, checks: checks, results: results}
	if len(checks) <= smallCall {
		var places [smallCall]place
		var slots [smallCall]core.Slot
		return c.run(places[:len(checks)], slots[:len(checks)])
	}
	return c.runLarge()
}

// runLarge is for calls of many checks: clearing this much stack is little beside them, and much beside a single one.
func (c *call) runLarge() error {
	var places [core.ChecksMax]place
	var slots [core.ChecksMax]core.Slot
	return c.run(places[:len(c.checks)], slots[:len(c.checks)])
}

// shardOf returns the number of the shard that holds the hash.
func (s *Store) shardOf(hash uint64) int { return int(hash >> (64 - s.shardBits)) }

// fits reports whether there are bytes for one more record of the key's length in the table, which is locked.
func (s *Store) fits(t *table, keyLength int) bool {
	need := t.growth(keyLength)
	return need == 0 || s.bytes.Load()+t.bytes-t.told+need <= s.bytesMax
}

// tell adds what the table, which is locked, has come to take to the sum of all.
func (s *Store) tell(t *table) {
	if t.bytes != t.told {
		s.bytes.Add(t.bytes - t.told)
		t.told = t.bytes
	}
}

// reserve takes one of the places for counters, if there is one.
func (s *Store) reserve() bool {
	for {
		held := s.held.Load()
		if held >= s.max {
			return false
		}
		if s.held.CompareAndSwap(held, held+1) {
			return true
		}
	}
}

// shardSet is a set of shard numbers.
type shardSet [shardsMax / 64]uint64

func (set *shardSet) add(shard int) { set[shard/64] |= 1 << (shard % 64) }

// lock takes the locks of a set of shards in ascending order, so that two calls cannot wait for each other.
func (s *Store) lock(set *shardSet) {
	for word, members := range set {
		for ; members != 0; members &= members - 1 {
			s.shards[word*64+bits.TrailingZeros64(members)].mu.Lock()
		}
	}
}

func (s *Store) unlock(set *shardSet) {
	for word, members := range set {
		for ; members != 0; members &= members - 1 {
			s.shards[word*64+bits.TrailingZeros64(members)].mu.Unlock()
		}
	}
}
