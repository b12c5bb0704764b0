// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"context"
	"errors"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core/counter"
)

// NodesMax is the maximum number of nodes among which the store divides a limit.
const NodesMax = 1 << 20

// Options are the options of [New]. The field Counts must be set.
type Options struct {
	// Counts holds the counters of this process, which replace those of the shared store while it
	// does not answer. All stores of a process over the same counters should have the same Counts.
	Counts *Counts
	// Nodes returns the number of nodes that share the store's counters, according to this
	// process's latest information. A result below 1 counts as 1. Nodes is called while the shared
	// store does not answer, so it must not call that store. Nil means that this node is the only
	// one.
	Nodes func() int
	// Prepare prepares for calls of Nodes. It is called once, before the first call that has a
	// check with on_error: local. It must return at once. Nil means that no preparation is needed.
	Prepare func()
	// Known returns the number of used units of a check's counter that the shared store last
	// reported to this process; 0 if there is no recent report. Under on_error: allow, counting
	// starts from this number. An answer that admits a request must be included in the report
	// before the request is admitted. Nil means that there are no reports.
	Known func(c *counter.Check) (used int64)
	// AtOnce answers a call as the shared store would, if that is possible without calling that
	// store. Otherwise it returns false and charges nothing. Nil means that this is never possible.
	AtOnce func(checks []counter.Check, results []counter.Result) bool
	// Patience is how long a request waits while another store, with the same Counts, charges a
	// debt. It must be longer than a shared store takes to fail. 0 means that the request waits
	// until the debt is charged or the attempt fails.
	Patience time.Duration
	// Now returns the time. Nil means time.Now.
	Now func() time.Time
	// Failed is called with the error of the shared store whenever this process answers a call in
	// place of that store. It must be safe for concurrent use. Nil means that errors are dropped.
	Failed func(err error)
}

// Store is a [counter.Store] and [counter.Batcher] over another store. [New] returns one. It is
// safe for concurrent use.
type Store struct {
	*Counts
	inner   counter.Store
	batcher counter.Batcher // the inner store, if it implements Batcher
	options Options
	ready   atomic.Bool
}

// Counts is what a process counts in place of a shared store: the units of its counters in memory,
// their tallies, and the units that the shared store has not charged yet. Create it with
// [NewCounts]. Counts is safe for concurrent use.
type Counts struct {
	local   counter.Store
	owed    owed
	tallies tallies
	locks   [owedShards]sync.Mutex // the locks that serialize catchUpCheck for a counter
}

// NewCounts returns Counts that counts in a store in this process's memory. The caller closes that
// store.
func NewCounts(local counter.Store) *Counts {
	c := &Counts{local: local}
	c.owed.seed = maphash.MakeSeed()
	return c
}

var _ counter.Batcher = (*Store)(nil)

// localCall is a call of the local store. It is reused.
type localCall struct {
	checks  []counter.Check
	results []counter.Result
	text    []byte // keys of unsharded counters and of tallies
	// for each appended check: the index of the caller's check that it belongs to
	parts  []int
	one    [1]counter.Check // the checks of a call about one counter
	result [1]counter.Result
}

// localCalls holds calls for reuse. It is not part of a Store, because the runtime refers to a pool
// until two garbage collections after the pool's last use. For that time, the Store would stay in
// memory.
var localCalls = sync.Pool{New: func() any { return new(localCall) }}

// New returns a store over inner, which the caller closes.
func New(inner counter.Store, o Options) *Store {
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Store{Counts: o.Counts, inner: inner, options: o}
	s.batcher, _ = inner.(counter.Batcher)
	return s
}

// Take implements [counter.Store]. It answers from memory if the shared store does not answer.
func (s *Store) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	s.prepare(checks)
	if s.owed.count.Load() == 0 {
		return s.takeOne(ctx, nil, checks, results)
	}
	t := localCalls.Get().(*localCall)
	defer localCalls.Put(t)
	if err := s.settle(ctx, t, checks); err != nil {
		return s.or(ctx, t, err, true, checks, results)
	}
	return s.takeOne(ctx, t, checks, results)
}

