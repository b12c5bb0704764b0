// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"slices"
	"strings"
	"testing"
)

// TestAFilterSucceedsAnother: it has that one's policy from the start, if both ask the same bridge.
func TestAFilterSucceedsAnother(t *testing.T) {
	const bridge = "cluster: a\nhost: b\ntoken: c\n"
	for settings, succeeds := range map[string]bool{
		bridge: true, bridge + "deadline: 1s\npoll: 60m\non_error: deny\nxff_appended: false": true,
		"cluster: a\nhost: b": false, "cluster: a\nhost: c\ntoken: c": false, "cluster: c\nhost: b\ntoken: c": false,
	} {
		e := newEnvoy(t)
		before := withPolicy(t, e, withKeys(t), strings.Split(bridge, "\n")...)
		admitted(t, e, before, 1, said(left(1), 0, 0), get("/api/x", "x-api-key", "k"))
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
		admitted(t, e, f, 2, left(1), get("/api/x"))
		// What one remembers of credentials is not the other's, and neither takes the other's policy from then on.
		before.policy = nil
		admitted(t, e, f, 3, said(left(1), 0, 0), get("/api/x", "x-api-key", "k"))
		if e.counts[CounterNoPolicy]+e.counts[CounterPanic] != 0 || e.counts[CounterPolicyLoaded] != 1 {
			t.Errorf("%q: %v", settings, e.count())
		}
	}
}

// TestWhoHasAPolicyKeepsIt: neither one that Envoy has given out nor one's own gives way to another's.
func TestWhoHasAPolicyKeepsIt(t *testing.T) {
	e := newEnvoy(t)
	other := withPolicy(t, e, shop(t, "10/1m"))
	own := withPolicy(t, e, shop(t, "20/1m"))
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
