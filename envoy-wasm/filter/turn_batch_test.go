// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/counter"
	corepolicy "github.com/penstock/penstock/core/policy"
)

// withFullTurn returns a filter that has had so many recent requests that the next request waits
// for the end of the turn. The streams of the recent requests have ended.
func withFullTurn(t *testing.T, e *fakeEnvoy, p corepolicy.Policy) *Filter {
	t.Helper()
	f := withPolicy(t, e, p)
	for id := range uint32(burstMin) {
		s := f.NewStream(1000 + id)
		if s.RequestHeaders(get("/free")) != Continue {
			t.Fatal("a request that no rule is for, and that came alone, waits")
		}
		s.Done()
	}
	e.counts, e.wakes = [counterCount]int{}, 0
	return f
}

// mannersPolicy returns a policy under which some requests need a call, some are blocked, and some
// match no rule.
func mannersPolicy(t *testing.T) corepolicy.Policy {
	p := shopPolicy(t, "10/1m")
	p.Rules = append(p.Rules, corepolicy.Rule{Name: "never", Match: corepolicy.Match{Path: []string{"/never"}}, Action: corepolicy.ActionBlock})
	return p
}

// TestRequestsThatArriveTogether: requests that arrive together are decided at the end of the turn,
// with the same results as one at a time.
func TestRequestsThatArriveTogether(t *testing.T) {
	e := newEnvoy(t)
	f := withFullTurn(t, e, mannersPolicy(t))
	paths := []string{"/api/1", "/free", "/never", "/api/2"}
	for id, path := range paths {
		if f.NewStream(uint32(id)).RequestHeaders(get(path)) != Pause {
			t.Errorf("%s is decided at once", path)
		}
	}
	if len(e.resumed)+len(e.responses)+len(e.calls) != 0 || e.wakes != 1 {
		t.Fatalf("before the end of the turn: resumed %v, answered %v, %d calls, %d wakes", e.resumed, e.responses, len(e.calls), e.wakes)
	}
	f.Flush()
	if !slices.Equal(e.resumed, []uint32{1}) || e.responses[2].Status != 403 || e.wakes != 1 {
		t.Errorf("at its end: resumed %v, answered %v, %d wakes", e.resumed, e.responses, e.wakes)
	}
	c, _, items := e.check()
	if len(items) != 2 || items[0].Ask.Path != "/api/1" {
		t.Errorf("%d are asked about", len(items))
	}
	c.answer(replyWith(admittedWith(9), denialOver()))
	if !slices.Equal(e.resumed, []uint32{1, 0}) || e.responses[3].Status != 429 || f.calls.held != 0 || len(f.arrivals.waiting) != 0 {
		t.Errorf("resumed %v, answered %v, %d bytes held", e.resumed, e.responses, f.calls.held)
	}
	equalCounts(t, e, map[string]int{"allowed": 2, "denied": 2})
}

// TestArrivalsWhileACallIsUnderWay: while a call is under way, a request that needs no call is
// decided at the end of the turn, and a request that needs a call waits until the first call has
// ended.
func TestArrivalsWhileACallIsUnderWay(t *testing.T) {
	e := newEnvoy(t)
	f := withFullTurn(t, e, mannersPolicy(t))
	f.NewStream(1).RequestHeaders(get("/api/1"))
	f.Flush()
	first, _, _ := e.check()
	f.NewStream(2).RequestHeaders(get("/free"))
	f.NewStream(3).RequestHeaders(get("/api/3"))
	f.Flush()
	if e.wakes != 2 || !slices.Equal(e.resumed, []uint32{2}) || len(e.calls) != 0 {
		t.Errorf("%d wakes, resumed %v, %d calls", e.wakes, e.resumed, len(e.calls))
	}
	first.answer(replyWith(admittedWith(9)))
	if _, _, items := e.check(); len(items) != 1 || items[0].Ask.Path != "/api/3" {
		t.Errorf("asked about %v", items)
	}
}

// TestARareRequestIsDecidedAtOnce: a request after a pause is decided immediately, and so is a
// request after the clock went back.
func TestARareRequestIsDecidedAtOnce(t *testing.T) {
	e := newEnvoy(t)
	f := withFullTurn(t, e, mannersPolicy(t))
	for _, move := range []counter.Micros{burstSpan, burstSpan, -counter.Hour, burstSpan / 2, burstSpan} {
		e.now += move
		if f.NewStream(1).RequestHeaders(get("/free")) != Continue {
			t.Errorf("%d µs later one waits", move)
		}
	}
}

