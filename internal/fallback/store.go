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

// NodesMax bounds what is believed of how many nodes there are.
const NodesMax = 1 << 20

// Options say what stands in. Local is required.
type Options struct {
	// Local counts in this process' memory.
	Local core.Store
	// Nodes returns how many nodes share the store's counters, as far as that is known; less than 1 counts as 1. It is asked
	// when the store could not be, so it must not ask the store. Nil: this is the only one.
	Nodes func() int
	// Prepare is called once, with the first call that has a check that says local: what Nodes needs is not done for who does
	// not need it. It must return at once. Nil: nothing is.
	Prepare func()
	// Known returns how many units of a check's counter are used, as far as this process heard of it lately from the store;
	// 0 if it did not. What is let through under on_error: allow counts on from there. Nil: nothing is known.
	Known func(c *core.Check) (used int64)
	// Now is the time; nil means time.Now.
	Now func() time.Time
	// Failed is told of each failure that Local stands in for, from many goroutines; nil: nobody is.
	Failed func(err error)
}

// Store is a [core.Store] and [core.Batcher] over another. Make one with [New]; it is safe for concurrent use.
type Store struct {
	inner   core.Store
	batcher core.Batcher // inner, if it is one
	options Options
	pool    sync.Pool // of *stand
	ready   atomic.Bool
	owed    owed
	locks   [owedShards]sync.Mutex // of counters whose use in memory is brought up to what is known
}

var _ core.Batcher = (*Store)(nil)

// stand is a call to the local store.
type stand struct {
	checks  []core.Check
	results []core.Result
	text    []byte        // keys
	parts   []int         // the checks of shards, which those behind the caller's are for
	one     [1]core.Check // of a call about one counter
	result  [1]core.Result
}

// New returns a store over inner. Its caller closes both stores.
func New(inner core.Store, o Options) *Store {
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Store{inner: inner, options: o}
	s.owed.seed = maphash.MakeSeed()
	for i := range s.owed.shards {
		s.owed.shards[i].told.L = &s.owed.shards[i].mu
	}
	s.batcher, _ = inner.(core.Batcher)
	s.pool.New = func() any { return new(stand) }
	return s
}

// Take answers the checks as [core.Store] says, or stands in for the store.
func (s *Store) Take(ctx context.Context, checks []core.Check, results []core.Result) error {
	s.prepare(checks)
	if s.owed.count.Load() == 0 {
		return s.or(nil, s.inner.Take(ctx, checks, results), checks, results)
	}
	t := s.pool.Get().(*stand)
	defer s.pool.Put(t)
	err := s.settle(ctx, t, checks)
	if err == nil {
		err = s.inner.Take(ctx, checks, results)
	}
	return s.or(t, err, checks, results)
}

// prepare has made ready what a call of these checks may need.
func (s *Store) prepare(checks []core.Check) {
	if s.options.Prepare == nil || s.ready.Load() {
		return
	}
	for i := range checks {
		if checks[i].OnError == core.OnErrorLocal && s.ready.CompareAndSwap(false, true) {
			s.options.Prepare()
			return
		}
	}
}

// TakeAll implements [core.Batcher].
func (s *Store) TakeAll(ctx context.Context, calls []core.Call) {
	for i := range calls {
		s.prepare(calls[i].Checks)
	}
	if s.owed.count.Load() > 0 {
		s.settleAll(ctx, calls)
	}
	if s.batcher == nil {
		for i := range calls {
			calls[i].Err = s.inner.Take(ctx, calls[i].Checks, calls[i].Results)
		}
	} else {
		s.batcher.TakeAll(ctx, calls)
	}
	for i := range calls {
		calls[i].Err = s.or(nil, calls[i].Err, calls[i].Checks, calls[i].Results)
	}
}

// settleAll tells the store what is owed of the counters of all calls, until it does not answer.
func (s *Store) settleAll(ctx context.Context, calls []core.Call) {
	t := s.pool.Get().(*stand)
	defer s.pool.Put(t)
	for i := range calls {
		if s.settle(ctx, t, calls[i].Checks) != nil {
			return
		}
	}
}

// or returns the store's error, or answers in its place, with t if it is not nil.
func (s *Store) or(t *stand, err error, checks []core.Check, results []core.Result) error {
	if err == nil || !standsIn(err, checks) {
		return err
	}
	if t == nil {
		t = s.pool.Get().(*stand)
		defer s.pool.Put(t)
	}
	s.catchUp(t, checks)
	if t.take(s.options.Local, checks, results, s.nodes()) != nil {
		return err // a call that memory cannot answer either is the store's failure
	}
	s.owe(t, checks, results)
	if s.options.Failed != nil {
		s.options.Failed(err)
	}
	return nil
}

// standsIn reports whether a failed call is one to stand in for: a rule limits what this process lets
// through without the store, and no rule is stricter. A give-back or a record is of a charge that the
// store made, or did not make, and of no other.
func standsIn(err error, checks []core.Check) bool {
	if !errors.Is(err, core.ErrUnavailable) {
		return false
	}
	stands := false
	for i := range checks {
		switch c := &checks[i]; {
		case c.Op != core.OpTake && c.Op != core.OpUpTo || c.OnError == core.OnErrorDeny:
			return false
		case c.OnError == core.OnErrorLocal || counts(c):
			stands = true
		}
	}
	return stands
}

// counts reports whether a check of a limit is counted in this process while the store is away.
func counts(c *core.Check) bool {
	return c.Limit != nil && (c.OnError == core.OnErrorLocal || c.OnError == core.OnErrorAllow)
}

