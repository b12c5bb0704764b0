// SPDX-License-Identifier: Apache-2.0

package regionstore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/region/standing"
	"github.com/penstock/penstock/internal/survive"
)

// standingEvery is how often the state of the regions is read.
const standingEvery = time.Second

// standings is what a process knows of the state of the regions.
type standings struct {
	started atomic.Bool                    // whether the state was read once
	own     atomic.Pointer[standing.Entry] // of this region; nil if it was never written off

	mu     sync.Mutex
	state  standing.State
	failed bool // a failure was logged

	// While the first reading fails, calls that wait for one another fail together.
	firstErr error
	firstAt  time.Time
}

// firstAgain is how long a failure of the first reading counts for further calls.
const firstAgain = 100 * time.Millisecond

// The method standing returns the entry of this region, or nil if the checks may use the region's
// parts of limits. The first call reads the state.
func (s *Store) standing(ctx context.Context, checks []counter.Check) (*standing.Entry, error) {
	if s.agency.Standing == nil {
		return nil, nil
	}
	for i := range checks {
		if checks[i].WholeLimit == nil {
			continue
		}
		if !s.standings.started.Load() {
			if err := s.startStanding(ctx); err != nil {
				return nil, err
			}
		}
		if e := s.standings.own.Load(); e != nil && (e.Forgotten() || !longAgo(e, checks[i].Limit)) {
			return e, nil
		}
	}
	return nil, nil
}

// longAgo reports whether a region was taken back so long ago that no window of a limit counts what
// was used before, whatever the difference between the clocks of this machine and of Redis.
func longAgo(e *standing.Entry, l *counter.Limit) bool {
	return counter.Micros(time.Now().UnixMicro())-e.Since > 3*l.Window()+counter.Day
}

// The method startStanding reads the state for the first time, and then follows it.
func (s *Store) startStanding(ctx context.Context) error {
	s.standings.mu.Lock()
	defer s.standings.mu.Unlock()
	if s.standings.started.Load() {
		return nil
	}
	if k := &s.standings; k.firstErr != nil && time.Since(k.firstAt) < firstAgain {
		return k.firstErr
	}
	if err := s.readStanding(ctx); err != nil {
		s.standings.firstErr, s.standings.firstAt = err, time.Now()
		return err
	}
	s.standings.started.Store(true)
	survive.Go(&s.running, s.logger, func() {
		tick := time.NewTicker(standingEvery)
		defer tick.Stop()
		for {
			select {
			case <-s.ctx.Done():
				return
			case <-tick.C:
			}
			reading, end := context.WithTimeout(s.ctx, sendTime)
			s.standings.mu.Lock()
			_ = s.readStanding(reading) // the last state remains; calls of the store report that Redis is away
			s.standings.mu.Unlock()
			end()
		}
	})
	return nil
}

// The method readStanding reads the state. The last good one remains if the value is damaged. The
// caller holds the lock.
func (s *Store) readStanding(ctx context.Context) error {
	value, err := s.agency.Standing(ctx)
	if err != nil {
		return err
	}
	k := &s.standings
	read, err := standing.Parse(value)
	switch {
	case err != nil && !k.failed:
		k.failed = true
		s.logger.Error("the state of the regions cannot be read, so the last one remains in force: delete the key, and the region's agent writes it anew",
			"key", standing.Key, "error", err)
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
			s.logStanding(e)
		}
	}
	return nil
}

func (s *Store) logStanding(e standing.Entry) {
	if e.Forgotten() {
		s.logger.Error("this region was written off: requests under limits that regions lend each other are denied until penstock regions restore",
			"region", s.standings.state.Here, "steward", e.Steward)
		return
	}
	s.logger.Warn("this region was taken back: it uses its parts of limits in windows that begin later", "region", s.standings.state.Here,
		"since", time.UnixMicro(int64(e.Since)).UTC())
}

// A shutCall is a call whose checks were changed, and those that were.
type shutCall struct {
	index int
	shut  []int
}

// The method takeShut answers calls in a region that was written off. Requests whose limits are
// shut are denied.
func (s *Store) takeShut(ctx context.Context, e *standing.Entry, calls []counter.Call) {
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
		s.inner.TakeAll(ctx, looks) // for the reading of the store's clock
	}
	for i := range asked {
		shut := shutCalls[i].shut[:0]
		for n, j := range shutCalls[i].shut {
			c, look := &asked[i].Checks[j], &looks[shutCalls[i].index+n]
			if look.Err != nil {
				asked[i].Err = look.Err
			}
			if e.Forgotten() || look.Err != nil || e.Shuts(c.Limit, c.Bounds, look.Results[0].At) {
				c.Op, c.Cost, c.Min, c.Max, c.ShareMille, c.Age = counter.OpTake, c.Limit.Capacity()+1, 0, 0, 0, 0 // that can never pass
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
