// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corecounter "github.com/penstock/penstock/core/counter"
)

// patience is how long the exam waits for an answer that should be immediate.
const patience = 10 * time.Second

// checkReturns fails the test unless do() returns in time.
func (e *examiner) checkReturns(what string, do func()) {
	e.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(e.patience):
		e.Fatalf("%s: no answer within %s", what, e.patience)
	}
}

func askDoneContext(e *examiner) {
	l := limit(corecounter.FixedWindow, 10, corecounter.Minute)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	expired, release := context.WithDeadline(context.Background(), time.Unix(1, 0))
	defer release()
	for _, ctx := range []context.Context{ctx, expired} {
		var err error
		e.checkReturns("a context that is done", func() {
			err = e.Store.Take(ctx, []corecounter.Check{take("k", l, 1)}, make([]corecounter.Result, 1))
		})
		if err == nil || errors.Is(err, corecounter.ErrInvalid) {
			e.Fatalf("a context that is done: the error is %v, want one that says so", err)
		}
	}
	e.left("k", l, 10)
}

func askBinaryKeys(e *examiner) {
	l := limit(corecounter.FixedWindow, 100, corecounter.Minute)
	long := strings.Repeat("k", 1023)
	keys := []string{"k", "k\x00", "k\x00a", "k\x00b", "\x00", "\xff", "\xfe", "\xff\xfe", "é", "e\u0301", "K", "k ", " k",
		"k\r\n", "k\n", "*1\r\n$4\r\nPING\r\n", "{k}", "%s", "'\"\\", long + "a", long + "b", long}
	for i, key := range keys {
		e.mustAdmit(take(key, l, int64(i)+1))
	}
	for i, key := range keys {
		e.left(key, l, 100-int64(i)-1)
	}
	for _, a := range algorithms[1:] {
		l := limit(a, 100, corecounter.Minute)
		for i, key := range keys {
			e.mustAdmit(take(a.Label()+key, l, int64(i)+1))
		}
		for i, key := range keys {
			e.left(a.Label()+key, l, 100-int64(i)-1)
		}
	}
}

func askKeyReuse(e *examiner) {
	for _, a := range algorithms {
		l := limit(a, 10, corecounter.Minute)
		c := take("first "+a.Label(), l, 4)
		for _, key := range []string{"first ", "other ", "third "} {
			copy(c.Key, key)
			e.mustAdmit(c)
			copy(c.Key, "------")
		}
		for _, key := range []string{"first ", "other ", "third "} {
			e.left(key+a.Label(), l, 6)
		}
		e.left("------"+a.Label(), l, 10)
	}
}

func askDirtyResults(e *examiner) {
	for _, a := range algorithms {
		key, l := a.Label(), limit(a, 2, corecounter.Minute)
		for _, c := range []corecounter.Check{take(key, l, 1), look(key, l, 1), take(key, l, 2), take(key, l, 0),
			refund(key, l, 1, 12345), upTo(key, l, 2, 2, 2, 0)} {
			dirty := []corecounter.Result{{At: 1, Granted: 2, Remaining: 3, Denied: true, Wait: 4, Reset: 5, Next: 6, Receipt: 7,
				LeasedIn: 8, Overflow: true, Violations: 9}}
			clean := e.takeOne(look(key, l, c.Cost))
			if err := e.Store.Take(context.Background(), []corecounter.Check{c}, dirty); err != nil {
				e.Fatalf("Take: %v", err)
			}
			r, granted := dirty[0], dirty[0].Granted
			if r.At != e.now || r.LeasedIn != 0 || r.Overflow || r.Violations != 0 || (r.Receipt != 0) != (granted > 0 && c.Op != corecounter.OpRefund) ||
				r.Remaining != clean.Remaining-granted || c.Op == corecounter.OpTake && (r.Denied != clean.Denied || r.Wait != clean.Wait) {
				e.Fatalf("%s: %+v: something is left of what the results held before", name(&c), r)
			}
		}
	}
}

// The number of goroutines, and of the calls that each of them makes. These suffice to find a store
// that does not hold its lock between reading and writing.
const (
	hammerers   = 8
	hammerCalls = 50
)

// examiner.hammer makes the calls of all goroutines at the same time. An error fails the test.
func (e *examiner) hammer(call func(goroutine, i int) ([]corecounter.Check, func([]corecounter.Result))) {
	e.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), e.patience)
	defer cancel()
	var failure atomic.Pointer[error]
	e.checkReturns("calls of several goroutines", func() {
		var all sync.WaitGroup
		for g := range hammerers {
			all.Go(func() {
				for i := range hammerCalls {
					checks, answer := call(g, i)
					results := make([]corecounter.Result, len(checks))
					if err := e.Store.Take(ctx, checks, results); err != nil {
						failure.CompareAndSwap(nil, &err)
						return
					}
					answer(results)
				}
			})
		}
		all.Wait()
	})
	if err := failure.Load(); err != nil {
		e.Fatalf("Take: %v", *err)
	}
}

func askHammer(e *examiner) {
	for _, a := range algorithms {
		l := limit(a, 100, corecounter.Hour)
		var admitted atomic.Int64
		e.hammer(func(int, int) ([]corecounter.Check, func([]corecounter.Result)) {
			return []corecounter.Check{take(a.Label(), l, 1)}, func(r []corecounter.Result) { admitted.Add(r[0].Granted) }
		})
		e.equal(a.String()+": admitted of 400 calls under a limit of 100", admitted.Load(), 100)
		e.left(a.Label(), l, 0)
	}
}

func askOverlap(e *examiner) {
	const counters = 5
	var admitted [counters]atomic.Int64
	limits := make([]corecounter.Limit, counters)
	for i := range limits {
		limits[i] = limit(algorithms[i%len(algorithms)], int64(40+10*i), corecounter.Hour)
	}
	e.hammer(func(g, i int) ([]corecounter.Check, func([]corecounter.Result)) {
		var checks []corecounter.Check
		var which []int
		for k := range 3 { // three adjacent keys of a cycle, forwards or backwards
			n := (g + i + k) % counters
			if (g+i)%2 == 1 {
				n = (g + i + 2 - k) % counters
			}
			which = append(which, n)
			checks = append(checks, take(fmt.Sprint("ring ", n), limits[n], 1))
		}
		return checks, func(results []corecounter.Result) {
			for k, r := range results {
				admitted[which[k]].Add(r.Granted)
			}
		}
	})
	full := false
	for n := range counters {
		got, count := admitted[n].Load(), limits[n].Count()
		if got > count {
			e.Fatalf("counter %d admitted %d, its limit is %d", n, got, count)
		}
		full = full || got == count
		e.left(fmt.Sprint("ring ", n), limits[n], count-got)
	}
	if !full {
		e.Fatalf("400 calls filled no counter: something was denied for nothing")
	}
}