// share returns of how many equal parts of a limit this process lets one through: of one part, the whole
// limit, under on_error: allow.
func share(c *core.Check, nodes int64) int64 {
	if c.OnError == core.OnErrorLocal {
		return nodes
	}
	return 1
}

// catchUp brings the use of counters in memory up to what is known of them, so that a client is not let
// through again for what the store has counted already.
func (s *Store) catchUp(t *stand, checks []core.Check) {
	if s.options.Known == nil {
		return
	}
	for i := range checks {
		c := &checks[i]
		if !counts(c) || c.OnError != core.OnErrorAllow || c.Whole != nil {
			continue
		}
		if used := s.options.Known(c); used > 0 {
			s.catchUpOne(t, c, used)
		}
	}
}

// catchUpOne brings the use of one counter in memory up to so many units.
func (s *Store) catchUpOne(t *stand, c *core.Check, used int64) {
	lock := &s.locks[maphash.Bytes(s.owed.seed, c.Key)%owedShards]
	lock.Lock()
	defer lock.Unlock()
	defer func() { t.one[0] = core.Check{} }() // its key is the caller's
	t.one[0] = core.Check{Key: c.Key, ScopeLen: c.ScopeLen, Limit: c.Limit, Bounds: c.Bounds, Op: core.OpLook}
	if s.options.Local.Take(context.Background(), t.one[:], t.result[:]) != nil {
		return
	}
	if missing := used - (c.Limit.Capacity() - t.result[0].Remaining); missing > 0 {
		t.one[0].Op, t.one[0].Cost = core.OpForce, missing
		_ = s.options.Local.Take(context.Background(), t.one[:], t.result[:]) // the request itself is told of an error
	}
}

// owe notes what a request was let through for, so that the store is told when it is back.
func (s *Store) owe(t *stand, checks []core.Check, results []core.Result) {
	for i := range results {
		if results[i].Refused && !checks[i].Shadow {
			return
		}
	}
	now := s.options.Now()
	for i := range checks {
		c := &checks[i]
		if !counts(c) || results[i].Refused {
			continue
		}
		units, span := c.Cost, t.results[i].Reset
		if c.Op == core.OpUpTo {
			units = c.Min
			if c.Max == 0 {
				continue
			}
		}
		if c.Limit.Algorithm() == core.SlidingLog {
			span = c.Limit.Window()
		}
		if units > 0 {
			s.owed.add(c.Key, units, now, now.Add(time.Duration(span)*time.Microsecond))
		}
	}
}

func (s *Store) nodes() int64 {
	if s.options.Nodes == nil {
		return 1
	}
	return int64(min(max(1, s.options.Nodes()), NodesMax))
}

// take asks the local store for this node's share.
func (t *stand) take(local core.Store, checks []core.Check, results []core.Result, nodes int64) error {
	t.checks, t.results, t.text = append(t.checks[:0], checks...), append(t.results[:0], results...), t.text[:0]
	t.parts = t.parts[:0]
	for i := range checks {
		c := &t.checks[i]
		if c.Op == core.OpUpTo { // nothing is taken in advance of a share
			c.Op, c.Cost, c.Age = core.OpTake, c.Min, 0
			if c.Max == 0 { // it asks whether there is as much, and takes nothing
				c.Op = core.OpLook
			}
		}
		switch {
		case counts(c):
			if c.Guard != 0 && (c.OnError != core.OnErrorLocal || checks[c.Guard-1].OnError != core.OnErrorLocal) {
				c.Guard = 0 // the client's penalty is not counted here
			}
			n := share(c, nodes)
			if c.Whole != nil {
				t.divide(i, n)
				c = &t.checks[i]
			}
			c.Cost = shareOf(c, n)
		case c.Limit != nil || c.OnError != core.OnErrorLocal:
			c.Op, c.Guard = core.OpLook, 0 // refuses nothing
		}
	}
	err := local.Take(context.Background(), t.checks, t.results)
	clear(t.checks) // their keys are the caller's
	if err != nil {
		return err
	}
	for i := range results {
		c, r := &checks[i], &t.results[i]
		results[i] = core.Result{At: r.At, Local: true}
		if counts(c) || c.Penalty != nil && c.OnError == core.OnErrorLocal {
			results[i].Refused, results[i].Wait, results[i].Violations = r.Refused, r.Wait, r.Violations
		}
	}
	for i, of := range t.parts {
		if r := &t.results[len(results)+i]; r.Refused {
			results[of].Refused, results[of].Wait = true, max(results[of].Wait, r.Wait)
		}
	}
	return nil
}

// divide has a check of one of several shards count in its shard and in the whole limit. The node's share is of the whole, as
// by shards who has a share below their number would let a request through in each; but where only some of the servers are
// away, the store still counts the other shards, and it is their part that is not ours to give.
func (t *stand) divide(i int, nodes int64) {
	c := &t.checks[i]
	part, start := *c, len(t.text)
	part.Cost, part.Whole = shareOf(&part, nodes), nil
	t.text = core.AppendWholeKey(t.text, c.Key)
	c.Key, c.Limit = t.text[start:len(t.text):len(t.text)], c.Whole
	if len(t.checks) < core.ChecksMax {
		t.checks, t.results, t.parts = append(t.checks, part), append(t.results, core.Result{}), append(t.parts, i)
	}
}

// shareOf returns what a check charges here. A node's share is 1/n of the limit if all it charges counts n times; but a request
// that would fit into the whole limit alone fits into the share.
func shareOf(c *core.Check, nodes int64) int64 {
	if capacity := c.Limit.Capacity(); c.Cost <= capacity {
		return min(c.Cost*nodes, capacity)
	}
	return c.Cost
}
