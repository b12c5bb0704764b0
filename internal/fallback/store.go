// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

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
}

var _ core.Batcher = (*Store)(nil)

// stand is a call to the local store.
type stand struct {
	checks  []core.Check
	results []core.Result
}

// New returns a store over inner. Its caller closes both stores.
func New(inner core.Store, o Options) *Store {
	s := &Store{inner: inner, options: o}
	s.batcher, _ = inner.(core.Batcher)
	s.pool.New = func() any { return new(stand) }
	return s
}

// Take answers the checks as [core.Store] says, or stands in for the store.
func (s *Store) Take(ctx context.Context, checks []core.Check, results []core.Result) error {
	s.prepare(checks)
	return s.or(s.inner.Take(ctx, checks, results), checks, results)
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
	if s.batcher == nil {
		for i := range calls {
			calls[i].Err = s.inner.Take(ctx, calls[i].Checks, calls[i].Results)
		}
	} else {
		s.batcher.TakeAll(ctx, calls)
	}
	for i := range calls {
		calls[i].Err = s.or(calls[i].Err, calls[i].Checks, calls[i].Results)
	}
}

// or returns the store's error, or answers in its place.
func (s *Store) or(err error, checks []core.Check, results []core.Result) error {
	if err == nil || !standsIn(err, checks) {
		return err
	}
	t := s.pool.Get().(*stand)
	defer s.pool.Put(t)
	if t.take(s.options.Local, checks, results, s.nodes()) != nil {
		return err // a call that memory cannot answer either is the store's failure
	}
	if s.options.Failed != nil {
		s.options.Failed(err)
	}
	return nil
}

// standsIn reports whether a failed call is one to stand in for: where some rule says so, and none that is stricter. What
// gives back or records tells of a charge that the store made, or did not make, and of no other.
func standsIn(err error, checks []core.Check) bool {
	if !errors.Is(err, core.ErrUnavailable) {
		return false
	}
	local := false
	for i := range checks {
		switch c := &checks[i]; {
		case c.Op != core.OpTake && c.Op != core.OpUpTo || c.OnError == core.OnErrorDeny && !c.Shadow:
			return false
		case c.OnError == core.OnErrorLocal:
			local = true
		}
	}
	return local
}

func (s *Store) nodes() int64 {
	if s.options.Nodes == nil {
		return 1
	}
	return int64(min(max(1, s.options.Nodes()), NodesMax))
}

// take asks the local store for this node's share.
func (t *stand) take(local core.Store, checks []core.Check, results []core.Result, nodes int64) error {
	t.checks, t.results = append(t.checks[:0], checks...), append(t.results[:0], results...)
	for i := range t.checks {
		c := &t.checks[i]
		if c.Op == core.OpUpTo { // nothing is taken in advance of a share
			c.Op, c.Cost, c.Age = core.OpTake, c.Min, 0
		}
		switch {
		case c.OnError != core.OnErrorLocal || c.Shadow:
			c.Op, c.Guard = core.OpLook, 0 // refuses nothing
		case c.Limit != nil:
			// A node's share is 1/n of the limit if all it charges counts n times; but a request that would fit into
			// the whole limit alone fits into the share.
			if capacity := c.Limit.Capacity(); c.Cost <= capacity {
				c.Cost = min(c.Cost*nodes, capacity)
			}
			if c.Guard != 0 && checks[c.Guard-1].OnError != core.OnErrorLocal {
				c.Guard = 0 // nobody's penalty is counted here
			}
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
		if c.OnError == core.OnErrorLocal && !c.Shadow {
			results[i].Refused, results[i].Wait, results[i].Violations = r.Refused, r.Wait, r.Violations
		}
	}
	return nil
}