// takeOne calls the store. The argument t may be nil.
func (s *Store) takeOne(ctx context.Context, t *localCall, checks []counter.Check, results []counter.Result) error {
	err := s.inner.Take(ctx, checks, results)
	if fullOf(err) != nil {
		calls := []counter.Call{{Checks: checks, Results: results, Err: err}}
		s.takeHalves(ctx, calls)
		return calls[0].Err
	}
	return s.or(ctx, t, err, counter.Unsent(err), checks, results)
}

// TakeNow answers a call like Take, but only if that is possible without calling the shared store.
// Otherwise it returns false, and charges nothing.
func (s *Store) TakeNow(checks []counter.Check, results []counter.Result) bool {
	if s.options.AtOnce == nil || s.owes(checks) {
		return false
	}
	s.prepare(checks)
	if !s.options.AtOnce(checks, results) {
		return false
	}
	s.tally(checks, results)
	return true
}

// Store.prepare calls Options.Prepare if a check needs it.
func (s *Store) prepare(checks []counter.Check) {
	if s.options.Prepare == nil || s.ready.Load() {
		return
	}
	for i := range checks {
		if checks[i].OnError == counter.OnErrorLocal && s.ready.CompareAndSwap(false, true) {
			s.options.Prepare()
			return
		}
	}
}

// TakeAll implements [counter.Batcher].
func (s *Store) TakeAll(ctx context.Context, calls []counter.Call) {
	for i := range calls {
		s.prepare(calls[i].Checks)
	}
	if s.owed.count.Load() > 0 {
		if err := s.settleAll(ctx, calls); err != nil {
			for i := range calls {
				calls[i].Err = err
			}
			return
		}
	}
	if s.batcher == nil {
		for i := range calls {
			calls[i].Err = s.inner.Take(ctx, calls[i].Checks, calls[i].Results)
		}
	} else {
		s.batcher.TakeAll(ctx, calls)
	}
	full := false
	for i := range calls {
		call := &calls[i]
		if fullOf(call.Err) != nil {
			full = true
			continue
		}
		call.Err = s.or(ctx, nil, call.Err, counter.Unsent(call.Err), call.Checks, call.Results)
	}
	if full {
		s.takeHalves(ctx, calls)
	}
}

// settleAll charges the debts of the counters of all calls. It stops if the store does not answer,
// but not if the store only has no memory for a call's new counter. It returns an error if ctx has
// ended while another request was charging a debt.
func (s *Store) settleAll(ctx context.Context, calls []counter.Call) error {
	if !s.settleTogether(ctx, calls) {
		return nil
	}
	t := localCalls.Get().(*localCall)
	defer localCalls.Put(t)
	for i := range calls {
		err := s.settle(ctx, t, calls[i].Checks)
		switch {
		case err == nil || fullOf(err) != nil:
		case errors.Is(err, counter.ErrOverloaded) && ctx.Err() != nil:
			return err
		default:
			return nil
		}
	}
	return nil
}

// Store.or completes a call of the store. If err is nil, the store has answered, and the tallies
// are updated. Otherwise Store.or answers the call from memory, or returns err. The argument t may
// be nil. If unsent is true, the store has certainly not executed the call, and the units that this
// process admits become a debt. If ctx was canceled, Store.or returns err, because a caller that
// leaves is no evidence against the store.
func (s *Store) or(ctx context.Context, t *localCall, err error, unsent bool, checks []counter.Check, results []counter.Result) error {
	if err == nil {
		s.tally(checks, results)
		return nil
	}
	if !standsIn(err, checks) || errors.Is(ctx.Err(), context.Canceled) {
		return err
	}
	if t == nil {
		t = localCalls.Get().(*localCall)
		defer localCalls.Put(t)
	}
	s.startTallies(checks)
	s.catchUp(t, checks)
	failure := t.take(s.local, checks, results, s.nodes())
	clear(t.checks) // their keys belong to the caller
	if failure != nil {
		s.settleDoubt(checks)
		return err // memory cannot answer this call either
	}
	s.owe(t, unsent, checks, results)
	if s.options.Failed != nil {
		s.options.Failed(err)
	}
	return nil
}

