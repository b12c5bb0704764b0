// SPDX-License-Identifier: Apache-2.0

// Package loantest simulates a region, for tests of requests that wait for loans. The region's
// counters are in memory, and the test determines what the region's agent does.
package loantest

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/regionstore"
)

// Region is the store of a region, together with its agent. At first, a counter has all units of
// its limit. It gets new units only by [Region.Lend].
type Region struct {
	*regionstore.Store
	// Questions receives the questions that waiting requests send to the agent.
	Questions chan regionstore.Question

	t        testing.TB
	received chan func(message string)
	mu       sync.Mutex
	left     map[string]int64
	taken    int64
}

// New returns a region whose agent receives every question.
func New(t testing.TB) *Region {
	t.Helper()
	r := &Region{t: t, Questions: make(chan regionstore.Question, 64), received: make(chan func(string), 1), left: map[string]int64{}}
	r.Store = regionstore.New(units{r}, regionstore.Agency{
		Publish: func(_ context.Context, message []byte) (int64, error) {
			var q regionstore.Question
			if err := json.Unmarshal(message, &q); err != nil {
				t.Error(err)
			}
			if q.ID != "" {
				r.Questions <- q
			}
			return 1, nil
		},
		Listen: func(ctx context.Context, begun func(), received func(string)) error {
			begun()
			r.received <- received
			<-ctx.Done()
			return nil
		}}, nil)
	t.Cleanup(r.Store.Close)
	return r
}

// Lend adds units to the counter of a question and answers the requests that wait, as an agent does
// after a loan.
func (r *Region) Lend(q *regionstore.Question, units int64) {
	r.t.Helper()
	r.Restore(q, units)
	r.Tell(q, units)
}

// Restore is the first half of Lend: it adds the units.
func (r *Region) Restore(q *regionstore.Question, units int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left[string(q.Key)] += units
}

// Tell is the second half of Lend: it answers the requests.
func (r *Region) Tell(q *regionstore.Question, units int64) {
	r.t.Helper()
	r.publish(&regionstore.Answer{Key: q.Key, Units: units})
}

// Refuse answers a question: the other regions lend no further units.
func (r *Region) Refuse(q *regionstore.Question) {
	r.t.Helper()
	r.publish(&regionstore.Answer{Key: q.Key, Done: []string{q.ID}})
}

// Taken returns the number of units that were charged.
func (r *Region) Taken() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.taken
}

func (r *Region) publish(a *regionstore.Answer) {
	r.t.Helper()
	text, err := json.Marshal(a)
	if err != nil {
		r.t.Fatal(err)
	}
	received := <-r.received
	received(string(text))
	r.received <- received
}

// units is the store in which the region counts. It keeps the units that are left of each counter.
type units struct{ *Region }

// Take implements [counter.Store].
func (u units) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	denied := false
	for i := range checks {
		c := &checks[i]
		left, known := u.left[string(c.Key)]
		if !known {
			left = c.Limit.Capacity()
			u.left[string(c.Key)] = left
		}
		results[i] = counter.Result{At: counter.Micros(time.Now().UnixMicro()), Remaining: left, Reset: counter.Hour}
		if left < c.Cost && c.Op != counter.OpForce {
			results[i].Denied, results[i].Wait = true, counter.Hour
			denied = denied || !c.Shadow
		}
	}
	for i := range checks {
		if c, r := &checks[i], &results[i]; !denied && !r.Denied {
			u.left[string(c.Key)] -= c.Cost
			u.taken += c.Cost
			r.Granted, r.Remaining = c.Cost, r.Remaining-c.Cost
		}
	}
	return nil
}

// TakeAll implements [counter.Batcher].
func (u units) TakeAll(ctx context.Context, calls []counter.Call) {
	for i := range calls {
		calls[i].Err = u.Take(ctx, calls[i].Checks, calls[i].Results)
	}
}
