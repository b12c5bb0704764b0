// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"slices"
	"testing"

	"github.com/penstock/penstock/core/counter"
	corepolicy "github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// TestAPanicDecidesARequestByOnError: if any method of the host panics while a request arrives,
// on_error decides the request.
func TestAPanicDecidesARequestByOnError(t *testing.T) {
	for _, deny := range []bool{false, true} {
		for _, method := range []string{"Now", "Property", "Wake"} {
			e := newEnvoy(t)
			p := shopPolicy(t, "10/1m")
			if deny {
				p.OnError = counter.OnErrorDeny
			}
			f := withPolicy(t, e, p)
			e.panics = method
			action := f.NewStream(1).RequestHeaders(get("/api/x"))
			if (action == Pause) != deny || (e.responses[1].Status == 503) != deny || e.counts[CounterPanic] != 1 || len(e.warnings) != 1 {
				t.Errorf("%s, deny %v: %v, answered %v, counted %v, warned %q", method, deny, action, e.responses, e.count(), e.warnings)
			}
			if f.NewStream(2).RequestHeaders(get("/api/x")) != Pause {
				t.Errorf("%s: the next request is not asked about", method)
			}
			f.Flush()
			c, _, items := e.check()
			if c.answer(replyWith(admittedWith(1))); len(items) != 1 || !slices.Equal(e.resumed, []uint32{2}) {
				t.Errorf("%s: asked about %v, resumed %v", method, items, e.resumed)
			}
		}
	}
}

// TestAPanicLosesNoBatchedRequest: if one request of a call causes a panic, the other requests
// still get their answers.
func TestAPanicLosesNoBatchedRequest(t *testing.T) {
	for _, method := range []string{"Resume", "Respond", "Count", "Now"} {
		e := newEnvoy(t)
		f := withPolicy(t, e, withKeys(t))
		for id := uint32(1); id <= 3; id++ {
			f.NewStream(id).RequestHeaders(get("/api/x", "x-api-key", "k"))
		}
		f.Flush()
		c, _, _ := e.check()
		first := withVerdict(admittedWith(9), corepolicy.CredentialUnknown, counter.Minute)
		if method == "Respond" {
			first = withVerdict(denialOver(), corepolicy.CredentialUnknown, counter.Minute)
		}
		if method == "Now" { // the second request is the first one that reads the clock
			first = admittedWith(9)
		}
		e.panics = method
		c.answer(replyWith(first, withVerdict(admittedWith(8), corepolicy.CredentialUnknown, counter.Minute), admittedWith(7)))
		done := slices.Clone(e.resumed)
		for id := range e.responses {
			done = append(done, id)
		}
		slices.Sort(done)
		if !slices.Equal(done, []uint32{1, 2, 3}) || e.counts[CounterPanic] != 1 {
			t.Errorf("%s: resumed %v, answered %v, counted %v", method, e.resumed, e.responses, e.count())
		}
		e.now += 2 * counter.Second // denials are forgotten
		admitted(t, e, f, 9, admittedWith(1), get("/api/x"))
	}
}

// TestAPanicInACall: a call that panics is handled like a call that Envoy rejects.
func TestAPanicInACall(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "10/1m"))
	f.NewStream(1).RequestHeaders(get("/api/x"))
	f.NewStream(2).RequestHeaders(get("/api/x"))
	e.panics = "Call"
	f.Flush()
	if !slices.Equal(e.resumed, []uint32{1, 2}) || e.counts[CounterUnreachable] != 2 || e.counts[CounterPanic] != 1 {
		t.Errorf("resumed %v, counted %v", e.resumed, e.count())
	}
	admitted(t, e, f, 3, admittedWith(1), get("/api/x"))
}

// TestAPanicOnTheTick: after a panic in a tick, expired waits end and the policy is polled at the
// next tick at the latest.
func TestAPanicOnTheTick(t *testing.T) {
	for _, method := range []string{"Now", "Resume", "Call", "Count"} {
		e := newEnvoy(t)
		f := withPolicy(t, e, shopPolicy(t, "10/1m"), "poll: 60m")
		f.NewStream(1).RequestHeaders(get("/api/x"))
		f.NewStream(2).RequestHeaders(get("/api/x"))
		f.Flush()
		e.passTicks(f, f.silentFor()-tickFast)
		e.calls = nil
		e.now += f.config.Poll
		e.panics = method
		f.Tick()
		f.Tick()
		e.now += f.config.Poll
		f.Tick()
		if !slices.Contains(e.resumed, 2) || !slices.ContainsFunc(e.calls, func(c madeCall) bool { return c.Path == policyPath }) || e.panics != "" {
			t.Errorf("%s: resumed %v, %d calls", method, e.resumed, len(e.calls))
		}
	}
}

// TestAPanicInAResponse: the response passes unchanged, and everything that can still be settled is
// settled.
func TestAPanicInAResponse(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, costsPolicy(t, byHeader))
	s := admitted(t, e, f, 1, reservedAnswer(10), get("/api/x"))
	e.panics = "Count" // Count is called for a response without a cost
	if got := s.ResponseHeaders(okHeaders("200"), true); got != nil || e.panics != "" || e.counts[CounterPanic] != 1 {
		t.Errorf("told %v, counted %v", got, e.count())
	}
	s.ResponseBody(nil, true)
	s.Done()
	s = admitted(t, e, f, 2, reservedAnswer(10), get("/api/x"))
	e.panics = "Wake"
	if got := s.ResponseHeaders(okHeaders("200", "x-cost", "4"), true); got == nil || e.counts[CounterPanic] != 2 {
		t.Errorf("told %v, counted %v", got, e.count())
	}
	f.Tick() // sends the items for which Wake failed
	c, _, items := e.check()
	if c.answer(replyWith(wire.Answer{})); len(items) != 1 || items[0].Kind != wire.KindSettle {
		t.Errorf("the bridge is told %v", items)
	}
}

// TestPanicsAreLoggedOnceASecond: panics are logged at most once a second, and all are counted.
func TestPanicsAreLoggedOnceASecond(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "10/1m"))
	for range 10 {
		f.countPanic("x")
	}
	if len(e.warnings) != 1 || e.counts[CounterPanic] != 10 {
		t.Errorf("%q, %v", e.warnings, e.count())
	}
	e.now += counter.Second
	if f.countPanic(errNo); len(e.warnings) != 2 {
		t.Errorf("%q", e.warnings)
	}
}

func TestHeadersThatCannotBeRead(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "10/1m"))
	if s := f.NewStream(1); s.Failed() != Continue || s.ResponseHeaders(okHeaders("200"), true) != nil {
		t.Error("on_error: allow")
	}
}
