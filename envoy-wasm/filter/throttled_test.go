// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"slices"
	"testing"

	"github.com/penstock/penstock/core/counter"
	corepolicy "github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// throttledPolicy returns a policy whose rule delays requests for up to two seconds.
func throttledPolicy(t *testing.T) corepolicy.Policy {
	t.Helper()
	p := shopPolicy(t, "10/1m")
	p.Rules[0].Action = corepolicy.ActionThrottle
	p.Rules[0].Throttle = &corepolicy.Throttle{MaxDelay: 2 * counter.Second, MaxWaiting: 10}
	return p
}

// denialUntil returns a denial whose units will be available in a second.
func denialUntil() wire.Answer {
	return wire.Answer{Results: []counter.Result{{At: counter.Second, Denied: true, Wait: counter.Second, Reset: counter.Minute}}}
}

// sendThrottled sends a request that waits for its second call, and returns that call.
func sendThrottled(t *testing.T, e *fakeEnvoy, f *Filter, id uint32) (*Stream, madeCall) {
	t.Helper()
	s := f.NewStream(id)
	s.RequestHeaders(get("/api/x"))
	f.Flush()
	first, _, _ := e.check()
	first.answer(replyWith(denialUntil()))
	c, call, items := e.check()
	if call.Version != "v1" || len(items) != 1 || items[0].Kind != wire.KindWait || items[0].Ask.Path != "/api/x" ||
		c.TimeoutMillis != 5000 || slices.Contains(e.resumed, id) || e.responses[id].Status != 0 {
		t.Fatalf("%+v in %d ms, resumed %v, answered %v", items, c.TimeoutMillis, e.resumed, e.responses)
	}
	return s, c
}

// TestThrottledRequest: the second call decides the request, whatever its result.
func TestThrottledRequest(t *testing.T) {
	for name, c := range map[string]struct {
		reply   Reply
		goesOn  bool
		counted string
	}{
		"admitted":    {replyWith(admittedWith(3)), true, "delayed"},
		"refused":     {replyWith(denialOver()), false, "denied"},
		"still later": {replyWith(denialUntil()), false, "denied"},
		"store down":  {replyWith(wire.Answer{Status: wire.StatusUnavailable}), true, "store_unavailable"},
		"hung":        {Reply{Status: 504}, true, "bridge_timeout"},
		"unreachable": {Reply{Status: 503}, true, "bridge_unreachable"},
		"garbage":     {Reply{Status: 200, Body: []byte("x")}, true, "bridge_unanswered"},
		"empty":       {replyWith(), true, "bridge_unanswered"},
	} {
		e := newEnvoy(t)
		f := withPolicy(t, e, throttledPolicy(t))
		s, call := sendThrottled(t, e, f, 1)
		call.answer(c.reply)
		if slices.Contains(e.resumed, 1) != c.goesOn || (e.responses[1].Status == 429) == c.goesOn || e.count()[c.counted] != 1 {
			t.Errorf("%s: resumed %v, answered %v, counted %v", name, e.resumed, e.responses, e.count())
		}
		if name == "admitted" && fieldOf(s.ResponseHeaders(okHeaders("200"), true), "x-ratelimit-remaining") != "3" {
			t.Error("the response tells of the first call")
		}
		if len(e.calls) != 0 {
			t.Errorf("%s: %d more calls", name, len(e.calls))
		}
		if f.Tick(); len(f.calls.throttleQueue) != 0 {
			t.Errorf("%s: it stands there still", name)
		}
	}
}

// TestOthersAreNotBlocked: a waiting request has its own call, so the calls of other requests
// continue.
func TestOthersAreNotBlocked(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, throttledPolicy(t))
	_, call := sendThrottled(t, e, f, 1)
	admitted(t, e, f, 2, admittedWith(1), get("/api/x"))
	call.answer(replyWith(admittedWith(0)))
	if !slices.Equal(e.resumed, []uint32{2, 1}) {
		t.Errorf("resumed %v", e.resumed)
	}
}

func TestNoRequestWaitsWithoutEnd(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, throttledPolicy(t))
	_, call := sendThrottled(t, e, f, 1)
	e.now += 2990 * counter.Millisecond
	if f.Tick(); len(e.resumed) != 0 {
		t.Fatal("let go on before max_delay and the deadline are over")
	}
	e.now += 10 * counter.Millisecond
	f.Tick()
	call.answer(replyWith(denialOver())) // late
	if !slices.Equal(e.resumed, []uint32{1}) || e.counts[CounterTimeout] != 1 || e.responses[1].Status != 0 || len(f.calls.throttleQueue) != 0 {
		t.Errorf("resumed %v, counted %v", e.resumed, e.count())
	}
}

