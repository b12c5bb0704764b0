// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"slices"
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/wire"
)

// patient is a policy whose rule lets requests wait for two seconds.
func patient(t *testing.T) core.Policy {
	t.Helper()
	p := shop(t, "10/1m")
	p.Rules[0].Action = core.ActionThrottle
	p.Rules[0].Throttle = &core.Throttle{MaxDelay: 2 * core.Second, MaxWaiting: 10}
	return p
}

// later answers that the units are there in a second.
func later() wire.Answer {
	return wire.Answer{Results: []core.Result{{At: core.Second, Refused: true, Wait: core.Second, Reset: core.Minute}}}
}

// inLine is a request that waits for its second call, and that call.
func inLine(t *testing.T, e *envoy, f *Filter, id uint32) (*Stream, made) {
	t.Helper()
	s := f.NewStream(id)
	s.RequestHeaders(get("/api/x"))
	f.Flush()
	first, _, _ := e.check()
	first.answer(replied(later()))
	c, call, items := e.check()
	if call.Version != "v1" || len(items) != 1 || items[0].Kind != wire.KindWait || items[0].Ask.Path != "/api/x" ||
		c.TimeoutMillis != 2050 || slices.Contains(e.resumed, id) || e.responses[id].Status != 0 {
		t.Fatalf("%+v in %d ms, resumed %v, answered %v", items, c.TimeoutMillis, e.resumed, e.responses)
	}
	return s, c
}

// TestStandingInLine: the second call decides, whatever it says.
func TestStandingInLine(t *testing.T) {
	for name, c := range map[string]struct {
		reply   Reply
		goesOn  bool
		counted string
	}{
		"admitted":    {replied(left(3)), true, "delayed"},
		"refused":     {replied(over()), false, "denied"},
		"still later": {replied(later()), false, "denied"},
		"store down":  {replied(wire.Answer{Status: wire.StatusUnavailable}), true, "store_unavailable"},
		"hung":        {Reply{Status: 504}, true, "bridge_unreachable"},
		"garbage":     {Reply{Status: 200, Body: []byte("x")}, true, "bridge_unanswered"},
		"empty":       {replied(), true, "bridge_unanswered"},
	} {
		e := newEnvoy(t)
		f := withPolicy(t, e, patient(t))
		s, call := inLine(t, e, f, 1)
		call.answer(c.reply)
		if slices.Contains(e.resumed, 1) != c.goesOn || (e.responses[1].Status == 429) == c.goesOn || e.count()[c.counted] != 1 {
			t.Errorf("%s: resumed %v, answered %v, counted %v", name, e.resumed, e.responses, e.count())
		}
		if name == "admitted" && fieldOf(s.ResponseHeaders(ok("200"), true), "x-ratelimit-remaining") != "3" {
			t.Error("the response tells of the first call")
		}
		if len(e.calls) != 0 {
			t.Errorf("%s: %d more calls", name, len(e.calls))
		}
		if f.Tick(); len(f.calls.standing) != 0 {
			t.Errorf("%s: it stands there still", name)
		}
	}
}

// TestOthersDoNotStandBehind: who waits has a call of its own, so the calls of others go on.
func TestOthersDoNotStandBehind(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, patient(t))
	_, call := inLine(t, e, f, 1)
	admitted(t, e, f, 2, left(1), get("/api/x"))
	call.answer(replied(left(0)))
	if !slices.Equal(e.resumed, []uint32{2, 1}) {
		t.Errorf("resumed %v", e.resumed)
	}
}

func TestNobodyStandsForEver(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, patient(t))
	_, call := inLine(t, e, f, 1)
	e.now += 2040 * core.Millisecond
	if f.Tick(); len(e.resumed) != 0 {
		t.Fatal("let go on before max_delay and the deadline are over")
	}
	e.now += 10 * core.Millisecond
	f.Tick()
	call.answer(replied(over())) // late
	if !slices.Equal(e.resumed, []uint32{1}) || e.counts[CounterTimeout] != 1 || e.responses[1].Status != 0 || len(f.calls.standing) != 0 {
		t.Errorf("resumed %v, counted %v", e.resumed, e.count())
	}
}

