// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"slices"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// lacking is the answer to a request that may wait for units of other regions.
var lacking = wire.Answer{Status: wire.StatusLoan}

// sendLacking sends a request that lacks units, and returns its second call.
func sendLacking(t *testing.T, e *fakeEnvoy, f *Filter, id uint32) (*Stream, madeCall) {
	t.Helper()
	s := f.NewStream(id)
	s.RequestHeaders(get("/api/x"))
	f.Flush()
	first, _, _ := e.check()
	if !slices.Contains(first.Header, [2]string{wire.LoansHeader, wire.ReadsLate}) {
		t.Errorf("the filter does not say that it reads the answer: %v", first.Header)
	}
	first.answer(replyWith(lacking))
	c, call, items := e.check()
	if call.Version != "v1" || len(items) != 1 || items[0].Kind != wire.KindWait || c.TimeoutMillis != 3800 ||
		slices.Contains(e.resumed, id) || e.responses[id].Status != 0 {
		t.Fatalf("%+v in %d ms, resumed %v, answered %v", items, c.TimeoutMillis, e.resumed, e.responses)
	}
	return s, c
}

// TestARequestThatLacksUnits: the second call decides the request, whatever its result.
func TestARequestThatLacksUnits(t *testing.T) {
	for name, c := range map[string]struct {
		reply   Reply
		status  uint32 // 0 if the request continues
		counted string
	}{
		"admitted":    {replyWith(admittedWith(3)), 0, "delayed"},
		"refused":     {replyWith(denialOver()), 429, "denied"},
		"hung":        {Reply{Status: 504}, 0, "bridge_timeout"},
		"unreachable": {Reply{Status: 503}, 0, "bridge_unreachable"},
		"again":       {replyWith(lacking), 503, "waiting_full"},
	} {
		e := newEnvoy(t)
		f := withPolicy(t, e, shopPolicy(t, "10/1h fixed_window"), "poll: 60m")
		_, call := sendLacking(t, e, f, 1)
		call.answer(c.reply)
		if slices.Contains(e.resumed, 1) != (c.status == 0) || e.responses[1].Status != c.status || e.count()[c.counted] != 1 {
			t.Errorf("%s: resumed %v, answered %v, counted %v", name, e.resumed, e.responses, e.count())
		}
		if f.Tick(); len(f.calls.throttleQueue) != 0 || f.calls.seconds != 0 || len(e.calls) != 0 || f.calls.held != 0 {
			t.Errorf("%s: %d wait, with %d calls; %d more calls", name, len(f.calls.throttleQueue), f.calls.seconds, len(e.calls))
		}
	}
}

// TestALoanDelaysNoOtherRequest: the other requests of the call get their answers at once, and the
// next call does not wait for the request that lacks units.
func TestALoanDelaysNoOtherRequest(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "10/1h fixed_window"), "poll: 60m")
	for id := range uint32(2) {
		f.NewStream(id + 1).RequestHeaders(get("/api/x"))
	}
	f.Flush()
	first, _, _ := e.check()
	first.answer(replyWith(lacking, admittedWith(3)))
	own, _, _ := e.check()
	admitted(t, e, f, 3, admittedWith(2), get("/api/x"))
	own.answer(replyWith(admittedWith(1)))
	if !slices.Equal(e.resumed, []uint32{2, 3, 1}) {
		t.Errorf("resumed %v", e.resumed)
	}
}

// TestABurstThatLacksUnits: a burst of one client is admitted as long as other regions lend units,
// although the region's own part of the limit is smaller. The answer is not remembered as a denial,
// and not all requests wait for the first one.
func TestABurstThatLacksUnits(t *testing.T) {
	const part, whole, n = 6, 30, 300
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "6/1h fixed_window"), "poll: 60m")
	e.sendFlood(f, 1, n, "/api/x")
	units, rounds := part, 0
	var waits []madeCall
	for ; len(e.calls) > 0; rounds++ {
		c, _, items := e.check()
		if items[0].Kind == wire.KindWait {
			waits = append(waits, c)
			continue
		}
		var answers []wire.Answer
		for range items {
			answer := lacking
			if units > 0 {
				units--
				answer = admittedWith(int64(units))
			}
			answers = append(answers, answer)
		}
		c.answer(replyWith(answers...))
		e.settleTurns(f)
	}
	if len(waits) != n-part || rounds-len(waits) > 2+n/waveMax {
		t.Errorf("%d requests wait, after %d calls", len(waits), rounds-len(waits))
	}
	for i, c := range waits {
		answer := denialOver()
		if i < whole-part {
			answer = admittedWith(0)
		}
		c.answer(replyWith(answer))
		e.settleTurns(f)
	}
	if len(e.resumed) != whole || len(e.responses) != n-whole || len(f.gates.byKey) != 0 || f.calls.held != 0 || f.calls.seconds != 0 {
		t.Errorf("%d are admitted and %d denied; %v", len(e.resumed), len(e.responses), e.count())
	}
}

// TestARequestThatCannotWaitForALoanIsDenied: if too many requests have calls of their own, or if
// no call can be made, a request that lacks units is denied. on_error does not let it through.
func TestARequestThatCannotWaitForALoanIsDenied(t *testing.T) {
	for _, prepare := range []func(e *fakeEnvoy, f *Filter){
		func(e *fakeEnvoy, _ *Filter) { e.refuses = errNo },
		func(_ *fakeEnvoy, f *Filter) { f.calls.seconds = throttleQueueMax },
	} {
		e := newEnvoy(t)
		f := withPolicy(t, e, shopPolicy(t, "10/1h fixed_window"), "poll: 60m")
		f.NewStream(1).RequestHeaders(get("/api/x"))
		f.Flush()
		first, _, _ := e.check()
		prepare(e, f)
		if first.answer(replyWith(lacking)); e.responses[1].Status != 503 || len(e.resumed) != 0 || e.counts[CounterFull] != 1 {
			t.Errorf("resumed %v, answered %v, counted %v", e.resumed, e.responses, e.count())
		}
	}
}

// TestNoLoanIsAwaitedWithoutEnd: a request waits for at most the time that the bridge permits plus
// the time for which a bridge may be silent. After that, on_error lets no request through that
// exceeds the limit of the region.
func TestNoLoanIsAwaitedWithoutEnd(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "1/1h fixed_window"), "poll: 60m")
	admitted(t, e, f, 7, admittedWith(0), get("/api/x"))
	_, call := sendLacking(t, e, f, 1)
	e.now += 1790 * counter.Millisecond
	if f.Tick(); len(e.responses) != 0 {
		t.Fatal("decided before its time is over")
	}
	e.now += 10 * counter.Millisecond
	f.Tick()
	call.answer(replyWith(admittedWith(3))) // late
	if !slices.Equal(e.resumed, []uint32{7}) || e.responses[1].Status != 429 || e.counts[CounterTimeout] != 1 || e.counts[CounterSpent] != 1 {
		t.Errorf("resumed %v, answered %v, counted %v", e.resumed, e.responses, e.count())
	}
}
