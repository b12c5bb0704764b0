// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"slices"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// passTicks advances the clock, calls the ticks that the filter has requested, and returns their
// number. Polls are answered with "not modified".
func (e *fakeEnvoy) passTicks(f *Filter, span counter.Micros) (ticks int) {
	for end := e.now + span; ; ticks++ {
		if e.ticks > end {
			e.now = end
			return ticks
		}
		e.now = max(e.now, e.ticks)
		e.ticks += counter.Micros(e.every) * counter.Millisecond
		f.Tick()
		for i, c := range slices.Backward(e.calls) {
			if c.Path == policyPath {
				e.calls = slices.Delete(e.calls, i, i+1)
				c.answer(Reply{Status: 304})
			}
		}
	}
}

// TestTicksAreFewWhileNothingWaits: an idle filter has hardly more ticks than polls.
func TestTicksAreFewWhileNothingWaits(t *testing.T) {
	for setting, most := range map[string]int{"poll: 1s": 12, "poll: 100ms": 105, "poll: 60m": 12} {
		e := newEnvoy(t)
		f := withPolicy(t, e, shopPolicy(t, "10/1m"), setting)
		e.passTicks(f, counter.Second)
		if ticks := e.passTicks(f, 10*counter.Second); ticks > most {
			t.Errorf("%s: %d ticks in ten seconds", setting, ticks)
		}
		admitted(t, e, f, 1, admittedWith(1), get("/api/x"))
		if ticks := e.passTicks(f, 10*counter.Second); ticks > most+quietTicks {
			t.Errorf("%s: %d ticks in the ten seconds after a request", setting, ticks)
		}
	}
}

// TestPollsComeInTime: polls are on time, however slow the ticks are.
func TestPollsComeInTime(t *testing.T) {
	for setting, every := range map[string]counter.Micros{"poll: 100ms": 100 * counter.Millisecond, "poll: 1s": counter.Second, "poll: 1m": counter.Minute} {
		e := newEnvoy(t)
		f := withPolicy(t, e, shopPolicy(t, "10/1m"), setting)
		for range 5 {
			asked := f.poll.asked
			for f.poll.asked == asked {
				e.passTicks(f, tickFast)
			}
			if took := f.poll.asked - asked; took < every || took > every+tickFast {
				t.Errorf("%s: asked after %v", setting, took)
			}
		}
	}
}

// TestTicksAreQuickWhileSomethingWaits: deadlines are kept after any idle time.
func TestTicksAreQuickWhileSomethingWaits(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, throttledPolicy(t))
	for i, idle := range []counter.Micros{0, 50 * counter.Millisecond, 3333 * counter.Millisecond, counter.Hour} {
		e.passTicks(f, idle)
		start := e.now
		s := f.NewStream(1)
		s.RequestHeaders(get("/api/x"))
		f.Flush()
		e.check()
		for s.state == waiting {
			e.passTicks(f, tickFast)
		}
		if waited := e.now - start; waited > f.silentFor()+tickFast {
			t.Errorf("after %v a request waited %v", idle, waited)
		}

		f.calls.flight, f.calls.failures = nil, 0
		start = e.now
		s, _ = sendThrottled(t, e, f, uint32(2+i))
		for s.state == throttleQueued {
			e.passTicks(f, tickFast)
		}
		if waited := e.now - start; waited > 2*counter.Second+f.silentFor()+tickFast {
			t.Errorf("after %v a request stood for %v", idle, waited)
		}
	}
}

// TestAWakeThatNeverComes: if the host never wakes the filter, deadlines are still kept, however
// slow the ticks were.
func TestAWakeThatNeverComes(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, throttledPolicy(t))
	e.passTicks(f, counter.Hour)
	start := e.now
	s := f.NewStream(1)
	s.RequestHeaders(get("/api/x"))
	for s.state == waiting {
		e.passTicks(f, tickFast)
	}
	if waited := e.now - start; waited > f.silentFor()+tickFast {
		t.Errorf("a request waited %v", waited)
	}
}

// TestTicksLookForABridgeThatIsGone: the filter calls a bridge that is down again at the intended
// times.
func TestTicksLookForABridgeThatIsGone(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "10/1m"), "poll: 60m")
	e.passTicks(f, 5*counter.Second)
	for id := range uint32(failuresMax) {
		f.NewStream(id).RequestHeaders(get("/api/x"))
		f.Flush()
		c, _, _ := e.check()
		c.answer(Reply{Status: 503})
	}
	for range 4 {
		failed := e.now
		for len(e.calls) == 0 {
			e.passTicks(f, tickFast)
		}
		if took := e.now - failed; took < openFor || took > openFor+2*tickFast {
			t.Errorf("looked after %v", took)
		}
		c, _, items := e.check()
		if e.passTicks(f, 50*counter.Millisecond); len(items) != 0 || len(e.calls) != 0 {
			t.Fatalf("%d questions, %d more calls", len(items), len(e.calls))
		}
		c.answer(Reply{Status: 504})
	}
}

// TestAMissingPolicyIsPolledOften: without a policy, even a filter that polls once an hour soon
// finds a bridge that starts late.
func TestAMissingPolicyIsPolledOften(t *testing.T) {
	e := newEnvoy(t)
	f, err := New(e, []byte("poll: 60m"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Start(); err != nil || len(e.calls) != 1 {
		t.Fatalf("%v, %d calls: a policy is asked for at once", err, len(e.calls))
	}
	for range 3 {
		e.calls[0].answer(Reply{Status: 503})
		e.calls = nil
		for start := e.now; len(e.calls) == 0; {
			if e.now += counter.Micros(e.every) * counter.Millisecond; e.now > start+missingPoll+tickFast {
				t.Fatal("not asked for within a second")
			}
			f.Tick()
		}
	}
	e.publish(f, shopPolicy(t, "10/1m"), "v1")
	e.passTicks(f, 30*counter.Minute)
	if f.poll.asked > e.now-29*counter.Minute {
		t.Error("asked for again before its time")
	}
}

// TestTicksThatCannotBeHad: if Envoy rejects a tick period, the filter retries, and a filter
// without ticks does not start.
func TestTicksThatCannotBeHad(t *testing.T) {
	e := newEnvoy(t)
	f, err := New(e, nil)
	if err != nil {
		t.Fatal(err)
	}
	if e.panics = "TickEvery"; f.Start() == nil {
		t.Error("it starts without ticks")
	}
	e = newEnvoy(t)
	f = withPolicy(t, e, shopPolicy(t, "10/1m"))
	e.passTicks(f, 5*counter.Second)
	e.panics = "TickEvery"
	f.NewStream(1).RequestHeaders(get("/api/x"))
	f.Flush()
	c, _, _ := e.check()
	f.NewStream(2).RequestHeaders(get("/api/x"))
	if c.answer(replyWith(admittedWith(1))); e.every != TickMillis || e.panics != "" {
		t.Errorf("a tick every %d ms while a request waits", e.every)
	}
	c, _, _ = e.check()
	c.answer(replyWith(wire.Answer{Status: wire.StatusOK, Results: admittedWith(1).Results}))
	if !slices.Equal(e.resumed, []uint32{1, 2}) {
		t.Errorf("resumed %v", e.resumed)
	}
}
