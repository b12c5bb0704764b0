// SPDX-License-Identifier: Apache-2.0

package regionstore

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/eventually"
)

const patience = 30 * time.Second

// office stands in for the agents of a region, whose answers the test chooses, and for a counter.
type office struct {
	t         *testing.T
	store     *Store
	questions chan Question
	received  chan func(message string)

	until time.Time // the bound of each wait, if it is not zero

	mu    sync.Mutex
	units int64
	takes int
	ends  []string // what became of the requests, in the order of their decisions
}

func newOffice(t *testing.T, agents int64, waitMax time.Duration) *office {
	t.Helper()
	o := &office{t: t, questions: make(chan Question, 64), received: make(chan func(string), 1)}
	o.store = New(new(below), Agency{WaitMax: waitMax,
		Publish: func(_ context.Context, message []byte) (int64, error) {
			var q Question
			if err := json.Unmarshal(message, &q); err != nil {
				t.Error(err)
			}
			o.questions <- q
			return agents, nil
		},
		Listen: func(ctx context.Context, begun func(), received func(string)) error {
			begun()
			o.received <- received
			<-ctx.Done()
			return nil
		}}, nil)
	t.Cleanup(o.store.Close)
	return o
}

// office.publish delivers a message of an agent.
func (o *office) publish(a Answer) {
	o.t.Helper()
	text, err := json.Marshal(a)
	if err != nil {
		o.t.Fatal(err)
	}
	received := <-o.received
	received(string(text))
	o.received <- received
}

// office.add adds units to the counter.
func (o *office) add(units int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.units += units
}

