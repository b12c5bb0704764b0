// SPDX-License-Identifier: Apache-2.0

package filter

import (
	encoding "encoding/base64"
	"slices"
	"testing"

	"github.com/penstock/penstock/core/compact"
	"github.com/penstock/penstock/core/counter"
	corepolicy "github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// TestNoBatchedRequestIsLost: no request is lost if a panic occurs between the end of a call and
// the delivery of its answers.
func TestNoBatchedRequestIsLost(t *testing.T) {
	for _, method := range []string{"Now", "Count"} {
		t.Run(method, func(t *testing.T) {
			e := newEnvoy(t)
			f := withPolicy(t, e, shopPolicy(t, "10/1m"))
			f.calls.settling = append(f.calls.settling, new(dueSettlement))
			for id := range uint32(2) {
				f.NewStream(id).RequestHeaders(get("/api/x"))
			}
			f.Flush()
			c, _, items := e.check()
			if len(items) != 3 {
				t.Fatalf("%d items", len(items))
			}
			// Put the settlement before the requests, where it could obstruct them.
			f.calls.flight.items[0], f.calls.flight.items[2] = f.calls.flight.items[2], f.calls.flight.items[0]
			f.calls.failures = failuresMax
			e.panics = method
			if c.answer(Reply{Status: 500}); len(e.resumed) != 2 || e.panics != "" {
				t.Errorf("resumed %v: %v", e.resumed, e.count())
			}
			f.calls.failures = 0
			admitted(t, e, f, 7, admittedWith(1), get("/api/x"))
		})
	}
}

// TestAClockThatGoesBack: if the clock goes back, new policies, the expiry of remembered verdicts,
// and the next call to a bridge that was down are not delayed.
func TestAClockThatGoesBack(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, openToPremium(t, corepolicy.Identify{Kind: corepolicy.IdentifyAPIKey}))
	admitted(t, e, f, 1, verdictOf(wire.Answer{}, foundVerdict(0, "premium")), get("/api/x", "x-api-key", "one"))
	f.calls.failures, f.calls.openTill = failuresMax, e.now+openFor
	f.poll.due = e.now + f.config.Poll
	e.now -= counter.Hour
	if f.NewStream(2).RequestHeaders(get("/api/x", "x-api-key", "one")); e.counts[CounterOpen] != 1 {
		t.Errorf("remembered for an hour: %v", e.count())
	}
	f.Tick()
	var paths []string
	for _, c := range e.calls {
		paths = append(paths, c.Path)
		c.answer(Reply{Status: 200})
	}
	if len(paths) != 2 || f.calls.failures != 0 {
		t.Errorf("calls %q", paths)
	}
}

// TestAnotherBridgeMayKnowThePolicy: if a bridge does not have the policy, another bridge behind
// the same name might have it. If no bridge has the policy, even after four polls, the requests are
// denied, because that is not an outage.
func TestAnotherBridgeMayKnowThePolicy(t *testing.T) {
	unknown := replyWith(wire.Answer{Status: wire.StatusUnknown}, wire.Answer{Status: wire.StatusUnknown})
	for _, c := range []struct {
		know int // index of the attempt at which the policy is known
		want map[string]int
	}{
		{0, map[string]int{"allowed": 2}},
		{1, map[string]int{"allowed": 2, "policy_unknown": 2}},
		{againMax, map[string]int{"allowed": 2, "policy_unknown": 2 * againMax}},
		{askedMax, map[string]int{"allowed": 2, "policy_unknown": 2 * askedMax}},
		{askedMax + 1, map[string]int{"denied": 2, "policy_unknown": 2 * (askedMax + 1)}},
	} {
		e := newEnvoy(t)
		f := withPolicy(t, e, shopPolicy(t, "10/1m"), "poll: 60m")
		f.NewStream(1).RequestHeaders(get("/api/x"))
		f.NewStream(2).RequestHeaders(get("/api/x"))
		asked := 0
		for e.nextCheck(f) {
			call, _, items := e.check()
			if len(items) != 2 {
				t.Fatalf("asks about %d", len(items))
			}
			if asked++; asked > c.know {
				call.answer(replyWith(admittedWith(9), admittedWith(8)))
			} else {
				call.answer(unknown)
			}
		}
		c.want["policy_loaded"] = 1
		equalCounts(t, e, c.want)
		want := []uint32{1, 2}
		if c.know > askedMax {
			want = nil
		}
		if !slices.Equal(e.resumed, want) || len(e.responses) != 2-len(want) || f.calls.held != 0 {
			t.Errorf("resumed %v, answered %v, %d bytes held", e.resumed, e.responses, f.calls.held)
		}
	}
}

// nextCheck advances the clock until there is a call about requests, and answers polls with 304.
// nextCheck returns false if no request waits for a call.
func (e *fakeEnvoy) nextCheck(f *Filter) bool {
	for f.Flush(); len(e.calls) == 0 && f.isBusy(); f.Flush() {
		e.passTicks(f, tickFast)
	}
	return len(e.calls) > 0
}

// TestAskingAnotherBridgeKeepsTheDeadline: asking another bridge does not extend a request's
// deadline.
func TestAskingAnotherBridgeKeepsTheDeadline(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "10/1m"))
	f.NewStream(1).RequestHeaders(get("/api/x"))
	f.Flush()
	call, _, _ := e.check()
	call.answer(replyWith(wire.Answer{Status: wire.StatusUnknown}))
	f.Flush()
	e.timeOut(f)
	if !slices.Equal(e.resumed, []uint32{1}) || e.counts[CounterTimeout] != 1 {
		t.Errorf("resumed %v, counted %v", e.resumed, e.count())
	}
}