// standsIn reports whether a failed call is answered from memory. At least one rule must be counted
// in memory, and no rule may require a denial. Refunds and forced charges are excluded, because
// they concern a charge that only the store has recorded.
func standsIn(err error, checks []counter.Check) bool {
	if !errors.Is(err, counter.ErrUnavailable) {
		return false
	}
	stands := false
	for i := range checks {
		switch c := &checks[i]; {
		case c.Op != counter.OpTake && c.Op != counter.OpUpTo || c.OnError == counter.OnErrorDeny:
			return false
		case c.OnError == counter.OnErrorLocal || counts(c):
			stands = true
		}
	}
	return stands
}

// counts reports whether this process counts a check of a limit while the store does not answer.
func counts(c *counter.Check) bool {
	return c.Limit != nil && (c.OnError == counter.OnErrorLocal || c.OnError == counter.OnErrorAllow)
}

// share returns the number of equal parts into which a limit is divided. This process admits one
// part. Under on_error: allow the only part is the whole limit.
func share(c *counter.Check, nodes int64) int64 {
	if c.OnError == counter.OnErrorLocal {
		return nodes
	}
	return 1
}

// catchUp raises the counters in memory to the usage that the store last reported, so that a client
// cannot use units again that the store has already counted.
func (s *Store) catchUp(t *localCall, checks []counter.Check) {
	if s.options.Known == nil {
		return
	}
	for i := range checks {
		s.catchUpCheck(t, &checks[i])
	}
}

// catchUpCheck raises the counter of a check in memory to the usage that the store last reported
// plus the units that the store has not charged yet. The order of the steps matters, because other
// calls count at the same time: a unit can be counted twice, but none is missed.
func (s *Store) catchUpCheck(t *localCall, c *counter.Check) {
	if s.options.Known == nil || !counts(c) {
		return
	}
	t.text = t.text[:0]
	lock := &s.locks[maphash.Bytes(s.owed.seed, c.Key)%owedShards]
	lock.Lock()
	defer lock.Unlock()
	defer func() { t.one[0] = counter.Check{} }() // a call for reuse must not keep the key of its caller
	t.one[0] = counter.Check{Key: t.tallyKey(c), ScopeLen: c.ScopeLen, Limit: c.Limit, Bounds: c.Bounds, Op: counter.OpLook}
	if s.local.Take(context.Background(), t.one[:], t.result[:]) != nil {
		return
	}
	used := s.owed.uncharged(c.Key)
	used += s.options.Known(c)
	if missing := used - (c.Limit.Capacity() - t.result[0].Remaining); missing > 0 {
		t.one[0].Op, t.one[0].Cost = counter.OpForce, missing
		// The error is dropped, because the request's own call gets the same one.
		_ = s.local.Take(context.Background(), t.one[:], t.result[:])
	}
}

// Store.owe records the units of an admitted request, so that they are charged when the store
// answers again. Only the units of a call that was certainly not sent become a debt. The results
// contain the receipts and units that a settlement needs.
func (s *Store) owe(t *localCall, unsent bool, checks []counter.Check, results []counter.Result) {
	if anyDenied(checks, results) {
		s.settleDoubt(checks)
		return
	}
	now := s.options.Now()
	for i := range checks {
		c := &checks[i]
		if !counts(c) || results[i].Denied {
			continue
		}
		u := dueOf(c, &t.results[i], now)
		if u.units <= 0 {
			continue
		}
		owes := unsent && s.addDebt(c.Key, now, u)
		if owes {
			s.settleDoubt(checks[i : i+1])
		}
		if !u.refundable {
			continue
		}
		if results[i].Granted = u.units; owes {
			results[i].Receipt = -u.receipt
		}
	}
}

