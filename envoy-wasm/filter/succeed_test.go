// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/counter"
)

// TestAFilterSucceedsAnother: a filter takes over its predecessor's policy if both use the same
// bridge.
func TestAFilterSucceedsAnother(t *testing.T) {
	const bridge = "cluster: a\nhost: b\ntoken: c\n"
	for settings, succeeds := range map[string]bool{
		bridge: true, bridge + "deadline: 1s\npoll: 60m\non_error: deny\nxff_appended: false": true,
		"cluster: a\nhost: b": false, "cluster: a\nhost: c\ntoken: c": false, "cluster: c\nhost: b\ntoken: c": false,
	} {
		e := newEnvoy(t)
		before := withPolicy(t, e, withKeys(t), strings.Split(bridge, "\n")...)
		admitted(t, e, before, 1, withVerdict(admittedWith(1), 0, 0), get("/api/x", "x-api-key", "k"))
		f, err := New(e, []byte(settings))
		if err != nil {
			t.Fatal(err)
		}
		if f.Succeed(before) != succeeds {
			t.Errorf("%q: %v", settings, !succeeds)
		}
		if err := f.Start(); err != nil {
			t.Fatal(err)
		}
		poll := e.calls[len(e.calls)-1]
		if got := slices.Contains(poll.Header, [2]string{"if-none-match", `"v1"`}); got != succeeds || poll.Path != policyPath {
			t.Errorf("%q: asks %q", settings, poll.Header)
		}
		poll.answer(Reply{Status: 304})
		e.calls = nil
		if !succeeds {
			continue
		}
		admitted(t, e, f, 2, admittedWith(1), get("/api/x"))
		// Remembered credentials are not shared, and after the takeover neither filter uses the
		// other's policy.
		before.policy = nil
		admitted(t, e, f, 3, withVerdict(admittedWith(1), 0, 0), get("/api/x", "x-api-key", "k"))
		if e.counts[CounterNoPolicy]+e.counts[CounterPanic] != 0 || e.counts[CounterPolicyLoaded] != 1 {
			t.Errorf("%q: %v", settings, e.count())
		}
	}
}

// TestASuccessorWithAnotherBridge: receipts are sent only to the bridge that sealed them.
func TestASuccessorWithAnotherBridge(t *testing.T) {
	b := newLedger(t, shopLeased(t, "2000/1m fixed_window"), 2000)
	b.requests(300, counter.Millisecond)
	b.passTime(100 * counter.Millisecond)
	if b.held == 0 || b.held > 2000-300-b.left[0] {
		t.Fatalf("%d in hand, %d left", b.held, b.left[0])
	}
	b.f.End()
	if b.every != 0 {
		t.Errorf("it has ended and is told the time every %d ms", b.every)
	}
	wakes := b.wakes
	other, err := New(b, []byte("cluster: another"))
	if err != nil {
		t.Fatal(err)
	}
	if other.Inherit(b.f) || b.wakes != wakes || b.held != 0 {
		t.Errorf("woken %d times, %d in hand", b.wakes-wakes, b.held)
	}
	heir, err := New(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time, there is nothing left to take over
		if !heir.Inherit(b.f) {
			t.Error("does not inherit from one of its own bridge")
		}
	}
	b.f = heir
	b.serve()
	if b.left[0] != 2000-300 {
		t.Errorf("%d are left", b.left[0])
	}
}

// TestAFilterKeepsItsPolicy: a filter keeps a policy that it already has, whether from Envoy or
// from the bridge.
func TestAFilterKeepsItsPolicy(t *testing.T) {
	e := newEnvoy(t)
	other := withPolicy(t, e, shopPolicy(t, "10/1m"))
	own := withPolicy(t, e, shopPolicy(t, "20/1m"))
	if before := own.policy; !own.Succeed(other) || own.policy != before {
		t.Error("its own gives way")
	}
	none, err := New(e, nil)
	if err != nil {
		t.Fatal(err)
	}
	if none.Succeed(none) || none.policy != nil {
		t.Error("a policy out of nothing")
	}
}

// TestAPanicLeavesNoTwoSuccessors: units that one filter has begun to take over are not taken over
// by another filter, and the gauge does not keep units of an ended filter.
func TestAPanicLeavesNoTwoSuccessors(t *testing.T) {
	b := newLedger(t, shopLeased(t, "2000/1m fixed_window"), 2000)
	b.requests(300, counter.Millisecond)
	if b.passTime(100 * counter.Millisecond); b.held == 0 {
		t.Fatal("nothing is in hand")
	}
	for range 3 {
		b.f.calls.settling = append(b.f.calls.settling, &dueSettlement{receipt: "r"})
	}
	b.panics = "Elapsed"
	if b.f.End(); b.panics != "" || b.held != 0 {
		t.Errorf("%d units are in the hand of one that has ended", b.held)
	}
	heir, err := New(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	heir.calls.settling = slices.Repeat([]*dueSettlement{new(dueSettlement)}, settlingMax-2)
	b.panics = "Count" // Count panics for the last of the three, for which there is no room
	heir.Inherit(b.f)
	other, err := New(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	if other.Inherit(b.f); b.panics != "" || len(heir.calls.settling) != settlingMax || len(other.calls.settling) != 0 {
		t.Errorf("%d go to one and %d to another", len(heir.calls.settling), len(other.calls.settling))
	}
}
