// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"fmt"
	"math/big"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core"
)

// start is when the exam's stories begin: noon of 15 November 2023, the start of a window of a minute, an hour and many
// more. It is never near 0, which as a State's instant means that there is no counter.
const start core.Micros = 1_700_049_600 * core.Second

// examiner asks a store questions at an instant.
type examiner struct {
	testing.TB
	Subject
	now      core.Micros
	patience time.Duration
}

func newExaminer(t testing.TB, s Subject) *examiner {
	e := &examiner{TB: t, Subject: s, patience: patience}
	e.at(start)
	return e
}

// at moves the store's clock to an instant.
func (e *examiner) at(now core.Micros) {
	e.now = now
	e.Pin(now)
}

// after moves the store's clock to a span after the start of the story.
func (e *examiner) after(span core.Micros) { e.at(start + span) }

// take asks the store and fails the test if it does not answer.
func (e *examiner) take(checks ...core.Check) []core.Result {
	e.Helper()
	results := make([]core.Result, len(checks))
	if err := e.Store.Take(context.Background(), checks, results); err != nil {
		e.Fatalf("Take: %v", err)
	}
	return results
}

// one asks one check.
func (e *examiner) one(c core.Check) core.Result {
	e.Helper()
	return e.take(c)[0]
}

// admitted asks one check and fails the test if it is refused.
func (e *examiner) admitted(c core.Check) core.Result {
	e.Helper()
	r := e.one(c)
	if r.Refused {
		e.Fatalf("%s: refused, want admitted; the answer is %+v", name(&c), r)
	}
	return r
}

// refused asks one check and fails the test if it is admitted or charged.
func (e *examiner) refused(c core.Check) core.Result {
	e.Helper()
	r := e.one(c)
	if !r.Refused || r.Granted != 0 || r.Receipt != 0 {
		e.Fatalf("%s: want refused with nothing granted; the answer is %+v", name(&c), r)
	}
	return r
}

// left fails the test if looking at a counter does not show the units that remain.
func (e *examiner) left(key string, l core.Limit, want int64) {
	e.Helper()
	if r := e.one(look(key, l, 0)); r.Remaining != want {
		e.Fatalf("%q has %d units left at %s, want %d", key, r.Remaining, clockTime(e.now), want)
	}
}

// equal fails the test if a number of an answer is not as promised.
func (e *examiner) equal(what string, got, want int64) {
	e.Helper()
	if got != want {
		e.Fatalf("%s is %d, want %d (at %s)", what, got, want, clockTime(e.now))
	}
}

func name(c *core.Check) string { return fmt.Sprintf("op %d cost %d on %q", c.Op, c.Cost, c.Key) }

func clockTime(at core.Micros) string {
	us := int64(at % core.Day)
	return fmt.Sprintf("%02d:%02d:%02d.%06d", us/3_600_000_000, us/60_000_000%60, us/1_000_000%60, us%1_000_000)
}

func limit(a core.Algorithm, count int64, window core.Micros) core.Limit {
	return burst(a, count, window, 0)
}

func burst(a core.Algorithm, count int64, window core.Micros, capacity int64) core.Limit {
	l, err := core.NewLimit(a, count, window, capacity)
	if err != nil {
		panic(err) // a mistake in the exam itself
	}
	return l
}

func check(op core.Op, key string, l core.Limit, cost int64) core.Check {
	return core.Check{Key: []byte(key), Limit: &l, Op: op, Cost: cost}
}

func take(key string, l core.Limit, cost int64) core.Check  { return check(core.OpTake, key, l, cost) }
func look(key string, l core.Limit, cost int64) core.Check  { return check(core.OpLook, key, l, cost) }
func force(key string, l core.Limit, cost int64) core.Check { return check(core.OpForce, key, l, cost) }

func giveBack(key string, l core.Limit, cost int64, receipt core.Micros) core.Check {
	c := check(core.OpGiveBack, key, l, cost)
	c.Receipt = receipt
	return c
}

func shadow(c core.Check) core.Check {
	c.Shadow = true
	return c
}

// penaltyCheck asks about a penalty.
func penaltyCheck(op core.Op, key string, p *core.Penalty) core.Check {
	return core.Check{Key: []byte(key), Op: op, Penalty: p}
}

// guarded makes a refusal by the check a violation, told apart by its number, in the record of another check of the call.
func guarded(c core.Check, guard int, violation int64) core.Check {
	c.Guard, c.Violation = guard, violation
	return c
}

// reset forgets a counter.
func reset(key string, l core.Limit) core.Check { return check(core.OpReset, key, l, 0) }

var algorithms = []core.Algorithm{core.FixedWindow, core.SlidingWindow, core.SlidingLog, core.TokenBucket}

// same fails the test if a counter does not hold what it held, as it stands now.
func (e *examiner) same(key string, l *core.Limit, state core.State, marks []core.Mark) {
	e.Helper()
	c := look(key, *l, 0)
	want, got := kept(c, core.Slot{State: state, Marks: marks}, e.now), kept(c, e.holds(e, &c), e.now)
	if diff := cmp.Diff(want, got, slotsByContent); diff != "" {
		e.Fatalf("%q at %s: the counter (-want +got):\n%s", key, clockTime(e.now), diff)
	}
}

func fraction(a, b int64) *big.Rat { return new(big.Rat).SetFrac64(a, max(1, b)) }
