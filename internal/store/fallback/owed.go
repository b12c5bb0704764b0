// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core/counter"
)

// OwedMax is the greatest number of counters with a debt. A further debt displaces a small one,
// whose units are then not charged.
const OwedMax = 1 << 16

const owedShards = 64

// owed holds the debts of all counters: the units that this process admitted and that the store has
// certainly not charged. The first request for a counter after the outage charges its debt in the
// store, so a client has no second allowance. A debt is dropped when its window ends.
type owed struct {
	seed   maphash.Seed
	count  atomic.Int64 // the number of counters that owe units; while it is 0, as usual, a check costs one load
	kept   atomic.Int64 // the number of entries, including those without owed units
	shards [owedShards]owedShard
}

type owedShard struct {
	mu      sync.Mutex
	settled chan struct{} // closed when a charge of a debt of the shard ends; nil if no request waits
	debts   map[string]*debt
}

// debt holds the units owed to one counter. If the units might be refunded, the entry remains after
// they are charged, until its window ends.
//
// Units are identified by their receipts of the local store. A later charge never has a smaller
// receipt than an earlier one. A refund of units reduces the debt, or refunds the charge of the
// debt in the store. There, all units of one window have the same receipt, so it does not matter to
// which request the refunded units belong. After a charge with an unknown outcome, some units might
// not have been charged, so no older unit is refunded.
type debt struct {
	units      int64
	underway   int64 // units that a request is charging in the store
	until      time.Time
	settling   bool // whether a request is charging the debt in the store
	refundable bool
	last       counter.Micros // the latest receipt of the local store
	owing      counter.Micros // the first receipt of the owed units
	charging   counter.Micros // the first receipt of the units that are being charged
	refundFrom counter.Micros // units with an earlier receipt are not refunded
	charged    charged
}

// charged holds units of a debt that the store has charged, minus refunds.
type charged struct {
	units   int64
	first   counter.Micros // the first receipt of the local store
	receipt counter.Micros // the receipt of the shared store
}

// due holds the units of one check that become a debt.
type due struct {
	units      int64
	receipt    counter.Micros // the receipt of the local store
	until      time.Time      // when the window ends
	refundable bool
}

func (o *owed) shard(key []byte) *owedShard {
	return &o.shards[maphash.Bytes(o.seed, key)%owedShards]
}

// addUnits adds units to a counter's debt. It reports whether there was room for the debt. If it
// displaced another debt to make room, it also returns the key and the units of that debt.
func (o *owed) addUnits(key []byte, now time.Time, u due) (displaced string, units int64, added bool) {
	sh := o.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	d := sh.debts[string(key)]
	if d != nil && !d.settling && now.After(d.until) {
		o.remove(sh, string(key), d)
		d = nil
	}
	if d == nil {
		if o.kept.Load() >= OwedMax {
			if displaced, units, added = o.displace(sh, now); !added {
				return "", 0, false
			}
		}
		if sh.debts == nil {
			sh.debts = make(map[string]*debt)
		}
		d = new(debt)
		sh.debts[string(key)] = d
		o.kept.Add(1)
	}
	d.addUnits(o, u)
	return displaced, units, true
}

// addUnits adds units to the debt. The caller holds the lock.
func (d *debt) addUnits(o *owed, u due) {
	if d.units == 0 {
		if d.owing = u.receipt; !d.settling {
			o.count.Add(1)
		}
	}
	d.units = min(d.units+u.units, counter.CountMax)
	d.last, d.refundable = max(d.last, u.receipt), d.refundable || u.refundable
	if u.until.After(d.until) {
		d.until = u.until
	}
}

// owed.remove removes an entry whose debt no request is charging. The caller holds the lock.
func (o *owed) remove(sh *owedShard, key string, d *debt) {
	if d.units > 0 {
		o.count.Add(-1)
	}
	delete(sh.debts, key)
	o.kept.Add(-1)
}

// owed.displace makes room in a shard. It examines a few entries and removes those whose window has
// ended. If no window of these entries has ended, it removes the one with the fewest units. So
// made-up clients, which owe a unit each, do not displace a large debt. Without that debt, its
// client would get the limit again. owed.displace returns the units that it removed, and whether
// there is room. The caller holds the lock.
func (o *owed) displace(sh *owedShard, now time.Time) (key string, units int64, room bool) {
	const glances = 16
	var least *debt
	looked := 0
	for k, d := range sh.debts {
		switch {
		case d.settling:
		case now.After(d.until):
			o.remove(sh, k, d)
			room = true
		case least == nil || d.units < least.units:
			key, least = k, d
		}
		if looked++; looked == glances {
			break
		}
	}
	if room || least == nil {
		return "", 0, room
	}
	units = least.units
	o.remove(sh, key, least)
	return key, units, true
}

