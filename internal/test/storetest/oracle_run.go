// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"testing"

	corecounter "github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/racescale"
	"github.com/penstock/penstock/internal/test/seed"
)

// OracleSteps is the number of calls that [Run] checks with the oracle.
const OracleSteps = 1_000

// RunOracle sends random calls to a store, and compares each answer with one that it computes from
// the whole history of the counters. The number of calls is racescale.Fewer(steps).
func RunOracle(t *testing.T, open func(t testing.TB) Subject, steps int) {
	foretell(newExaminer(t, open(t)), seed.First(t), racescale.Fewer(steps))
}

func foretell(e *examiner, seed uint64, steps int) {
	tr, o := newTraffic(seed), newOracle()
	tr.honest = true
	for step := range steps {
		checks := tr.next()
		e.at(tr.now)
		results := e.take(checks...)
		before := map[string][]event{}
		for i := range checks {
			key := string(checks[i].Key)
			before[key] = append([]event(nil), o.history[key]...)
			o.calendars[key] = tr.find(checks[i].Key).calendar
		}
		penalized := o.penalized(tr.now, checks)
		granted, refused, admitted := o.granted(tr.now, checks)
		for i := range checks {
			if checks[i].Penalty != nil {
				continue
			}
			what := o.differs(&checks[i], &results[i], granted[i], refused[i], before[string(checks[i].Key)])
			if what != "" {
				e.Fatalf("step %d at %d, check %d of\n%s: the oracle wants another %s: granted %d refused %t remaining %d\nanswer %+v",
					step, tr.now, i+1, describe(checks), what, granted[i], refused[i],
					o.room(string(checks[i].Key), checks[i].Limit, tr.now), results[i])
			}
		}
		for i := range checks {
			if checks[i].Penalty == nil {
				continue
			}
			if want := o.punished(tr.now, checks, results, i, admitted, penalized); results[i] != want {
				e.Fatalf("step %d at %d, check %d of\n%s: the oracle wants another penalty: %+v\nanswer %+v", step, tr.now, i+1,
					describe(checks), want, results[i])
			}
		}
		tr.learn(checks, results)
	}
}

// oracle.differs returns the name of a number in the answer that does not follow from the history,
// or "" if there is none. The argument named before is the history of the counter before the call.
func (o *oracle) differs(c *corecounter.Check, r *corecounter.Result, granted int64, refused bool, before []event) string {
	l, key := c.Limit, string(c.Key)
	was := &oracle{history: map[string][]event{key: before}, calendars: o.calendars}
	room := o.room(key, l, r.At)
	switch {
	case r.Granted != granted:
		return "granted"
	case r.Denied != refused:
		return "refused"
	case r.Remaining != max(0, room):
		return "remaining"
	case r.LeasedIn != max(0, leasedUntil(o.history[key])-r.At):
		return "lease"
	case r.Receipt != o.receiptOf(c, r):
		return "receipt"
	case !was.waitIsTrue(c, r):
		return "wait"
	case !o.resetIsTrue(c, r):
		return "reset"
	case l.Algorithm() != corecounter.TokenBucket && r.Next != r.Reset,
		l.Algorithm() == corecounter.TokenBucket && room < l.Capacity() && !o.passesFirst(c, r.At, r.Next, max(0, room)+1),
		l.Algorithm() == corecounter.TokenBucket && room >= l.Capacity() && r.Next != 0:
		return "next"
	}
	return ""
}

func (o *oracle) receiptOf(c *corecounter.Check, r *corecounter.Result) corecounter.Micros {
	switch {
	case r.Granted == 0 || c.Op == corecounter.OpRefund || c.Op == corecounter.OpReset:
		return 0
	case c.Limit.Algorithm() == corecounter.FixedWindow || c.Limit.Algorithm() == corecounter.SlidingWindow:
		from, _ := o.period(string(c.Key), c.Limit, r.At)
		return from
	default:
		return r.At
	}
}

// waitIsTrue reports whether the cost can be admitted at the end of the wait and not earlier. The
// oracle must have the history before the call.
func (o *oracle) waitIsTrue(c *corecounter.Check, r *corecounter.Result) bool {
	need := max(1, c.Cost)
	switch c.Op {
	case corecounter.OpRefund, corecounter.OpForce, corecounter.OpReset:
		return r.Wait == 0
	case corecounter.OpUpTo:
		need = c.Min
	}
	if need > c.Limit.Capacity() {
		return r.Wait == corecounter.Never
	}
	return o.passesFirst(c, r.At, r.Wait, need)
}

// passesFirst reports whether the needed units are available at the end of the span, but not a
// microsecond before.
func (o *oracle) passesFirst(c *corecounter.Check, at, span corecounter.Micros, need int64) bool {
	key := string(c.Key)
	return o.room(key, c.Limit, at+span) >= need && (span == 0 || o.room(key, c.Limit, at+span-1) < need)
}

func (o *oracle) resetIsTrue(c *corecounter.Check, r *corecounter.Result) bool {
	l, events := c.Limit, o.history[string(c.Key)]
	switch l.Algorithm() {
	case corecounter.TokenBucket:
		return missingTokens(events, l, r.At+r.Reset).Sign() == 0 && (r.Reset == 0 || missingTokens(events, l, r.At+r.Reset-1).Sign() > 0)
	case corecounter.SlidingLog:
		for _, e := range events {
			if e.units > 0 && e.at > r.At-l.Window() {
				return r.Reset == e.at+l.Window()-r.At
			}
		}
		return r.Reset == 0
	default:
		_, until := o.period(string(c.Key), l, r.At)
		return r.Reset == until-r.At
	}
}
