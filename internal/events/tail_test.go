// SPDX-License-Identifier: Apache-2.0

package events

import (
	"fmt"
	"testing"
	"time"
)

// TestTail tests that a reader gets every event once, in order, and gets the number of those that
// it has missed.
func TestTail(t *testing.T) {
	var c clock
	l := New(c.options())
	deny := func(rule, client string) {
		hand(l, Key{Policy: "shop", Rule: rule, Decision: "denied", Kind: "user", Client: client}, Details{Settings: allDenied, Denied: true})
	}
	var from uint64
	read := func(f Filter) (texts []string, missed uint64) {
		t.Helper()
		got := l.Tail(from, f.Wants)
		for _, e := range got.Events {
			texts = append(texts, fmt.Sprint(e.Kind, " ", e.Rule, " ", e.Client, " ", e.Count))
		}
		missed, from = got.From-from, got.Next
		return texts, missed
	}
	want := func(got []string, missed, wantMissed uint64, want ...string) {
		t.Helper()
		if fmt.Sprint(got) != fmt.Sprint(want) || missed != wantMissed {
			t.Errorf("read %q and missed %d, want %q and %d", got, missed, want, wantMissed)
		}
	}
	deny("api", "ann")
	deny("api", "ann")
	got, missed := read(Filter{})
	want(got, missed, 0)
	c.second()
	got, missed = read(Filter{})
	want(got, missed, 0, "denied api user:ann 2")
	deny("api", "bob")
	deny("search", "ann")
	l.Want()
	l.Note(Event{Kind: KindDegraded, State: "began"})
	c.second()
	before := from
	got, missed = read(Filter{Client: "user:ann"})
	want(got, missed, 0, "degraded   0", "denied search user:ann 1")
	from = before
	got, missed = read(Filter{Rule: "api"})
	want(got, missed, 0, "degraded   0", "denied api user:bob 1")
	got, missed = read(Filter{})
	want(got, missed, 0)
	for range 5 {
		for i := range EventsMax {
			deny("api", fmt.Sprint(i))
		}
		c.second()
	}
	got, missed = read(Filter{})
	if len(got) != TailMax || missed != 5*EventsMax-TailMax {
		t.Errorf("read %d and missed %d of %d events", len(got), missed, 5*EventsMax)
	}
	for i := range 2 * EventsMax {
		deny("api", fmt.Sprint(i))
	}
	c.second()
	got, _ = read(Filter{Client: "user:nobody"})
	want(got, 0, 0, fmt.Sprint("dropped   ", EventsMax))
}

// TestAddressesAreFiltered tests that a filter by an address also selects events that show only the
// network of that address.
func TestAddressesAreFiltered(t *testing.T) {
	for _, c := range []struct {
		filter, client string
		want           bool
	}{
		{"ip:192.0.2.7", "ip:192.0.2.7", true},
		{"ip:192.0.2.7", "ip:192.0.2.8", false},
		{"ip:192.0.2.7", "ip:192.0.2.0/24", true},
		{"ip:192.0.2.0/24", "ip:192.0.2.7", true},
		{"ip:2001:db8::7", "ip:2001:db8::/64", true},
		{"ip:2001:db8:1::7", "ip:2001:db8::/64", false},
		{"user:ann", "user:ann", true},
		{"user:ann", "user:anna", false},
		{"user:ann", "ip:192.0.2.7", false},
		{"ip:192.0.2.7", "ip", false},
	} {
		f := Filter{Client: c.filter}
		if got := f.Wants(&Event{Kind: KindDenied, Client: c.client, Time: time.Unix(0, 0)}); got != c.want {
			t.Errorf("%s selects %s: %v, want %v", c.filter, c.client, got, c.want)
		}
	}
}