// TestArrivalsThatAreGone: arrivals that have ended are skipped. If the end of a turn is never
// reported, a tick ends the turn.
func TestArrivalsThatAreGone(t *testing.T) {
	e := newEnvoy(t)
	f := withFullTurn(t, e, mannersPolicy(t))
	streams := make([]*Stream, 3)
	for id := range streams {
		streams[id] = f.NewStream(uint32(id))
		streams[id].RequestHeaders(get("/free"))
	}
	streams[1].Done()
	if e.every != TickMillis {
		t.Errorf("a tick comes every %d ms", e.every)
	}
	f.Tick() // there is no Flush
	if !slices.Equal(e.resumed, []uint32{0, 2}) || f.calls.held != 0 {
		t.Errorf("resumed %v, %d bytes held", e.resumed, f.calls.held)
	}
}

// TestArrivalsWithoutAnEnd: if the end of the turn cannot be requested, or too many requests wait
// for it, requests are decided immediately.
func TestArrivalsWithoutAnEnd(t *testing.T) {
	e := newEnvoy(t)
	f := withFullTurn(t, e, mannersPolicy(t))
	e.sleeps = errNo
	if f.NewStream(1).RequestHeaders(get("/free")) != Continue {
		t.Error("one waits for what does not come")
	}
	e.sleeps = nil
	for id := range uint32(arrivedMax) {
		if f.NewStream(id).RequestHeaders(get("/free")) != Pause {
			t.Fatalf("%d do not wait", id)
		}
	}
	if f.NewStream(arrivedMax).RequestHeaders(get("/free")) != Continue {
		t.Error("too many wait")
	}
	f.Flush()
	f.endTurns()
	if len(e.resumed) != arrivedMax {
		t.Errorf("%d resumed", len(e.resumed))
	}
	long := get("/free", "x-unread", strings.Repeat("a", heldBytesMax))
	if f.NewStream(1).RequestHeaders(long) != Continue {
		t.Error("more bytes wait than may be held")
	}
}

// TestAPanicAtTheEndOfATurn: on_error decides the request whose decision panics, and the other
// requests are decided as usual.
func TestAPanicAtTheEndOfATurn(t *testing.T) {
	for _, method := range []string{"Count", "Resume", "Now", "Elapsed"} {
		e := newEnvoy(t)
		f := withFullTurn(t, e, mannersPolicy(t))
		for id := range uint32(3) {
			f.NewStream(id).RequestHeaders(get("/free"))
		}
		f.NewStream(3).RequestHeaders(get("/api/1"))
		e.panics = method
		f.Flush()
		if e.panics != "" { // the method is not called here
			t.Logf("%s is not called", method)
		}
		if got := slices.Compact(slices.Sorted(slices.Values(e.resumed))); !slices.Equal(got, []uint32{0, 1, 2}) {
			t.Errorf("%s: resumed %v, counted %v", method, e.resumed, e.count())
		}
		if method != "Elapsed" && len(e.calls) != 1 {
			t.Errorf("%s: %d calls", method, len(e.calls))
		}
	}
}

// TestTogetherAsAlone: results do not depend on whether requests arrived together.
func TestTogetherAsAlone(t *testing.T) {
	enqueueSettlement := func(together bool) (map[uint32]Response, map[string]int, []uint32) {
		e := newEnvoy(t)
		f := withPolicy(t, e, mannersPolicy(t))
		for id, path := range []string{"/a", "/b", "/c", "/d", "/api/1", "/never", "/free", "/api/2", "/never"} {
			if !together {
				e.now += burstSpan
			}
			if f.NewStream(uint32(id)).RequestHeaders(get(path, "x-request-id", path)) == Continue {
				e.resumed = append(e.resumed, uint32(id))
			}
		}
		f.Flush()
		c, _, _ := e.check()
		c.answer(replyWith(admittedWith(9), denialOver()))
		slices.Sort(e.resumed)
		return e.responses, e.count(), e.resumed
	}
	together, counts, resumed := enqueueSettlement(true)
	alone, countsAlone, resumedAlone := enqueueSettlement(false)
	if !maps.Equal(counts, countsAlone) || !slices.Equal(resumed, resumedAlone) || len(together) != len(alone) {
		t.Errorf("together %v %v, alone %v %v", counts, resumed, countsAlone, resumedAlone)
	}
	for id, r := range alone {
		if !slices.Equal(together[id].Headers, r.Headers) || together[id].Status != r.Status {
			t.Errorf("%d: together %v, alone %v", id, together[id], r)
		}
	}
}
