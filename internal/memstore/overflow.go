// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"context"
	"encoding/binary"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock/core"
)

// overflowPerRule is how many counters the newcomers to a rule share when the store is full: enough that one greedy
// client takes only its thousandth of the others with it, few enough to be no memory.
const overflowPerRule = 1 << overflowBits

const (
	overflowBits  = 10
	overflowShift = 10 // where in a hash the overflow number begins
	// overflowSuffix is how many bytes tell the overflow counters of one rule apart: number, algorithm, window.
	overflowSuffix = 2 + 1 + 8
	// overflowLooks is how far the hand goes in each call that comes by.
	overflowLooks = 4
	// overflowKeySmall is up to which length the key of an overflow counter is built on the stack.
	overflowKeySmall = 256
)

// overflow is the counters that newcomers share. They do not count against the store's bound; there are at most
// overflowPerRule for each limit of each rule, and rules come from the policy, not from clients.
type overflow struct {
	mu sync.Mutex // taken after all shards
	table
	live     atomic.Bool // there are counters here
	answered atomic.Uint64
}

func (o *overflow) unlock() {
	if live := o.held > 0; live != o.live.Load() {
		o.live.Store(live)
	}
	o.mu.Unlock()
}

// appendKey appends the key of the overflow counter that a check with this hash shares. Its own algorithm, calendar unit and window
// stand for the end of the check's key. It lives in a table of its own, so it cannot be a client's key too.
func appendKey(dst []byte, c *core.Check, hash uint64) []byte {
	dst = append(dst, c.Key[:c.ScopeLen]...)
	dst = binary.BigEndian.AppendUint16(dst, uint16(hash>>overflowShift&(overflowPerRule-1)))
	dst = append(dst, byte(c.Limit.Algorithm())|byte(c.Limit.Calendar())<<4)
	return binary.BigEndian.AppendUint64(dst, uint64(c.Limit.Window()))
}

// lockOverflow takes the lock of overflow, if this call does not hold it yet.
func (c *call) lockOverflow() {
	if c.locked {
		return
	}
	o := &c.store.overflow
	o.mu.Lock()
	c.locked = true
	c.now = c.store.now() // see run
	o.reclaim(c.now, overflowLooks, false, nil)
}

// stay gives the check the overflow counter it would share, if that is held and not fresh.
func (c *call) stay(places []place, i int) bool {
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

// share gives the check the overflow counter it shares now that there is no room.
func (c *call) share(places []place, i int) {
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

// join puts the check at an overflow counter.
func (c *call) join(places []place, i int, hash uint64, r ref) {
	o := &c.store.overflow
	p := &places[i]
	p.barred = o.spares(places[:i], r)
	p.table, p.hash, p.ref = &o.table, hash, r
}

// alarm tells the log that the store is full.
type alarm struct {
	log  *slog.Logger
	last atomic.Int64 // instant of the last line, 0 for none
}

// alarmEvery is how often the log is told at most.
const alarmEvery = core.Minute

func (a *alarm) raise(now core.Micros, s *Store) {
	last := a.last.Load()
	if a.log == nil || last != 0 && now >= core.Micros(last) && now < core.Micros(last)+alarmEvery ||
		!a.last.CompareAndSwap(last, int64(now)) {
		return
	}
	a.log.LogAttrs(context.Background(), slog.LevelWarn, "the store is full: new clients share overflow counters",
		slog.Int64("counters", s.held.Load()), slog.Int64("counters_max", s.max),
		slog.Int64("bytes", s.bytes.Load()), slog.Int64("bytes_max", s.bytesMax))
}
