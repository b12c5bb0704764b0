// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"context"
	"encoding/binary"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock/core/counter"
)

// overflowPerRule is the number of counters that the newcomers to a rule share when the store is
// full. With 1,024, a client with many requests affects one in a thousand others, and the counters
// take little memory.
const overflowPerRule = 1 << overflowBits

const (
	overflowBits  = 10
	overflowShift = 10 // the bit of a hash at which the overflow number begins
	// overflowSuffix is the length of the part of a key that differs between the overflow counters
	// of one rule: number, algorithm, window.
	overflowSuffix = 2 + 1 + 8
	// overflowLooks is the number of records that the hand passes in each call that takes the lock.
	overflowLooks = 4
	// overflowKeySmall is the length up to which the key of an overflow counter is built on the
	// stack.
	overflowKeySmall = 256
)

// overflow holds the counters that newcomers share. Shared counters do not count against the
// store's bound. There are at most overflowPerRule for each limit of each rule, and rules come from
// the policy, not from clients.
type overflow struct {
	mu sync.Mutex // this lock is taken after those of all shards
	table
	live     atomic.Bool // whether the table holds counters
	answered atomic.Uint64
}

// overflow.unlock updates live and releases the lock.
func (o *overflow) unlock() {
	if live := o.held > 0; live != o.live.Load() {
		o.live.Store(live)
	}
	o.mu.Unlock()
}

// appendKey appends the key of the overflow counter that a check with this hash shares. The key
// consists of the scope of the check's key, the overflow number, the algorithm with the calendar
// unit, and the window. The overflow table holds no other keys, so the key cannot be equal to a
// client's.
func appendKey(dst []byte, c *counter.Check, hash uint64) []byte {
	dst = append(dst, c.Key[:c.ScopeLen]...)
	dst = binary.BigEndian.AppendUint16(dst, uint16(hash>>overflowShift&(overflowPerRule-1)))
	dst = append(dst, byte(c.Limit.Algorithm())|byte(c.Limit.Calendar())<<4)
	return binary.BigEndian.AppendUint64(dst, uint64(c.Limit.Window()))
}

// lockOverflow takes the lock of overflow, unless the call holds it.
func (c *call) lockOverflow() {
	if c.locked {
		return
	}
	o := &c.store.overflow
	o.mu.Lock()
	c.locked = true
	c.now = c.store.now() // the clock is read after the lock is taken, as in answer
	o.reclaim(c.now, overflowLooks, false, nil)
}

// keepOverflow assigns the check its overflow counter, if the counter exists and is not fresh.
func (c *call) keepOverflow(places []place, i int) bool {
	var small [overflowKeySmall]byte
	o := &c.store.overflow
	key := appendKey(small[:0], &c.checks[i], places[i].hash)
	hash := o.hash(key)
	r, ok := o.find(hash, key)
	if !ok || o.freshAt(r) <= c.now {
		return false
	}
	c.join(places, i, hash, r)
	return true
}

// takeOverflow assigns the check its overflow counter, which it creates if necessary.
func (c *call) takeOverflow(places []place, i int) {
	var small [overflowKeySmall]byte
	o := &c.store.overflow
	key := appendKey(small[:0], &c.checks[i], places[i].hash)
	hash := o.hash(key)
	r, ok := o.find(hash, key)
	if !ok {
		if r, ok = o.insert(hash, key); !ok {
			places[i].barred = true
			return
		}
		places[i].born = true
	}
	c.join(places, i, hash, r)
}

// call.join sets the place of the check to an overflow counter.
func (c *call) join(places []place, i int, hash uint64, r ref) {
	o := &c.store.overflow
	p := &places[i]
	p.barred = o.spares(places[:i], r)
	p.table, p.hash, p.ref = &o.table, hash, r
}

// alarm logs that the store is full.
type alarm struct {
	log  *slog.Logger
	last atomic.Int64 // instant of the last log line, 0 for none
}

// alarmEvery is the least time between two log lines.
const alarmEvery = counter.Minute

// alarm.raise logs that the store is full, unless that was logged a short time ago.
func (a *alarm) raise(now counter.Micros, s *Store) {
	last := a.last.Load()
	if a.log == nil || last != 0 && now >= counter.Micros(last) && now < counter.Micros(last)+alarmEvery ||
		!a.last.CompareAndSwap(last, int64(now)) {
		return
	}
	a.log.LogAttrs(context.Background(), slog.LevelWarn, "the store is full: new clients share overflow counters",
		slog.Int64("counters", s.held.Load()), slog.Int64("counters_max", s.max),
		slog.Int64("bytes", s.bytes.Load()), slog.Int64("bytes_max", s.bytesMax))
}