// TestAnUnknownPolicyOfEnvoyIsFetched: if Envoy's control plane restarts with another policy, Envoy
// can take half a minute to reconnect. The filter fetches the policy itself, unless the bridge has
// the policy that Envoy distributed.
func TestAnUnknownPolicyOfEnvoyIsFetched(t *testing.T) {
	e, first := newEnvoy(t), shopPolicy(t, "10/1m")
	f, err := New(e, []byte("policy: "+encoding.StdEncoding.EncodeToString(compact.AppendPolicy(nil, &first, "v1"))))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Start(); err != nil {
		t.Fatal(err)
	}
	polls := func() (n int) {
		for range 100 {
			e.now += 100 * counter.Millisecond
			f.Tick()
		}
		return len(e.calls)
	}
	if n := polls(); n != 0 {
		t.Fatalf("asked for a policy %d times though Envoy gave one", n)
	}
	unknown := replyWith(wire.Answer{Status: wire.StatusUnknown})
	f.NewStream(1).RequestHeaders(get("/api/x"))
	f.Flush()
	// One of two bridges has not yet read the policy that Envoy got.
	for _, answer := range []Reply{unknown, replyWith(admittedWith(9))} {
		c, _, _ := e.check()
		c.answer(answer)
		f.Flush()
	}
	if n := polls(); n != 0 {
		t.Fatalf("asked for a policy %d times though a bridge knew the one that Envoy gave", n)
	}
	f.NewStream(2).RequestHeaders(get("/api/x"))
	f.Flush()
	for range againMax + 1 {
		c, _, _ := e.check()
		c.answer(unknown)
		f.Flush()
	}
	// A bridge that has not started yet is called again.
	for i, answer := range []Reply{{}, {Status: 503}} {
		if polls() != 1 {
			t.Fatalf("time %d: %d calls, want one for a policy", i, len(e.calls))
		}
		c := e.calls[0]
		e.calls = nil
		c.answer(answer)
	}
	if polls() != 1 {
		t.Fatal("the bridge was given up")
	}
	e.publish(f, shopPolicy(t, "10/1m"), "v0") // from a bridge that has not yet read the edit
	if polls() != 1 {
		t.Fatal("what one bridge said was taken for good")
	}
	e.publish(f, shopPolicy(t, "20/1m"), "v2")
}

// TestAnUnknownPolicyIsFetchedSoon: if the bridge does not have the filter's policy, because the
// bridge was started with another policy, the filter polls after pollMin instead of waiting for its
// interval.
func TestAnUnknownPolicyIsFetchedSoon(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "10/1m"), "poll: 60m")
	for range 2 {
		asked := e.now
		f.NewStream(1).RequestHeaders(get("/api/x"))
		f.Flush()
		for range againMax + 1 {
			c, _, _ := e.check()
			c.answer(replyWith(wire.Answer{Status: wire.StatusUnknown}))
			f.Flush()
		}
		for len(e.calls) == 0 && e.now < asked+counter.Second {
			e.now += TickMillis * counter.Millisecond
			f.Tick()
		}
		if waited := e.now - asked; waited != pollMin {
			t.Fatalf("asked after %v", waited)
		}
		e.publish(f, shopPolicy(t, "10/1m"), "v2")
	}
}

// TestAnUnknownPolicyIsReplacedBeforeTheDecision: requests whose policy no bridge has any more wait
// for the new policy and are decided by it. on_error does not let any of them through.
func TestAnUnknownPolicyIsReplacedBeforeTheDecision(t *testing.T) {
	other := shopPolicy(t, "20/1m")
	other.User = []corepolicy.Source{{Kind: corepolicy.SourceHeader, Name: "X-User"}}
	for name, c := range map[string]struct {
		next    corepolicy.Policy
		version string // the version of the policy in the call after the poll
		want    map[string]int
	}{
		"other limit":  {shopPolicy(t, "20/1m"), "v2", map[string]int{"allowed": 1, "policy_unknown": 3, "policy_loaded": 2}},
		"no rule":      {corepolicy.Policy{Name: "shop"}, "", map[string]int{"allowed": 1, "policy_unknown": 3, "policy_loaded": 2}},
		"other header": {other, "v1", map[string]int{"denied": 1, "policy_unknown": 15, "policy_loaded": 2}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnvoy(t)
			f := withPolicy(t, e, shopPolicy(t, "10/1m"), "poll: 60m")
			s, gone := f.NewStream(1), f.NewStream(2)
			s.RequestHeaders(get("/api/x"))
			gone.RequestHeaders(get("/api/x"))
			unknown := replyWith(wire.Answer{Status: wire.StatusUnknown}, wire.Answer{Status: wire.StatusUnknown})
			f.Flush()
			for range againMax + 1 {
				call, _, _ := e.check()
				call.answer(unknown)
				f.Flush()
			}
			gone.Done()
			if len(e.resumed)+len(e.responses) > 0 {
				t.Fatalf("decided before the poll: resumed %v, answered %v", e.resumed, e.responses)
			}
			for len(e.calls) == 0 {
				e.now += tickFast
				f.Tick()
			}
			e.publish(f, c.next, "v2")
			for e.nextCheck(f) {
				call, reader, items := e.check()
				if reader.Version != c.version || len(items) != 1 {
					t.Fatalf("asks about %d by version %q", len(items), reader.Version)
				}
				if reader.Version == "v2" {
					call.answer(replyWith(admittedWith(9)))
				} else {
					call.answer(replyWith(wire.Answer{Status: wire.StatusUnknown}))
				}
			}
			c.want["policy_unknown"] += againMax + 1 // for the call of the request that has ended
			equalCounts(t, e, c.want)
			if f.calls.held != 0 || len(f.outdated) != 0 {
				t.Errorf("%d bytes held, %d wait", f.calls.held, len(f.outdated))
			}
		})
	}
}
