// SPDX-License-Identifier: Apache-2.0

package filter

import (
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
			f.calls.riding[0], f.calls.riding[2] = f.calls.riding[2], f.calls.riding[0]
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

// TestAnUnknownPolicyIsAskedForSoon: a bridge that was started with another one knows none before it, and until the filter
// has that one nothing is limited.
func TestAnUnknownPolicyIsAskedForSoon(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shop(t, "10/1m"), "poll: 60m")
	for range 2 {
		asked := e.now
		f.NewStream(1).RequestHeaders(get("/api/x"))
		f.Flush()
		c, _, _ := e.check()
		c.answer(replied(wire.Answer{Status: wire.StatusUnknown}))
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