// TestBothCallsHaveOneDeadline: what the first took the second has less, so that nobody waits longer than max_delay and the deadline.
func TestBothCallsHaveOneDeadline(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, patient(t))
	start := e.now
	s := f.NewStream(1)
	s.RequestHeaders(get("/api/x"))
	f.Flush()
	first, _, _ := e.check()
	e.now += 40 * core.Millisecond
	first.answer(replied(later()))
	if second, _, _ := e.check(); second.TimeoutMillis != 2010 {
		t.Errorf("the second call has %d ms", second.TimeoutMillis)
	}
	for s.state == standing {
		e.passes(f, core.Millisecond)
	}
	if waited := e.now - start; waited > 2050*core.Millisecond+tickFast || e.counts[CounterTimeout] != 1 {
		t.Errorf("waited %v: %v", waited, e.count())
	}
	// An answer that comes after all of it, before the tick that would have said so.
	f.NewStream(2).RequestHeaders(get("/api/x"))
	f.Flush()
	first, _, _ = e.check()
	e.now += 2050 * core.Millisecond
	if first.answer(replied(later())); len(e.calls) != 0 || e.responses[2].Status != 429 {
		t.Errorf("%d calls, answered %v", len(e.calls), e.responses)
	}
}

func TestAClientThatLeavesTheLine(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, patient(t))
	s, call := inLine(t, e, f, 1)
	s.Done()
	call.answer(replied(left(3)))
	if f.Tick(); len(e.resumed)+len(e.responses)+len(f.calls.standing) != 0 {
		t.Errorf("resumed %v, answered %v", e.resumed, e.responses)
	}
}

// TestWhoCannotStandIsRefused: no call can be made, or too many stand there already.
func TestWhoCannotStandIsRefused(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, patient(t))
	for id, prepare := range []func(){
		func() { e.refuses = errNo },
		func() { e.panics = "Call" },
		func() { f.calls.standing = make([]*Stream, standingMax) },
	} {
		e.refuses = nil
		f.NewStream(uint32(id)).RequestHeaders(get("/api/x"))
		f.Flush()
		first, _, _ := e.check()
		prepare()
		if first.answer(replied(later())); e.responses[uint32(id)].Status != 429 || len(e.resumed) != 0 {
			t.Errorf("%d: resumed %v, answered %v", id, e.resumed, e.responses)
		}
	}
}

// TestAnotherBridgeMayKnowThePolicyOfWhoStandsInLine: the call is made again, for what is left of its time, twice at most.
func TestAnotherBridgeMayKnowThePolicyOfWhoStandsInLine(t *testing.T) {
	for know := range againMax + 2 {
		e := newEnvoy(t)
		f := withPolicy(t, e, patient(t), "poll: 60m")
		s, call := inLine(t, e, f, 1)
		for n := range know {
			e.now += 100 * core.Millisecond
			call.answer(replied(wire.Answer{Status: wire.StatusUnknown}))
			if n == againMax {
				break
			}
			var items []wire.Item
			if call, _, items = e.check(); len(items) != 1 || items[0].Kind != wire.KindWait || int(call.TimeoutMillis) != 2050-100*(n+1) {
				t.Fatalf("asks %+v in %d ms", items, call.TimeoutMillis)
			}
		}
		want := map[string]int{"policy_loaded": 1, "allowed": 1, "delayed": 1, "policy_unknown": know}
		if know > againMax {
			want = map[string]int{"policy_loaded": 1, "degraded": 1, "policy_unknown": know}
		} else {
			if len(f.calls.standing) != 1 || s.state != standing {
				t.Errorf("%d stand in line", len(f.calls.standing))
			}
			call.answer(replied(left(3)))
		}
		if know == 0 {
			delete(want, "policy_unknown")
		}
		equalCounts(t, e, want)
		if !slices.Equal(e.resumed, []uint32{1}) || len(e.calls) != 0 || f.calls.held != 0 {
			t.Errorf("resumed %v, %d calls, %d bytes held", e.resumed, len(e.calls), f.calls.held)
		}
	}
}

// TestWhoStandsInLineOnceMoreKeepsItsDeadline, though the clock goes back by an hour.
func TestWhoStandsInLineOnceMoreKeepsItsDeadline(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, patient(t))
	_, call := inLine(t, e, f, 1)
	e.now -= core.Hour
	call.answer(replied(wire.Answer{Status: wire.StatusUnknown}))
	if call, _, _ = e.check(); call.TimeoutMillis != 2050 {
		t.Errorf("%d ms", call.TimeoutMillis)
	}
	e.now += 2050 * core.Millisecond
	if f.Tick(); !slices.Equal(e.resumed, []uint32{1}) || len(f.calls.standing) != 0 {
		t.Errorf("resumed %v, %d stand in line", e.resumed, len(f.calls.standing))
	}
	call.answer(replied(left(1)))
	if len(e.resumed) != 1 {
		t.Error("a late answer counts")
	}
}
