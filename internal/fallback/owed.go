// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"context"
	"errors"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core"
)

// OwedMax is how many counters at most have units that this process let through and the store has not been
// told of. Units of more counters are not told.
const OwedMax = 1 << 16

const owedShards = 64

// owed are the units that were let through while the store was away, by counter. They are charged in the
// store with the first request for their counter that finds it back, so that a client has no second
// allowance then. Units whose window is over are dropped.
type owed struct {
	seed   maphash.Seed
	count  atomic.Int64 // of counters: 0 is the usual case, and costs one load
	shards [owedShards]owedShard
}

type owedShard struct {
	mu    sync.Mutex
	told  sync.Cond // that the store has been told of a debt of the shard, or could not be
	debts map[string]*debt
}

// debt is what is owed of one counter.
type debt struct {
	units    int64
	until    time.Time
	settling bool // the store is being told
}

func (o *owed) shard(key []byte) *owedShard {
	return &o.shards[maphash.Bytes(o.seed, key)%owedShards]
}

// add owes units of a counter until an instant.
func (o *owed) add(key []byte, units int64, now, until time.Time) {
	sh := o.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	d := sh.debts[string(key)]
	if d == nil {
		if o.count.Load() >= OwedMax && !o.drop(sh, now) {
			return
		}
		if sh.debts == nil {
			sh.debts = make(map[string]*debt)
		}
		d = new(debt)
		sh.debts[string(key)] = d
		o.count.Add(1)
	}
	d.units = min(d.units+units, core.CountMax)
	if until.After(d.until) {
		d.until = until
	}
}

// drop forgets what is over of a shard. It reports whether there was any. The caller holds the lock.
func (o *owed) drop(sh *owedShard, now time.Time) (dropped bool) {
	for key, d := range sh.debts {
		if now.After(d.until) && !d.settling {
			delete(sh.debts, key)
			o.count.Add(-1)
			dropped = true
		}
	}
	return dropped
}

// begin takes what is owed of a counter, to tell the store. If another request tells it at this moment,
// begin returns when that is done: at the store's deadline at the latest.
func (o *owed) begin(key []byte, now time.Time) (units int64) {
	sh := o.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	d := sh.debts[string(key)]
	for d != nil && d.settling {
		sh.told.Wait()
		if d = sh.debts[string(key)]; d != nil && !d.settling {
			return 0 // the store could not be told, and the call finds that out by itself
		}
	}
	switch {
	case d == nil:
		return 0
	case now.After(d.until):
		delete(sh.debts, string(key))
		o.count.Add(-1)
		return 0
	}
	units, d.units, d.settling = d.units, 0, true
	return units
}

// end ends what begin began: so many units are still owed.
func (o *owed) end(key []byte, units int64) {
	sh := o.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	d := sh.debts[string(key)]
	d.settling = false
	if d.units += units; d.units == 0 {
		delete(sh.debts, string(key))
		o.count.Add(-1)
	}
	sh.told.Broadcast()
}

// settle tells the store what is owed of the counters of a call, before the call. The error says that the
// store could not be told: then it need not be asked.
func (s *Store) settle(ctx context.Context, t *stand, checks []core.Check) error {
	for i := range checks {
		c := &checks[i]
		if !counts(c) || c.Op != core.OpTake && c.Op != core.OpUpTo {
			continue
		}
		if units := s.owed.begin(c.Key, s.options.Now()); units > 0 {
			if err := s.tell(ctx, t, c, units); err != nil {
				return err
			}
		}
	}
	return nil
}

// tell charges units in the store that were let through without it. If the store does not answer they
// stay owed, also where it may have charged them: the limit holds, and the client may lose units.
func (s *Store) tell(ctx context.Context, t *stand, c *core.Check, units int64) error {
	left := units
	defer func() { s.owed.end(c.Key, left) }()
	t.one[0] = core.Check{Key: c.Key, ScopeLen: c.ScopeLen, Limit: c.Limit, Bounds: c.Bounds, Op: core.OpForce, Cost: units, Source: c.Source}
	err := s.inner.Take(ctx, t.one[:], t.result[:])
	t.one[0] = core.Check{} // its key is the caller's
	if err == nil || !errors.Is(err, core.ErrUnavailable) {
		left = 0
	}
	return err
}