// dueOf returns the debt that results from a check which the local store has answered.
func dueOf(c *counter.Check, local *counter.Result, now time.Time) due {
	span := local.Reset
	if c.Limit.Algorithm() == counter.SlidingLog {
		span = c.Limit.Window()
	}
	return due{unitsOf(c), local.Receipt, now.Add(time.Duration(span) * time.Microsecond), c.Refundable && c.Op != counter.OpForce}
}

// unitsOf returns the units that the local store charges for a check.
func unitsOf(c *counter.Check) int64 {
	switch {
	case c.Op != counter.OpUpTo:
		return c.Cost
	case c.Max == 0:
		return 0
	}
	return c.Min
}

func (s *Store) nodes() int64 {
	if s.options.Nodes == nil {
		return 1
	}
	return int64(min(max(1, s.options.Nodes()), NodesMax))
}

// localCall.take takes units from this node's share in the local store. The caller clears t.checks.
func (t *localCall) take(local counter.Store, checks []counter.Check, results []counter.Result, nodes int64) error {
	t.checks, t.results, t.text = append(t.checks[:0], checks...), append(t.results[:0], results...), t.text[:0]
	t.parts = t.parts[:0]
	for i := range checks {
		c := &t.checks[i]
		if c.Op == counter.OpUpTo { // a share is not leased
			c.Op, c.Cost, c.Age = counter.OpTake, c.Min, 0
			if c.Max == 0 { // the check only reads the counter
				c.Op = counter.OpLook
			}
		}
		switch {
		case counts(c):
			if c.Guard != 0 && (c.OnError != counter.OnErrorLocal || checks[c.Guard-1].OnError != counter.OnErrorLocal) {
				c.Guard = 0 // the client's penalty is not counted here
			}
			if c.OnError == counter.OnErrorLocal {
				t.addTally(i, &checks[i])
				c = &t.checks[i]
			}
			n := share(c, nodes)
			if c.UnshardedLimit != nil {
				t.divide(i, n)
				c = &t.checks[i]
			}
			c.Cost = shareOf(c, n)
		case c.Limit != nil || c.OnError != counter.OnErrorLocal:
			c.Op, c.Guard = counter.OpLook, 0 // denies nothing
		}
	}
	if err := local.Take(context.Background(), t.checks, t.results); err != nil {
		return err
	}
	for i := range results {
		c, r := &checks[i], &t.results[i]
		results[i] = counter.Result{At: r.At, Local: true}
		if counts(c) || c.Penalty != nil && c.OnError == counter.OnErrorLocal {
			results[i].Denied, results[i].Wait, results[i].Violations = r.Denied, r.Wait, r.Violations
		}
	}
	for i, of := range t.parts {
		if r := &t.results[len(results)+i]; r.Denied {
			results[of].Denied, results[of].Wait = true, max(results[of].Wait, r.Wait)
		}
	}
	return nil
}

// localCall.divide counts a check of one shard both in its shard and in the whole limit. The node's
// share is taken from the whole limit, because a share smaller than the number of shards would
// otherwise admit a request in each shard. The shard is counted as well because some servers might
// still answer. Those servers count the other shards, whose units this node must not admit.
func (t *localCall) divide(i int, nodes int64) {
	c := &t.checks[i]
	part, start := *c, len(t.text)
	part.Cost, part.UnshardedLimit = shareOf(&part, nodes), nil
	t.text = counter.AppendUnshardedKey(t.text, c.Key)
	c.Key, c.Limit = t.text[start:len(t.text):len(t.text)], c.UnshardedLimit
	if len(t.checks) < counter.ChecksMax {
		t.checks, t.results, t.parts = append(t.checks, part), append(t.results, counter.Result{}), append(t.parts, i)
	}
}

// shareOf returns the number of units that a check charges in memory. For a share of 1/n, the check
// charges n times its cost, so that the node admits 1/n of the limit. A single request that fits
// into the whole limit always fits into the share.
func shareOf(c *counter.Check, nodes int64) int64 {
	if capacity := c.Limit.Capacity(); c.Cost <= capacity {
		return min(c.Cost*nodes, capacity)
	}
	return c.Cost
}
