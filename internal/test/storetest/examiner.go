// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"fmt"
	"math/big"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	corecounter "github.com/penstock/penstock/core/counter"
)

// start is the instant at which the exam's stories begin, noon of 15 November 2023. Windows of a
// minute, of an hour and of many other lengths begin at this instant. It is far from 0, because a
// State with instant 0 is no counter.
const start corecounter.Micros = 1_700_049_600 * corecounter.Second

// examiner sends checks to the store under exam, and sets the store's clock.
type examiner struct {
	testing.TB
	Subject
	now      corecounter.Micros
	patience time.Duration
}

func newExaminer(t testing.TB, s Subject) *examiner {
	e := &examiner{TB: t, Subject: s, patience: patience}
	e.at(start)
	return e
}

// examiner.at moves the store's clock to an instant.
func (e *examiner) at(now corecounter.Micros) {
	e.now = now
	e.Pin(now)
}

// setClock moves the store's clock to a span after the start of the story.
func (e *examiner) setClock(span corecounter.Micros) { e.at(start + span) }

// examiner.take sends checks to the store and returns the results. An error fails the test.
func (e *examiner) take(checks ...corecounter.Check) []corecounter.Result {
	e.Helper()
	results := make([]corecounter.Result, len(checks))
	if err := e.Store.Take(context.Background(), checks, results); err != nil {
		e.Fatalf("Take: %v", err)
	}
	return results
}

// takeOne sends one check.
func (e *examiner) takeOne(c corecounter.Check) corecounter.Result {
	e.Helper()
	return e.take(c)[0]
}

// mustAdmit sends one check and fails the test if it is denied.
func (e *examiner) mustAdmit(c corecounter.Check) corecounter.Result {
	e.Helper()
	r := e.takeOne(c)
	if r.Denied {
		e.Fatalf("%s: denied, want admitted; the answer is %+v", name(&c), r)
	}
	return r
}

// mustDeny sends one check and fails the test if it is admitted or charged.
func (e *examiner) mustDeny(c corecounter.Check) corecounter.Result {
	e.Helper()
	r := e.takeOne(c)
	if !r.Denied || r.Granted != 0 || r.Receipt != 0 {
		e.Fatalf("%s: want denied with nothing granted; the answer is %+v", name(&c), r)
	}
	return r
}

// examiner.left fails the test unless a look at the counter reports the given number of remaining
// units.
func (e *examiner) left(key string, l corecounter.Limit, want int64) {
	e.Helper()
	if r := e.takeOne(look(key, l, 0)); r.Remaining != want {
		e.Fatalf("%q has %d units left at %s, want %d", key, r.Remaining, clockTime(e.now), want)
	}
}

// examiner.equal fails the test unless a number in an answer equals the promised one.
func (e *examiner) equal(what string, got, want int64) {
	e.Helper()
	if got != want {
		e.Fatalf("%s is %d, want %d (at %s)", what, got, want, clockTime(e.now))
	}
}

func name(c *corecounter.Check) string {
	return fmt.Sprintf("op %d cost %d on %q", c.Op, c.Cost, c.Key)
}

func clockTime(at corecounter.Micros) string {
	us := int64(at % corecounter.Day)
	return fmt.Sprintf("%02d:%02d:%02d.%06d", us/3_600_000_000, us/60_000_000%60, us/1_000_000%60, us%1_000_000)
}

func limit(a corecounter.Algorithm, count int64, window corecounter.Micros) corecounter.Limit {
	return burst(a, count, window, 0)
}

func burst(a corecounter.Algorithm, count int64, window corecounter.Micros, capacity int64) corecounter.Limit {
	l, err := corecounter.NewLimit(a, count, window, capacity)
	if err != nil {
		panic(err) // a mistake in the exam itself
	}
	return l
}

func check(op corecounter.Op, key string, l corecounter.Limit, cost int64) corecounter.Check {
	return corecounter.Check{Key: []byte(key), Limit: &l, Op: op, Cost: cost}
}

func take(key string, l corecounter.Limit, cost int64) corecounter.Check {
	return check(corecounter.OpTake, key, l, cost)
}
func look(key string, l corecounter.Limit, cost int64) corecounter.Check {
	return check(corecounter.OpLook, key, l, cost)
}
func force(key string, l corecounter.Limit, cost int64) corecounter.Check {
	return check(corecounter.OpForce, key, l, cost)
}

func refund(key string, l corecounter.Limit, cost int64, receipt corecounter.Micros) corecounter.Check {
	c := check(corecounter.OpRefund, key, l, cost)
	c.Receipt = receipt
	return c
}

func shadow(c corecounter.Check) corecounter.Check {
	c.Shadow = true
	return c
}

// penaltyCheck returns a check of a penalty, with the given operation.
func penaltyCheck(op corecounter.Op, key string, p *corecounter.Penalty) corecounter.Check {
	return corecounter.Check{Key: []byte(key), Op: op, Penalty: p}
}

// withGuard returns the check, changed so that its denial is a violation with the given ID. The
// penalty that records the violation is that of the check with the number guard. The first check of
// the call has the number 1.
func withGuard(c corecounter.Check, guard int, violation int64) corecounter.Check {
	c.Guard, c.Violation = guard, violation
	return c
}

// reset returns a check that resets a counter.
func reset(key string, l corecounter.Limit) corecounter.Check {
	return check(corecounter.OpReset, key, l, 0)
}

var algorithms = []corecounter.Algorithm{corecounter.FixedWindow, corecounter.SlidingWindow, corecounter.SlidingLog, corecounter.TokenBucket}

// checkUnchanged fails the test if the stored state of a counter differs from the given one.
func (e *examiner) checkUnchanged(key string, l *corecounter.Limit, state corecounter.State, marks []corecounter.Mark) {
	e.Helper()
	c := look(key, *l, 0)
	want, got := keptSlot(c, corecounter.Slot{State: state, Marks: marks}, e.now), keptSlot(c, e.holds(e, &c), e.now)
	if diff := cmp.Diff(want, got, slotsByContent); diff != "" {
		e.Fatalf("%q at %s: the counter (-want +got):\n%s", key, clockTime(e.now), diff)
	}
}

func fraction(a, b int64) *big.Rat { return new(big.Rat).SetFrac64(a, max(1, b)) }
