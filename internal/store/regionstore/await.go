// SPDX-License-Identifier: Apache-2.0

package regionstore

import (
	"context"
	"time"

	"github.com/penstock/penstock/core/counter"
)

// An End is how a request stopped waiting for a loan.
type End string

// The ends of a wait.
const (
	EndNone     End = ""         // the request did not wait
	EndAdmitted End = "admitted" // admitted, or no longer denied for lack of units
	EndDenied   End = "denied"   // the other regions had no units, or did not answer
	EndLate     End = "late"     // Agency.WaitMax or the time of the caller was over
	EndGone     End = "gone"     // the client left; the request is not charged
	EndFailed   End = "failed"   // the store did not answer
)

// ForgetWith sets a function that drops what a layer above remembers about a counter. ForgetWith
// must be called before the first request.
func (s *Store) ForgetWith(forget func(c *counter.Check)) { s.lines.forget = forget }

// Behind reports whether older requests are waiting for a loan to one of the checks' counters.
func (s *Store) Behind(checks []counter.Check) bool { return s.waitsFor(checks, nil, false) != nil }

func (l *lines) behind(checks []counter.Check) *counter.Check {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range checks {
		if c := &checks[i]; lends(c) && l.byKey[string(c.Key)] != nil {
			return c
		}
	}
	return nil
}

// lends reports whether a request may wait for units of a check's counter. A denial that is a
// violation of a penalty is final, because the violation is recorded.
func lends(c *counter.Check) bool {
	return c.WholeLimit != nil && c.Op <= counter.OpUpTo && c.Cost > 0 && !c.Shadow && c.Guard == 0 && c.Cost <= c.Limit.Capacity()
}

// Lacks reports whether the results deny a request only because this region lacks units that other
// regions might lend.
func Lacks(checks []counter.Check, results []counter.Result) bool {
	return lacking(checks, results) != nil
}

func lacking(checks []counter.Check, results []counter.Result) (first *counter.Check) {
	for i := range checks {
		c, r := &checks[i], &results[i]
		switch {
		case !r.Denied || c.Shadow:
		case !lends(c) || r.Local || r.Wait == counter.Never:
			return nil
		case first == nil:
			first = c
		}
	}
	return first
}

// WouldWait reports whether [Store.Await], called now with the same arguments, would make the
// request wait.
func (s *Store) WouldWait(checks []counter.Check, results []counter.Result, taken bool) bool {
	c := s.waitsFor(checks, results, taken)
	return c != nil && s.lines.hasPlace(c)
}

// Store.waitsFor returns the check for whose units a request has to wait, or nil.
func (s *Store) waitsFor(checks []counter.Check, results []counter.Result, taken bool) *counter.Check {
	switch {
	case taken:
		return lacking(checks, results)
	case s.lines.active.Load() == 0:
		return nil
	}
	return s.lines.behind(checks)
}

// Await lets a request wait for loans of the units that its checks lack. The function named take
// calls the store and fills in the results. Await calls this function again when units may have
// arrived. Await waits until the request is admitted, or lacks units that no other region can lend.
// The error of Await is the error of the last call of the function. The argument named taken
// reports whether the caller has already called the function. The caller may omit that call only if
// [Store.Behind] has returned true.
//
// The wait lasts for at most [Agency.WaitMax]. The argument named until can set an earlier end; if
// it is zero, it is ignored. If ctx ends, Await does not call the function.
func (s *Store) Await(ctx context.Context, until time.Time, checks []counter.Check, results []counter.Result, taken bool, take func() error) (End, error) {
	c := s.waitsFor(checks, results, taken)
	if c == nil && !taken {
		return EndNone, take()
	}
	if most := time.Now().Add(s.lines.waitMax); until.IsZero() || most.Before(until) {
		until = most
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	end := EndNone
	for c != nil && time.Now().Before(until) {
		n, w := s.lines.join(c)
		if n == nil {
			break
		}
		var err error
		end, err = s.waitIn(ctx, n, w, timer, c, checks, results, take)
		if taken = true; end != EndAdmitted {
			return end, err
		}
		c = lacking(checks, results) // the request might now lack units of another counter
	}
	if !taken {
		return end, take()
	}
	return end, nil
}

// Store.waitIn waits in a line until the request no longer lacks units of the line's counter, or
// will not get any.
func (s *Store) waitIn(ctx context.Context, n *line, w *waiter, timer *time.Timer, c *counter.Check, checks []counter.Check,
	results []counter.Result, take func() error) (End, error) {
	defer s.lines.leave(n, w)
	for {
		end := EndNone
		select {
		case <-w.wake:
			if s.lines.isLast(w) {
				end = EndDenied
			}
		case <-timer.C:
			end = EndLate
		case <-ctx.Done():
			return EndGone, nil
		}
		switch err := take(); {
		case err != nil:
			return EndFailed, err
		case lacking(checks, results) != c:
			return EndAdmitted, nil
		case end != EndNone:
			if end == EndLate {
				s.lines.late(n)
			}
			return end, nil
		}
		s.lines.again(n, w)
	}
}