// office.wait lets a request wait, and notes its end.
func (o *office) wait(ctx context.Context, name, key string) End {
	part, whole := limits(o.t)
	checks := []counter.Check{{Key: []byte(key), Limit: &part, WholeLimit: &whole, Cost: 1}}
	results := []counter.Result{{Denied: true, Wait: counter.Hour}}
	end, err := o.store.Await(ctx, o.until, checks, results, true, func() error {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.takes++
		results[0] = counter.Result{Denied: o.units == 0, Wait: counter.Hour}
		o.units = max(0, o.units-1)
		return nil
	})
	if err != nil {
		o.t.Error(err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ends = append(o.ends, name+" "+string(end))
	return end
}

func (o *office) waiters() int {
	o.store.lines.mu.Lock()
	defer o.store.lines.mu.Unlock()
	return o.store.lines.waiters
}

// office.queue makes requests wait, one after the other.
func (o *office) queue(running *sync.WaitGroup, key string, n int) {
	o.t.Helper()
	before := o.waiters()
	for i := range n {
		running.Go(func() { o.wait(context.Background(), fmt.Sprint(i), key) })
		eventually.Until(o.t, patience, "a request waits", func() bool { return o.waiters() == before+i+1 })
	}
}

// TestWaitingIsInOrder tests that units that arrive admit the requests that have waited longest.
// The others wait until every agent that has received the question is done with it.
func TestWaitingIsInOrder(t *testing.T) {
	o := newOffice(t, 2, patience)
	var running sync.WaitGroup
	o.queue(&running, "k", 5)
	q := <-o.questions
	if q.Need < 1 || q.Need > 5 || !q.Short || q.ID == "" || q.Want != q.Need+20 {
		t.Errorf("question %+v", q)
	}
	for _, admitted := range []int{2, 3} {
		o.add(1)
		o.publish(Answer{Key: []byte("k"), Units: 1})
		if admitted == 2 {
			o.add(1)
			o.publish(Answer{Key: []byte("k"), Units: 1})
		}
		eventually.Until(t, patience, "requests are admitted", func() bool { return o.waiters() == 5-admitted })
	}
	o.publish(Answer{Key: []byte("k"), Done: []string{q.ID}})
	if n := o.waiters(); n != 2 {
		t.Errorf("%d requests wait while an agent is not done, want 2", n)
	}
	o.publish(Answer{Key: []byte("k"), Done: []string{q.ID}})
	running.Wait()
	slices.Sort(o.ends)
	if want := []string{"0 admitted", "1 admitted", "2 admitted", "3 denied", "4 denied"}; !slices.Equal(o.ends, want) {
		t.Errorf("%v, want %v", o.ends, want)
	}
	if end := o.wait(t.Context(), "5", "k"); end != EndNone {
		t.Errorf("a request after a refusal ended %q", end)
	}
}

// TestAsksAgain: if another question may bring units, requests that still wait ask again. If units
// are under way between other regions, the requests ask again a few times.
func TestAsksAgain(t *testing.T) {
	o := newOffice(t, 1, patience)
	var running sync.WaitGroup
	o.queue(&running, "k", 1)
	for range 5 {
		q := <-o.questions
		o.publish(Answer{Key: []byte("k"), Done: []string{q.ID}, More: true})
	}
	for range movesMax + 1 {
		q := <-o.questions
		o.publish(Answer{Key: []byte("k"), Done: []string{q.ID}, Moving: true})
	}
	running.Wait()
	if want := []string{"0 denied"}; !slices.Equal(o.ends, want) {
		t.Errorf("%v, want %v", o.ends, want)
	}
}

// TestNoRequestWaitsWhileUnitsAreScarce: an agent can ask that no request waits for a counter for
// some time, even if none waits at that moment. A denial at the end of a line does not shorten that
// time.
func TestNoRequestWaitsWhileUnitsAreScarce(t *testing.T) {
	o := newOffice(t, 1, patience)
	var running sync.WaitGroup
	o.queue(&running, "k", 1)
	q := <-o.questions
	o.publish(Answer{Key: []byte("other"), RefusedMillis: patience.Milliseconds()})
	o.publish(Answer{Key: []byte("k"), Done: []string{q.ID}, RefusedMillis: patience.Milliseconds()})
	running.Wait()
	l := &o.store.lines
	for _, key := range []string{"k", "other"} {
		place, _ := l.refusal([]byte(key))
		left := time.Until(time.UnixMilli(place.Load() >> refusalBits))
		if left < refusedTime || left > refusedMax {
			t.Errorf("no request waits for %q for %v, want nearly %v", key, left, refusedMax)
		}
		if end := o.wait(t.Context(), key, key); end != EndNone {
			t.Errorf("a request for %q ended %q", key, end)
		}
	}
}

// TestWaitersAreBounded: beyond the bounds, requests do not wait.
func TestWaitersAreBounded(t *testing.T) {
	o := newOffice(t, 1, patience)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for i, key := range []string{"a", "b"} {
		for range LineMax {
			running.Go(func() { o.wait(ctx, "", key) })
		}
		eventually.Until(t, patience, "the line is full", func() bool { return o.waiters() == (i+1)*LineMax })
		if end := o.wait(ctx, "", key); end != EndNone {
			t.Errorf("a request beyond %d of a counter ended %q", LineMax, end)
		}
	}
	if end := o.wait(ctx, "", "c"); o.waiters() != WaitersMax || end != EndNone {
		t.Errorf("a request ended %q while %d waited", end, o.waiters())
	}
	cancel()
	running.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.waiters() != 0 || o.store.lines.active.Load() != 0 || o.takes != 0 {
		t.Errorf("%d requests and %d lines are left; clients that left called the store %d times", o.waiters(), o.store.lines.active.Load(), o.takes)
	}
}

// TestWaitingEnds: a request does not wait if no agent receives the question. Otherwise its wait
// ends at the latest when its time is over.
func TestWaitingEnds(t *testing.T) {
	if end := newOffice(t, 0, patience).wait(t.Context(), "", "k"); end != EndDenied {
		t.Errorf("without an agent: %q", end)
	}
	if end := newOffice(t, 1, time.Millisecond).wait(t.Context(), "", "k"); end != EndLate {
		t.Errorf("without an answer: %q", end)
	}
	o := newOffice(t, 1, patience)
	o.until = time.Now().Add(5 * time.Millisecond)
	if end := o.wait(t.Context(), "", "k"); end != EndLate {
		t.Errorf("beyond the caller's time: %q", end)
	}
	if end := o.wait(t.Context(), "", "k"); end != EndNone {
		t.Errorf("a caller without time: %q", end)
	}
}

// TestWouldWait: WouldWait returns true only if there is a place for the request, and the request
// lacks units or older requests wait for them.
func TestWouldWait(t *testing.T) {
	o := newOffice(t, 1, patience)
	part, whole := limits(t)
	checks := func(key string, source uint32) []counter.Check {
		return []counter.Check{{Key: []byte(key), Limit: &part, WholeLimit: &whole, Cost: 1, Source: source}}
	}
	lacks := []counter.Result{{Denied: true, Wait: counter.Hour}}
	if o.store.WouldWait(checks("k", 0), nil, false) || !o.store.WouldWait(checks("k", 0), lacks, true) {
		t.Error("without older requests, a request would wait before the store was called, or not after it has denied it")
	}
	if o.store.WouldWait(checks("k", 0), make([]counter.Result, 1), true) {
		t.Error("an admitted request would wait")
	}
	var running sync.WaitGroup
	o.queue(&running, "k", 1)
	if !o.store.WouldWait(checks("k", 0), nil, false) || o.store.WouldWait(checks("other", 0), nil, false) {
		t.Error("a request would not wait behind an older one, or behind one of another counter")
	}
	l := &o.store.lines
	l.mu.Lock()
	l.sources[7] = SourceMax
	l.mu.Unlock()
	if o.store.WouldWait(checks("k", 7), nil, false) || o.store.WouldWait(checks("k", 7), lacks, true) {
		t.Error("a request of an address with all its places would wait")
	}
	q := <-o.questions
	o.publish(Answer{Key: []byte("k"), Done: []string{q.ID}})
	running.Wait()
	if o.store.WouldWait(checks("k", 0), lacks, true) {
		t.Error("a request would wait although the other regions have just had no units")
	}
}

// TestALostAnswerEndsTheLine tests that all requests of the line call the store for the last time
// if agents do not answer a question in time, or if the answers cannot be received. Otherwise new
// requests would keep the line, and would wait for an answer that never comes.
func TestALostAnswerEndsTheLine(t *testing.T) {
	for name, lose := range map[string]func(l *lines, n *line){
		"late": func(l *lines, n *line) {
			l.mu.Lock()
			n.asked = n.asked.Add(-l.waitMax)
			l.mu.Unlock()
			l.late(n)
		},
		"not heard": func(l *lines, _ *line) { l.closeAll() },
	} {
		o := newOffice(t, 1, patience)
		var running sync.WaitGroup
		o.queue(&running, "k", 2)
		<-o.questions
		l := &o.store.lines
		eventually.Until(t, patience, "the question is sent", func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.byKey["k"].heard == 1
		})
		l.late(l.byKey["k"])
		if o.waiters() != 2 {
			t.Errorf("%s: a young question ended a line", name)
		}
		lose(l, l.byKey["k"])
		running.Wait()
		if !slices.Equal(o.ends, []string{"0 denied", "1 denied"}) && !slices.Equal(o.ends, []string{"1 denied", "0 denied"}) {
			t.Errorf("%s: %v", name, o.ends)
		}
	}
}

// TestOneAddressLeavesPlaces: the requests of one address take at most a quarter of the places.
func TestOneAddressLeavesPlaces(t *testing.T) {
	l := &newOffice(t, 1, patience).store.lines
	part, whole := limits(t)
	joins := func(source uint32, i int) bool {
		n, _ := l.join(&counter.Check{Key: fmt.Append(nil, "k", i%4), Limit: &part, WholeLimit: &whole, Cost: 1, Source: source})
		return n != nil
	}
	for i := range SourceMax {
		if !joins(7, i) {
			t.Fatalf("request %d of an address does not wait", i)
		}
	}
	if joins(7, 0) || !joins(8, 0) || !joins(0, 0) {
		t.Error("a further request of the address waits, or one of another address does not")
	}
}

// TestLacks: a request waits only if nothing but units of other regions is missing.
func TestLacks(t *testing.T) {
	part, whole := limits(t)
	lacks := counter.Check{Limit: &part, WholeLimit: &whole, Cost: 1}
	spoilt := func(spoil func(c *counter.Check)) counter.Check {
		c := lacks
		spoil(&c)
		return c
	}
	denied := counter.Result{Denied: true, Wait: counter.Hour}
	for name, c := range map[string]struct {
		checks  []counter.Check
		results []counter.Result
		want    bool
	}{
		"lacks":     {[]counter.Check{lacks}, []counter.Result{denied}, true},
		"admitted":  {[]counter.Check{lacks}, []counter.Result{{}}, false},
		"log only":  {[]counter.Check{spoilt(func(c *counter.Check) { c.Shadow = true })}, []counter.Result{denied}, false},
		"violation": {[]counter.Check{spoilt(func(c *counter.Check) { c.Guard = 1 })}, []counter.Result{denied}, false},
		"own limit": {[]counter.Check{lacks, spoilt(func(c *counter.Check) { c.WholeLimit = nil })}, []counter.Result{denied, denied}, false},
		"too much":  {[]counter.Check{spoilt(func(c *counter.Check) { c.Cost = 21 })}, []counter.Result{denied}, false},
		"by itself": {[]counter.Check{lacks}, []counter.Result{{Denied: true, Local: true}}, false},
	} {
		if got := Lacks(c.checks, c.results); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