// TestABridgeThatFallsSilent: on_error decides a throttled request if the bridge has answered
// nothing for a second, whatever it answered before. If the bridge has answered another call within
// a second, the request is denied with 503.
func TestABridgeThatFallsSilent(t *testing.T) {
	for answered, status := range map[counter.Micros]uint32{10 * counter.Millisecond: 0, 1900 * counter.Millisecond: 0, 2100 * counter.Millisecond: 503} {
		e := newEnvoy(t)
		f := withPolicy(t, e, throttledPolicy(t), "poll: 60m")
		sendThrottled(t, e, f, 1)
		e.now += answered
		f.NewStream(2).RequestHeaders(get("/api/x"))
		f.Flush()
		other, _, _ := e.check()
		other.answer(replyWith(admittedWith(3)))
		e.passTicks(f, 3*counter.Second-answered)
		if e.responses[1].Status != status || slices.Contains(e.resumed, 1) != (status == 0) {
			t.Errorf("an answer after %v: %d, resumed %v, counted %v", answered, e.responses[1].Status, e.resumed, e.count())
		}
	}
}

// TestAThrottledRequestWithLateTicks: if Envoy's own timeout ends the wait, because ticks were
// late, the request is decided as at its deadline. A bridge that has answered other calls is not
// down, so the request is denied with 503. on_error would let the request through uncounted.
func TestAThrottledRequestWithLateTicks(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, throttledPolicy(t), "poll: 60m")
	_, call := sendThrottled(t, e, f, 1)
	e.now += 4900 * counter.Millisecond
	admitted(t, e, f, 2, admittedWith(3), get("/api/x"))
	e.now += 100 * counter.Millisecond
	if call.answer(Reply{Status: 504}); e.responses[1].Status != 503 || slices.Contains(e.resumed, 1) || e.counts[CounterFull] != 1 {
		t.Errorf("%d, resumed %v, counted %v", e.responses[1].Status, e.resumed, e.count())
	}
}

// TestEndedRequestsOccupyTheirCalls: the calls of requests that have ended count until Envoy ends
// them, so their number is bounded.
func TestEndedRequestsOccupyTheirCalls(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, throttledPolicy(t), "poll: 60m")
	f.calls.seconds = throttleQueueMax - 1
	s, call := sendThrottled(t, e, f, 1)
	s.Done()
	f.Tick()
	ask := func(id uint32) bool {
		f.NewStream(id).RequestHeaders(get("/api/x"))
		f.Flush()
		first, _, _ := e.check()
		first.answer(replyWith(denialUntil()))
		return e.responses[id].Status == 0
	}
	if ask(2) {
		t.Error("a request waits, with a call beyond the bound")
	}
	if call.answer(replyWith(admittedWith(3))); !ask(3) {
		t.Errorf("a request does not wait although a call has ended: %+v", e.responses[3])
	}
}

// TestBothCallsHaveOneDeadline: the duration of the first call is subtracted from the time of the
// second call. So no request waits longer than max_delay plus the time for which a bridge may be
// silent.
func TestBothCallsHaveOneDeadline(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, throttledPolicy(t))
	start := e.now
	s := f.NewStream(1)
	s.RequestHeaders(get("/api/x"))
	f.Flush()
	first, _, _ := e.check()
	e.now += 40 * counter.Millisecond
	first.answer(replyWith(denialUntil()))
	if second, _, _ := e.check(); second.TimeoutMillis != 4960 {
		t.Errorf("the second call has %d ms", second.TimeoutMillis)
	}
	for s.state == throttleQueued {
		e.passTicks(f, counter.Millisecond)
	}
	if waited := e.now - start; waited > 3000*counter.Millisecond+tickFast || e.counts[CounterTimeout] != 1 {
		t.Errorf("waited %v: %v", waited, e.count())
	}
	// The answer to the next request arrives after the deadline, but before the tick that would
	// have ended the wait.
	f.NewStream(2).RequestHeaders(get("/api/x"))
	f.Flush()
	first, _, _ = e.check()
	e.now += 3000 * counter.Millisecond
	if first.answer(replyWith(denialUntil())); len(e.calls) != 0 || e.responses[2].Status != 429 {
		t.Errorf("%d calls, answered %v", len(e.calls), e.responses)
	}
}