// owed.begin removes and returns a counter's debt, and the caller must charge it in the store. If
// another request is charging the debt, begin waits for that request. If the request takes longer
// than patience, because it belongs to another store with a later deadline, begin returns 0. If
// patience is 0, there is no such bound. If ctx ends first, begin returns an error that wraps
// [counter.ErrOverloaded] and does not count as an outage, because the store was about to charge
// the debt.
func (o *owed) begin(ctx context.Context, key []byte, now time.Time, patience time.Duration) (units int64, err error) {
	sh := o.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	d := sh.debts[string(key)]
	for d != nil && d.settling {
		switch err := sh.await(ctx, patience); {
		case errors.Is(err, errPatience):
			return 0, nil
		case err != nil:
			return 0, fmt.Errorf("%w: another request was charging the counter's debt: %w", counter.ErrOverloaded, err)
		}
		if d = sh.debts[string(key)]; d != nil && !d.settling {
			return 0, nil // the charge failed, or other units have become a debt; the next call charges them
		}
	}
	return o.beginLocked(sh, key, d, now), nil
}

// errPatience reports that a charge has not ended in time.
var errPatience = errors.New("another request still charges the debt")

// owedShard.await waits until a charge of a debt of the shard has ended. It returns the context's
// error if ctx ends first, and errPatience after the duration patience. If patience is 0, only ctx
// bounds the wait. The caller holds the lock.
func (sh *owedShard) await(ctx context.Context, patience time.Duration) error {
	if sh.settled == nil {
		sh.settled = make(chan struct{})
	}
	settled := sh.settled
	sh.mu.Unlock()
	defer sh.mu.Lock()
	var late <-chan time.Time
	if patience > 0 {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-settled:
		return nil
	case <-late:
		return errPatience
	case <-ctx.Done():
		return ctx.Err()
	}
}

// owed.beginNow is like the method begin, but for a caller that does not wait. It leaves a debt
// that another request is charging.
func (o *owed) beginNow(key []byte, now time.Time) (units int64) {
	sh := o.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	d := sh.debts[string(key)]
	if d != nil && d.settling {
		return 0
	}
	return o.beginLocked(sh, key, d, now)
}

func (o *owed) beginLocked(sh *owedShard, key []byte, d *debt, now time.Time) (units int64) {
	switch {
	case d == nil:
		return 0
	case now.After(d.until):
		o.remove(sh, string(key), d)
		return 0
	case d.units == 0:
		return 0
	}
	units, d.units, d.settling, d.charging = d.units, 0, true, d.owing
	d.underway = units
	return units
}

// owed.end completes the charge of a debt that owed.begin has removed. If unsent is set, the store
// has certainly not charged the units, so they are still owed. Otherwise the argument named charge
// is the store's answer, or nil if the answer is unknown.
func (o *owed) end(key []byte, units int64, unsent bool, charge *counter.Result) {
	sh := o.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	d := sh.debts[string(key)]
	d.settling, d.underway = false, 0
	switch {
	case unsent:
		d.units, d.owing = d.units+units, d.charging
	case charge == nil:
		d.refundFrom = d.last + 1
	case charge.Receipt == d.charged.receipt:
		d.charged.units += charge.Granted
	default:
		d.charged = charged{charge.Granted, d.charging, charge.Receipt}
	}
	if d.units == 0 {
		o.count.Add(-1)
		if !d.refundable {
			o.remove(sh, string(key), d)
		}
	}
	if sh.settled != nil {
		close(sh.settled)
		sh.settled = nil
	}
}

// owed.uncharged returns how many units of a counter the store is not known to have charged.
func (o *owed) uncharged(key []byte) int64 {
	if o.count.Load() == 0 {
		return 0
	}
	sh := o.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if d := sh.debts[string(key)]; d != nil {
		return d.units + d.underway
	}
	return 0
}

// owed.refund refunds units that were owed under a receipt of the local store. First it reduces the
// debt. It returns the number of units that have already been charged in the store, and the receipt
// with which they can be refunded there.
func (o *owed) refund(key []byte, now time.Time, at counter.Micros, units int64) (left int64, receipt counter.Micros) {
	sh := o.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	d := sh.debts[string(key)]
	for d != nil && d.settling {
		_ = sh.await(context.Background(), 0) // this context does not end
		d = sh.debts[string(key)]
	}
	if d == nil || at < d.refundFrom || now.After(d.until) {
		return 0, 0
	}
	if at >= d.owing && d.units > 0 {
		owes := min(units, d.units)
		units -= owes
		if d.units -= owes; d.units == 0 {
			o.count.Add(-1)
		}
	}
	if at < d.charged.first {
		return 0, 0
	}
	left = min(units, d.charged.units)
	d.charged.units -= left
	return left, d.charged.receipt
}

