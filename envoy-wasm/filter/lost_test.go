// SPDX-License-Identifier: Apache-2.0

package filter

import (
	encoding "encoding/base64"
	"slices"
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/wire"
)

// TestNoRiderIsLost where a panic comes between a call's end and its riders' answers, in what is none of theirs.
func TestNoRiderIsLost(t *testing.T) {
	for _, method := range []string{"Now", "Count"} {
		t.Run(method, func(t *testing.T) {
			e := newEnvoy(t)
			f := withPolicy(t, e, shop(t, "10/1m"))
			f.calls.settling = append(f.calls.settling, new(due))
			for id := range uint32(2) {
				f.NewStream(id).RequestHeaders(get("/api/x"))
			}
			f.Flush()
			c, _, items := e.check()
			if len(items) != 3 {
				t.Fatalf("%d items", len(items))
			}
			// What is settled stands behind those who ask, so that it must come first to be in their way.
			f.calls.flight.riding[0], f.calls.flight.riding[2] = f.calls.flight.riding[2], f.calls.flight.riding[0]
			f.calls.failures = failuresMax
			e.panics = method
			if c.answer(Reply{Status: 500}); len(e.resumed) != 2 || e.panics != "" {
				t.Errorf("resumed %v: %v", e.resumed, e.count())
			}
			f.calls.failures = 0
			admitted(t, e, f, 7, left(1), get("/api/x"))
		})
	}
}

// TestAClockThatGoesBack holds up neither the search for a bridge that was gone, nor policies, nor what is remembered.
func TestAClockThatGoesBack(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, openToPremium(t, core.Identify{Kind: core.IdentifyAPIKey}))
	admitted(t, e, f, 1, verdictOf(wire.Answer{}, found(0, "premium")), get("/api/x", "x-api-key", "one"))
	f.calls.failures, f.calls.openTill = failuresMax, e.now+openFor
	f.poll.due = e.now + f.config.Poll
	e.now -= core.Hour
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

// TestAnotherBridgeMayKnowThePolicy: of several behind one name. What they all do not know on_error decides, and at once.
func TestAnotherBridgeMayKnowThePolicy(t *testing.T) {
	unknown := replied(wire.Answer{Status: wire.StatusUnknown}, wire.Answer{Status: wire.StatusUnknown})
	for _, c := range []struct {
		know int // the so manieth time
		want map[string]int
	}{
		{0, map[string]int{"allowed": 2}},
		{1, map[string]int{"allowed": 2, "policy_unknown": 2}},
		{againMax, map[string]int{"allowed": 2, "policy_unknown": 2 * againMax}},
		{againMax + 1, map[string]int{"degraded": 2, "policy_unknown": 2 * (againMax + 1)}},
	} {
		e := newEnvoy(t)
		f := withPolicy(t, e, shop(t, "10/1m"), "poll: 60m")
		f.NewStream(1).RequestHeaders(get("/api/x"))
		f.NewStream(2).RequestHeaders(get("/api/x"))
		asked := 0
		for f.Flush(); len(e.calls) > 0; f.Flush() {
			call, _, items := e.check()
			if len(items) != 2 {
				t.Fatalf("asks about %d", len(items))
			}
			if asked++; asked > c.know {
				call.answer(replied(left(9), left(8)))
			} else {
				call.answer(unknown)
			}
		}
		c.want["policy_loaded"] = 1
		equalCounts(t, e, c.want)
		if !slices.Equal(e.resumed, []uint32{1, 2}) || f.calls.held != 0 {
			t.Errorf("resumed %v, %d bytes held", e.resumed, f.calls.held)
		}
	}
}

// TestWhoAsksAnotherKeepsItsDeadline.
func TestWhoAsksAnotherKeepsItsDeadline(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shop(t, "10/1m"))
	f.NewStream(1).RequestHeaders(get("/api/x"))
	f.Flush()
	call, _, _ := e.check()
	call.answer(replied(wire.Answer{Status: wire.StatusUnknown}))
	f.Flush()
	e.timeOut(f)
	if !slices.Equal(e.resumed, []uint32{1}) || e.counts[CounterTimeout] != 1 {
		t.Errorf("resumed %v, counted %v", e.resumed, e.count())
	}
}

// TestAPolicyOfEnvoysThatIsUnknownIsAskedFor: Envoy may take half a minute to find a control plane again that was restarted
// with another policy. While the bridge knows what Envoy gave out it is asked for none.
func TestAPolicyOfEnvoysThatIsUnknownIsAskedFor(t *testing.T) {
	e, first := newEnvoy(t), shop(t, "10/1m")
	f, err := New(e, []byte("policy: "+encoding.StdEncoding.EncodeToString(first.AppendCompact(nil, "v1"))))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Start(); err != nil {
		t.Fatal(err)
	}
	polls := func() (n int) {
		for range 100 {
			e.now += 100 * core.Millisecond
			f.Tick()
		}
		return len(e.calls)
	}
	if n := polls(); n != 0 {
		t.Fatalf("asked for a policy %d times though Envoy gave one", n)
	}
	unknown := replied(wire.Answer{Status: wire.StatusUnknown})
	f.NewStream(1).RequestHeaders(get("/api/x"))
	f.Flush()
	for _, answer := range []Reply{unknown, replied(left(9))} { // of two bridges one has yet to read what Envoy was given
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
	for i, answer := range []Reply{{}, {Status: 503}} { // a bridge that is not there yet is asked again
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
	e.publish(f, shop(t, "10/1m"), "v0") // by a bridge that has yet to read the edit
	if polls() != 1 {
		t.Fatal("what one bridge said was taken for good")
	}
	e.publish(f, shop(t, "20/1m"), "v2")
}

// TestAnUnknownPolicyIsAskedForSoon: a bridge that was started with another one knows none before it, and until the filter
// has that one nothing is limited.
func TestAnUnknownPolicyIsAskedForSoon(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shop(t, "10/1m"), "poll: 60m")
	for range 2 {
		asked := e.now
		f.NewStream(1).RequestHeaders(get("/api/x"))
		f.Flush()
		for range againMax + 1 {
			c, _, _ := e.check()
			c.answer(replied(wire.Answer{Status: wire.StatusUnknown}))
			f.Flush()
		}
		for len(e.calls) == 0 && e.now < asked+core.Second {
			e.now += TickMillis * core.Millisecond
			f.Tick()
		}
		if waited := e.now - asked; waited != pollMin {
			t.Fatalf("asked after %v", waited)
		}
		e.publish(f, shop(t, "10/1m"), "v2")
	}
}
