// SPDX-License-Identifier: Apache-2.0

package regionstore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/region/writeoff"
	"github.com/penstock/penstock/internal/survive"
)

// writeoffEvery is how often the state of the regions is read.
const writeoffEvery = time.Second

// writeoffs is what a process knows of the state of the regions.
type writeoffs struct {
	started atomic.Bool                    // whether the state was ever read
	own     atomic.Pointer[writeoff.Entry] // the entry of this region; nil if it was never written off

	mu     sync.Mutex
	state  writeoff.State
	failed bool // a failure was logged

	// The error of the first reading of the state, and when it occurred. Calls in the time
	// firstAgain after it fail with the same error.
	firstErr error
	firstAt  time.Time
}

// firstAgain is how long a failure of the first reading counts for further calls.
const firstAgain = 100 * time.Millisecond

// Store.writeoff returns the entry of this region, or nil if the checks may use the region's parts
// of limits. The first call reads the state.
func (s *Store) writeoff(ctx context.Context, checks []counter.Check) (*writeoff.Entry, error) {
	if s.agency.Writeoffs == nil {
		return nil, nil
	}
	for i := range checks {
		if checks[i].WholeLimit == nil {
			continue
		}
		if !s.writeoffs.started.Load() {
			if err := s.startWriteoff(ctx); err != nil {
				return nil, err
			}
		}
		if e := s.writeoffs.own.Load(); e != nil && (e.Forgotten() || !longAgo(e, checks[i].Limit)) {
			return e, nil
		}
	}
	return nil, nil
}

// longAgo reports whether a region was taken back so long ago that no window of a limit counts
// units that were used before that. The clocks of this machine and of Redis may differ by a day.
func longAgo(e *writeoff.Entry, l *counter.Limit) bool {
	return counter.Micros(time.Now().UnixMicro())-e.Since > 3*l.Window()+counter.Day
}

// Store.startWriteoff reads the state for the first time, and then follows it.
func (s *Store) startWriteoff(ctx context.Context) error {
	s.writeoffs.mu.Lock()
	defer s.writeoffs.mu.Unlock()
	if s.writeoffs.started.Load() {
		return nil
	}
	if k := &s.writeoffs; k.firstErr != nil && time.Since(k.firstAt) < firstAgain {
		return k.firstErr
	}
	if err := s.readWriteoff(ctx); err != nil {
		s.writeoffs.firstErr, s.writeoffs.firstAt = err, time.Now()
		return err
	}
	s.writeoffs.started.Store(true)
	survive.Go(&s.running, s.logger, func() {
		tick := time.NewTicker(writeoffEvery)
		defer tick.Stop()
		for {
			select {
			case <-s.ctx.Done():
				return
			case <-tick.C:
			}
			reading, end := context.WithTimeout(s.ctx, sendTime)
			s.writeoffs.mu.Lock()
			_ = s.readWriteoff(reading) // the last state remains; calls of the store report that Redis is away
			s.writeoffs.mu.Unlock()
			end()
		}
	})
	return nil
}

// Store.readWriteoff reads the state. If the value is damaged, the last valid state remains. The
// caller holds the lock.
func (s *Store) readWriteoff(ctx context.Context) error {
	value, err := s.agency.Writeoffs(ctx)
	if err != nil {
		return err
	}
	k := &s.writeoffs
	read, err := writeoff.Parse(value)
	switch {
	case err != nil && !k.failed:
		k.failed = true
		s.logger.Error("the state of the regions cannot be read, so the last one remains in force: delete the key, and the region's agent writes it anew",
			"key", writeoff.Key, "error", err)
	case err == nil && k.failed:
		k.failed = false
		s.logger.Info("the state of the regions can be read again")
	}
	if err != nil {
		return nil
	}
	if read.Here != "" {
		k.state.Here = read.Here
	}
	k.state.Merge(read.Entries)
	if e, ok := k.state.Entries[k.state.Here]; ok {
		if before := k.own.Load(); before == nil || *before != e {
			k.own.Store(&e)
			s.logWriteoff(e)
		}
	}
	return nil
}

func (s *Store) logWriteoff(e writeoff.Entry) {
	if e.Forgotten() {
		s.logger.Error("this region was written off: requests under limits that regions lend each other are denied until penstock regions restore",
			"region", s.writeoffs.state.Here, "steward", e.Steward)
		return
	}
	s.logger.Warn("this region was taken back: it uses its parts of limits in windows that begin later", "region", s.writeoffs.state.Here,
		"since", time.UnixMicro(int64(e.Since)).UTC())
}

// A shutCall has the index of a call whose checks were changed, and the indexes of these checks.
type shutCall struct {
	index int
	shut  []int
}

// Store.takeShut answers calls in a region that was written off. Requests whose limits are shut are
// denied.
func (s *Store) takeShut(ctx context.Context, e *writeoff.Entry, calls []counter.Call) {
	looks := make([]counter.Call, 0, len(calls))
	asked := make([]counter.Call, len(calls))
	shutCalls := make([]shutCall, len(calls))
	for i := range calls {
		asked[i] = counter.Call{Checks: append([]counter.Check(nil), calls[i].Checks...), Results: calls[i].Results}
		shutCalls[i].index = len(looks)
		for j := range asked[i].Checks {
			if c := &asked[i].Checks[j]; c.WholeLimit != nil && c.Op <= counter.OpUpTo && c.Cost > 0 {
				shutCalls[i].shut = append(shutCalls[i].shut, j)
				looks = append(looks, counter.Call{Checks: []counter.Check{{Key: c.Key, ScopeLen: c.ScopeLen, Limit: c.Limit, Op: counter.OpLook,
					Bounds: c.Bounds, Source: c.Source}}, Results: make([]counter.Result, 1)})
			}
		}
	}
	if !e.Forgotten() {
		s.inner.TakeAll(ctx, looks) // to read the store's clock
	}
	for i := range asked {
		shut := shutCalls[i].shut[:0]
		for n, j := range shutCalls[i].shut {
			c, look := &asked[i].Checks[j], &looks[shutCalls[i].index+n]
			if look.Err != nil {
				asked[i].Err = look.Err
			}
			if e.Forgotten() || look.Err != nil || e.Shuts(c.Limit, c.Bounds, look.Results[0].At) {
				c.Op, c.Cost, c.Min, c.Max, c.ShareMille, c.Age = counter.OpTake, c.Limit.Capacity()+1, 0, 0, 0, 0 // this never passes
				shut = append(shut, j)
			}
		}
		shutCalls[i].shut = shut
	}
	failed := make([]error, len(asked))
	for i := range asked {
		failed[i] = asked[i].Err
	}
	s.inner.TakeAll(ctx, asked)
	for i := range asked {
		if calls[i].Err = asked[i].Err; failed[i] != nil {
			calls[i].Err = failed[i] // nothing was charged, because the check could not pass
		}
		for _, j := range shutCalls[i].shut {
			if r := &calls[i].Results[j]; calls[i].Err == nil {
				r.Remaining, r.Wait, r.LeasedIn = 0, counter.Never, loanTime
			}
		}
	}
}
