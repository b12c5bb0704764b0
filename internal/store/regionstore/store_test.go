// SPDX-License-Identifier: Apache-2.0

package regionstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/eventually"
)

// below is a store whose results are fixed, below the store under test.
type below struct {
	remaining int64
	denied    bool
	err       error
}

func (b *below) Take(_ context.Context, _ []counter.Check, results []counter.Result) error {
	for i := range results {
		results[i] = counter.Result{Remaining: b.remaining, Denied: b.denied, Wait: counter.Hour}
	}
	return b.err
}

func (b *below) TakeAll(ctx context.Context, calls []counter.Call) {
	for i := range calls {
		calls[i].Err = b.Take(ctx, calls[i].Checks, calls[i].Results)
	}
}

func limits(t *testing.T) (part, whole counter.Limit) {
	t.Helper()
	whole, err := counter.ParseLimit("100/1h")
	if err != nil {
		t.Fatal(err)
	}
	if part, err = whole.Resized(20, 0); err != nil {
		t.Fatal(err)
	}
	return part, whole
}

// TestAsksWhenUnitsRunLow: when a quarter of the region's part or less is left, the store asks the
// agent for units. It asks at a limited rate for each counter, and only for limits whose units are
// lent.
func TestAsksWhenUnitsRunLow(t *testing.T) {
	part, whole := limits(t)
	questions := make(chan Question, 16)
	inner := new(below)
	s := New(inner, Agency{Publish: func(_ context.Context, message []byte) (int64, error) {
		var q Question
		if err := json.Unmarshal(message, &q); err != nil {
			t.Error(err)
		}
		questions <- q
		return 1, nil
	}}, nil)
	defer s.Close()
	take := func(key string, whole *counter.Limit) counter.Result {
		t.Helper()
		calls := []counter.Call{{Checks: []counter.Check{{Key: []byte(key), Limit: &part, WholeLimit: whole, Cost: 1}}, Results: make([]counter.Result, 1)}}
		if s.TakeAll(t.Context(), calls); calls[0].Err != nil && inner.err == nil {
			t.Fatal(calls[0].Err)
		}
		return calls[0].Results[0]
	}
	inner.remaining = 6
	take("plenty", &whole)
	inner.remaining = 5
	take("not lent", nil)
	for range 3 {
		take("low", &whole)
	}
	q := <-questions
	if string(q.Key) != "low" || q.Limit != "100/1h" || q.Part != 20 || q.Want != 21 || q.Bounds != nil {
		t.Errorf("question %+v", q)
	}
	inner.remaining, inner.denied = 0, true
	if r := take("denied", &whole); !r.Denied || r.LeasedIn != loanTime {
		t.Errorf("a denial may be remembered for %v", r.LeasedIn)
	}
	if q := <-questions; string(q.Key) != "denied" {
		t.Errorf("question %+v", q)
	}
	inner.err = errors.New("away")
	take("failed", &whole)
	if len(questions) > 0 {
		t.Errorf("another question: %+v", <-questions)
	}
}

// TestNobodyHears: one warning is logged when no agent receives questions, and one line when an
// agent receives them again.
func TestNobodyHears(t *testing.T) {
	part, whole := limits(t)
	var heard atomic.Int64
	log := new(eventually.Journal)
	s := New(new(below), Agency{Publish: func(context.Context, []byte) (int64, error) { return heard.Load(), nil }}, log.Logger())
	defer s.Close()
	ask := func(key string) {
		check := counter.Check{Key: []byte(key), Limit: &part, WholeLimit: &whole, Cost: 1}
		if err := s.Take(t.Context(), []counter.Check{check}, make([]counter.Result, 1)); err != nil {
			t.Fatal(err)
		}
	}
	ask("a")
	eventually.Until(t, 10*time.Second, "a warning is logged", func() bool { return strings.Contains(log.String(), "no agent of the region hears") })
	heard.Store(1)
	ask("b")
	eventually.Until(t, 10*time.Second, "the end of it is logged", func() bool { return strings.Contains(log.String(), "hears again") })
}

// TestLookingAllocatesNothing: a call without a limit that runs low allocates nothing.
func TestLookingAllocatesNothing(t *testing.T) {
	part, whole := limits(t)
	s := New(&below{remaining: 15}, Agency{Publish: func(context.Context, []byte) (int64, error) { return 1, nil }}, slog.New(slog.DiscardHandler))
	defer s.Close()
	checks := []counter.Check{{Key: []byte("k"), Limit: &part, WholeLimit: &whole, Cost: 1}}
	results := make([]counter.Result, 1)
	if n := testing.AllocsPerRun(100, func() { _ = s.Take(context.Background(), checks, results) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestAFloodLeavesRoomForQuestions: a client whose requests have thousands of counters fills half
// of the queue, so the questions about another client's counters are sent.
func TestAFloodLeavesRoomForQuestions(t *testing.T) {
	part, whole := limits(t)
	release, asked := make(chan struct{}), make(chan string, 2*queueMax)
	s := New(new(below), Agency{Publish: func(_ context.Context, message []byte) (int64, error) {
		<-release
		var q Question
		if err := json.Unmarshal(message, &q); err != nil {
			t.Error(err)
		}
		asked <- fmt.Sprint(q.Source, " ", string(q.Key))
		return 1, nil
	}}, nil)
	defer s.Close()
	take := func(key string, source uint32) {
		checks := []counter.Check{{Key: []byte(key), Limit: &part, WholeLimit: &whole, Cost: 1, Source: source}}
		if err := s.Take(t.Context(), checks, make([]counter.Result, 1)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 * queueMax {
		take(fmt.Sprint("made up ", i), 7)
	}
	// 20 counters, because no question is asked about a counter that shares a place in the table
	// with a made-up one
	for i := range 20 {
		take(fmt.Sprint("other ", i), 9)
	}
	close(release)
	for text := ""; !strings.HasPrefix(text, "9 other"); {
		select {
		case text = <-asked:
		case <-time.After(patience):
			t.Fatal("no question about the other client's counters was sent")
		}
	}
}