// Store.addDebt adds units to a counter's debt, and reports whether there was room for them. The
// units of a debt that it displaced are in doubt again, because the store is not going to charge
// them.
func (s *Store) addDebt(key []byte, now time.Time, u due) bool {
	displaced, units, added := s.owed.addUnits(key, now, u)
	if units > 0 {
		s.addDoubt([]byte(displaced), units)
	}
	return added
}

// Store.settle charges the debts of a call's counters in the store, before the call. If a charge
// fails, settle returns its error, and the call itself need not be sent. If a charge fails only
// because the store has no memory for a new counter, the other debts are charged nevertheless.
func (s *Store) settle(ctx context.Context, t *localCall, checks []counter.Check) error {
	for i := range checks {
		c := &checks[i]
		if !settles(c) {
			continue
		}
		units, err := s.owed.begin(ctx, c.Key, s.options.Now(), s.options.Patience)
		if err != nil {
			return err
		}
		if units > 0 {
			if err := s.charge(ctx, t, c, units); err != nil && (len(checks) == 1 || fullOf(err) == nil) {
				return err
			}
		}
	}
	return nil
}

// settles reports whether the debt of a check's counter is charged before the check.
func settles(c *counter.Check) bool {
	return counts(c) && (c.Op == counter.OpTake || c.Op == counter.OpUpTo)
}

// Store.settleTogether charges the debts of the counters of all calls in one call of the store,
// because all of their requests wait until the debts are charged. It leaves debts that another
// request is charging. It returns false if the store does not answer.
func (s *Store) settleTogether(ctx context.Context, calls []counter.Call) (answered bool) {
	if s.batcher == nil {
		return true
	}
	var charges []counter.Call
	now := s.options.Now()
	for i := range calls {
		for j := range calls[i].Checks {
			c := &calls[i].Checks[j]
			if !settles(c) {
				continue
			}
			if units := s.owed.beginNow(c.Key, now); units > 0 {
				charges = append(charges, counter.Call{Checks: []counter.Check{chargeOf(c, units)},
					Results: make([]counter.Result, 1), Err: errUnfinished})
			}
		}
	}
	if len(charges) == 0 {
		return true
	}
	defer func() {
		for i := range charges {
			s.endCharge(&charges[i].Checks[0], &charges[i].Results[0], charges[i].Err)
		}
	}()
	s.batcher.TakeAll(ctx, charges)
	return !slices.ContainsFunc(charges, func(c counter.Call) bool { return c.Err != nil && fullOf(c.Err) == nil })
}

// errUnfinished is the error of a charge while the store is called. It remains if the store panics.
var errUnfinished = errors.New("the store has not returned")

// Store.charge charges a debt in the store.
func (s *Store) charge(ctx context.Context, t *localCall, c *counter.Check, units int64) error {
	err := errUnfinished
	t.one[0] = chargeOf(c, units)
	defer func() {
		s.endCharge(&t.one[0], &t.result[0], err)
		t.one[0] = counter.Check{} // its key belongs to the caller
	}()
	err = s.inner.Take(ctx, t.one[:], t.result[:])
	return err
}

// chargeOf returns the check that charges a debt of a check's counter.
func chargeOf(c *counter.Check, units int64) counter.Check {
	return counter.Check{Key: c.Key, ScopeLen: c.ScopeLen, Limit: c.Limit, Bounds: c.Bounds, Op: counter.OpForce,
		Refundable: c.Refundable, Cost: units, Source: c.Source}
}

// Store.endCharge ends the charge of a debt. The units remain owed only if the store has certainly
// not charged them, so nothing is charged twice.
func (s *Store) endCharge(c *counter.Check, r *counter.Result, err error) {
	notCharged := counter.Unsent(err)
	if err != nil {
		r = nil
	}
	if err != nil && !notCharged {
		s.addDoubt(c.Key, c.Cost)
	}
	s.owed.end(c.Key, c.Cost, notCharged, r)
}

// Store.owes reports whether a counter of the checks has units that the store has not charged.
func (s *Store) owes(checks []counter.Check) bool {
	for i := range checks {
		if s.owed.uncharged(checks[i].Key) > 0 {
			return true
		}
	}
	return false
}