func TestAClientThatLeavesTheQueue(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, throttledPolicy(t))
	s, call := sendThrottled(t, e, f, 1)
	s.Done()
	call.answer(replyWith(admittedWith(3)))
	if f.Tick(); len(e.resumed)+len(e.responses)+len(f.calls.throttleQueue) != 0 {
		t.Errorf("resumed %v, answered %v", e.resumed, e.responses)
	}
}

// TestARequestThatCannotWaitIsDenied: a request is denied if no call can be made, or if too many
// requests are waiting.
func TestARequestThatCannotWaitIsDenied(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, throttledPolicy(t))
	for id, prepare := range []func(){
		func() { e.refuses = errNo },
		func() { e.panics = "Call" },
		func() { f.calls.seconds = throttleQueueMax },
	} {
		e.refuses = nil
		f.NewStream(uint32(id)).RequestHeaders(get("/api/x"))
		f.Flush()
		first, _, _ := e.check()
		prepare()
		if first.answer(replyWith(denialUntil())); e.responses[uint32(id)].Status != 429 || len(e.resumed) != 0 {
			t.Errorf("%d: resumed %v, answered %v", id, e.resumed, e.responses)
		}
	}
}

// TestAnotherBridgeMayKnowThePolicyOfAThrottledRequest: the call is repeated at most twice, with
// the rest of its time.
func TestAnotherBridgeMayKnowThePolicyOfAThrottledRequest(t *testing.T) {
	for know := range againMax + 2 {
		e := newEnvoy(t)
		f := withPolicy(t, e, throttledPolicy(t), "poll: 60m")
		s, call := sendThrottled(t, e, f, 1)
		for n := range know {
			e.now += 100 * counter.Millisecond
			call.answer(replyWith(wire.Answer{Status: wire.StatusUnknown}))
			if n == againMax {
				break
			}
			var items []wire.Item
			if call, _, items = e.check(); len(items) != 1 || items[0].Kind != wire.KindWait || int(call.TimeoutMillis) != 5000-100*(n+1) {
				t.Fatalf("asks %+v in %d ms", items, call.TimeoutMillis)
			}
		}
		want := map[string]int{"policy_loaded": 1, "allowed": 1, "delayed": 1, "policy_unknown": know}
		if know > againMax {
			want = map[string]int{"policy_loaded": 1, "denied": 1, "policy_unknown": know}
		} else {
			if len(f.calls.throttleQueue) != 1 || s.state != throttleQueued {
				t.Errorf("%d stand in line", len(f.calls.throttleQueue))
			}
			call.answer(replyWith(admittedWith(3)))
		}
		if know == 0 {
			delete(want, "policy_unknown")
		}
		equalCounts(t, e, want)
		if slices.Equal(e.resumed, []uint32{1}) != (know <= againMax) || (e.responses[1].Status == 503) != (know > againMax) ||
			len(e.calls) != 0 || f.calls.held != 0 {
			t.Errorf("resumed %v, answered %v, %d calls, %d bytes held", e.resumed, e.responses, len(e.calls), f.calls.held)
		}
	}
}

// TestAThrottledRequestKeepsItsDeadline: a throttled request keeps its deadline when its call is
// repeated, even if the clock goes back by an hour.
func TestAThrottledRequestKeepsItsDeadline(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, throttledPolicy(t))
	_, call := sendThrottled(t, e, f, 1)
	e.now -= counter.Hour
	call.answer(replyWith(wire.Answer{Status: wire.StatusUnknown}))
	if call, _, _ = e.check(); call.TimeoutMillis != 5000 {
		t.Errorf("%d ms", call.TimeoutMillis)
	}
	e.now += 3000 * counter.Millisecond
	if f.Tick(); !slices.Equal(e.resumed, []uint32{1}) || len(f.calls.throttleQueue) != 0 {
		t.Errorf("resumed %v, %d stand in line", e.resumed, len(f.calls.throttleQueue))
	}
	call.answer(replyWith(admittedWith(1)))
	if len(e.resumed) != 1 {
		t.Error("a late answer counts")
	}
}
