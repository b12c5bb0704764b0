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

	"github.com/penstock/penstock/core/counter"
)

// Bounds of a store.
const (
	// CountersMaxDefault is the default maximum number of counters. The counters take about 100 MB.
	CountersMaxDefault = 1 << 20
	// CountersMaxBound is the greatest number of counters that can be configured. Even if every
	// record fills a page, 32-bit record numbers suffice.
	CountersMaxBound = 1 << 28

	// BytesMaxDefault is the default of BytesMax if CountersMax is at most its default. With a
	// greater CountersMax, the default is bytesPerCounter for each counter.
	BytesMaxDefault = CountersMaxDefault * bytesPerCounter
	// BytesMaxLeast is the least number of bytes that can be configured, because each shard needs
	// some pages.
	BytesMaxLeast = 16 << 20
	// bytesPerCounter suffices for counters whose keys have about 200 bytes.
	bytesPerCounter = 256

	// shardBits gives more shards than there are cores, so that calls rarely contend.
	shardBits = 8
	shardsMax = 1 << shardBits
	// shardFill is the least number of counters per shard. With fewer, a shard of a full store
	// could be empty, and a newcomer there could not replace any counter.
	shardFill = 64

	// backwards is how long a store with Options.Now keeps fresh counters while there is room. So
	// no counters are lost if the wall clock goes forward by an hour and back.
	backwards = 2 * counter.Hour
)

// Options configures a store. The zero Options are the defaults.
type Options struct {
	// CountersMax is the greatest number of counters that the store holds, between 1 and
	// CountersMaxBound. If CountersMax is 0, the number is CountersMaxDefault.
	CountersMax int
	// BytesMax is the maximum number of bytes for counters; see Price in the package documentation.
	// If BytesMax is 0, the bound is 256 bytes for each of CountersMax counters, but at least
	// BytesMaxDefault. Any other value must be at least BytesMaxLeast. Existing counters can grow
	// beyond the bound.
	BytesMax int64
	// Now is the store's clock. Now must be safe for concurrent use. Nil means the time of the wall
	// clock at New, plus the time that has passed on the monotonic clock since then, which does not
	// go back. That clock is set to the wall clock if the calendar period of a call does not
	// contain its time.
	Now func() counter.Micros
	// Logger receives a message when the store is full, at most once a minute. Nil means no log.
	Logger *slog.Logger
}

// Store is a [counter.Store] in memory. [New] returns one. A Store is safe for concurrent use.
type Store struct {
	now       func() counter.Micros
	clock     *processClock  // nil if the caller has set the clock
	slack     counter.Micros // how long a fresh counter is kept while there is room
	max       int64
	bytesMax  int64
	seed      maphash.Seed
	shards    []shard
	shardBits uint8
	overflow  overflow
	alarm     alarm

	// every new counter changes the field held, which therefore has its own cache line; the fields
	// above are only read
	_     [64]byte
	held  atomic.Int64
	bytes atomic.Int64 // the bytes of all shards, as of their last call of addBytes
	_     [48]byte
}

// shard holds the counters whose hashes begin with its number.
type shard struct {
	mu sync.Mutex
	table
	_ [56]byte // pads the shard to eight cache lines, so that the lock and the first fields share one
}

// New returns an empty store. The error names the option that is out of bounds.
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
		s.clock = newProcessClock()
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

// Len returns the number of counters, without overflow counters. While calls are in progress, it
// may include counters that will be removed because nothing was charged.
func (s *Store) Len() int { return int(s.held.Load()) }

// Bytes returns how many bytes the counters take, without overflow counters.
func (s *Store) Bytes() int64 { return s.bytes.Load() }

// Overflows returns the number of checks answered by overflow counters since New.
func (s *Store) Overflows() uint64 { return s.overflow.answered.Load() }

// Close does nothing and returns nil: the store has no goroutine, and calls in progress are
// answered.
func (s *Store) Close() error { return nil }

var _ counter.Store = (*Store)(nil)

// smallCall is a number of checks that few calls exceed. Calls of up to that many checks need only
// a small stack.
const smallCall = 4

// Take implements [counter.Store]. If ctx is done, Take charges nothing, and the error wraps
// [counter.ErrUnavailable] and the context's error. Otherwise Take waits only for locks of other
// calls. A key longer than [KeyMax] is an error that wraps [counter.ErrInvalid]. If the clock is
// outside the boundaries of a calendar window, the boundaries are stale: the error wraps
// [counter.ErrStale], and the call has changed nothing.
func (s *Store) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	if err := counter.ValidateChecks(checks, results); err != nil {
		return err
	}
	for i := range checks {
		if n := len(checks[i].Key); n > KeyMax {
			return fmt.Errorf("%w: check %d: the key has %d bytes, and the longest allowed has %d", counter.ErrInvalid, i, n, KeyMax)
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", counter.ErrUnavailable, err)
	}
	err := s.answer(checks, results[:len(checks)])
	if err != nil && s.clock != nil && s.clock.follow() {
		err = s.answer(checks, results[:len(checks)])
	}
	return err
}

// Store.answer runs a call of the checks.
func (s *Store) answer(checks []counter.Check, results []counter.Result) error {
	c := call{store: s, checks: checks, results: results}
	if len(checks) <= smallCall {
		var places [smallCall]place
		var slots [smallCall]counter.Slot
		return c.run(places[:len(checks)], slots[:len(checks)])
	}
	return c.runLarge()
}

// runLarge runs a call of many checks. Its stack frame is large. If the compiler inlined runLarge,
// each call of one check would have to clear that frame, and every goroutine would need a larger
// stack. Both cost too much, so inlining is disabled.
//
//go:noinline
func (c *call) runLarge() error {
	var places [counter.ChecksMax]place
	var slots [counter.ChecksMax]counter.Slot
	return c.run(places[:len(c.checks)], slots[:len(c.checks)])
}

// shardOf returns the number of the shard of a hash.
func (s *Store) shardOf(hash uint64) int { return int(hash >> (64 - s.shardBits)) }

// Store.hasRoom reports whether a record with this key would keep the store within its bound of
// bytes. The caller has locked the table.
func (s *Store) hasRoom(t *table, keyLength int) bool {
	need := t.growth(keyLength)
	return need == 0 || s.bytes.Load()+t.bytes-t.bytesAdded+need <= s.bytesMax
}

// addBytes adds the growth of a table to the store's sum of bytes. The table is locked.
func (s *Store) addBytes(t *table) {
	if t.bytes != t.bytesAdded {
		s.bytes.Add(t.bytes - t.bytesAdded)
		t.bytesAdded = t.bytes
	}
}

// addBytesOf calls addBytes for the tables of a set of shards, which are locked.
func (s *Store) addBytesOf(set *shardSet) {
	for word, members := range set {
		for ; members != 0; members &= members - 1 {
			s.addBytes(&s.shards[word*64+bits.TrailingZeros64(members)].table)
		}
	}
}

// Store.reserve adds one to the number of counters, unless the bound is reached.
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

func (set *shardSet) include(shard int) { set[shard/64] |= 1 << (shard % 64) }

// Store.lock takes the locks of a set of shards in ascending order, so that two calls cannot wait
// for each other.
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
