// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/racescale"
	"github.com/penstock/penstock/internal/test/redistest"
)

// ringsOf returns stores of nodes that know only the previous ring, both rings, and only the new
// ring.
func ringsOf(t *testing.T, before, now []*redistest.Server) (old, both, changed *Store) {
	t.Helper()
	var addrs []string
	for _, server := range before {
		addrs = append(addrs, server.Addr)
	}
	options := Options{Timeout: TimeoutMax}
	if len(before) == 1 { // the single server before there was a ring
		old = open(t, Options{URL: before[0].URL(), Timeout: TimeoutMax})
	} else {
		old = openRing(t, before, options)
	}
	changed = openRing(t, now, options)
	options.AddrsBefore = addrs
	return old, openRing(t, now, options), changed
}

// TestARingChangesWithoutNewAllowances adds and removes a server of a ring, in steps: nodes know
// the previous ring, then both rings, and then only the new ring. Nodes of two consecutive steps
// run at the same time, and no limit of any algorithm is exceeded. Without the step with both
// rings, limits are exceeded.
func TestARingChangesWithoutNewAllowances(t *testing.T) {
	t.Parallel()
	three := startRing(t, 3)
	for _, tt := range []struct {
		name        string
		before, now []*redistest.Server
	}{
		{"a server comes", three[:2], three},
		{"a server goes", three, three[:2]},
		{"one server becomes a ring", three[:1], three},
	} {
		t.Run(tt.name, func(t *testing.T) {
			old, both, changed := ringsOf(t, tt.before, tt.now)
			for _, text := range []string{"20/1m fixed_window", "20/1m", "20/1m sliding_log", "20/1m burst 20"} {
				limit := limittest.Parse(t, text)
				w := ringWindows{t: t, rule: tt.name, limit: &limit, rng: rand.New(rand.NewPCG(1, 2))}
				for _, stores := range [][]*Store{{old}, {old, both}, {both}, {both, changed}, {changed}} {
					if most := w.sendWindow(stores...); most > 20 {
						t.Errorf("%s, window %d: %d admitted", text, w.windows, most)
					}
				}
				if most := w.sendWindow(old, changed); most <= 20 {
					t.Errorf("%s: nodes with different rings admit %d: the traffic is too weak", text, most)
				}
			}
		})
	}
}

// ringWindows sends requests of some clients in consecutive windows.
type ringWindows struct {
	t       *testing.T
	rule    string
	limit   *counter.Limit
	rng     *rand.Rand
	windows int
}

// ringWindows.sendWindow sends requests of some clients in a new window, within one second and each
// through a random one of the stores. It returns the greatest number of requests that were admitted
// for one client.
func (w *ringWindows) sendWindow(stores ...*Store) (most int64) {
	w.t.Helper()
	at := counter.Micros(1_700_000_050)*counter.Second + counter.Micros(w.windows)*counter.Minute
	w.windows++
	admitted := map[string]int64{}
	clients := max(8, racescale.Fewer(20))
	for i := range clients * 45 {
		key := fmt.Sprintf("rl1:%s:{%d}:%s", w.rule, i%clients, w.limit)
		s := stores[w.rng.IntN(len(stores))]
		s.pinned.Store(int64(at + counter.Micros(i)*counter.Millisecond))
		checks, results := []counter.Check{{Key: []byte(key), Limit: w.limit, Cost: 1}}, [1]counter.Result{}
		if err := s.Take(context.Background(), checks, results[:]); err != nil {
			w.t.Fatal(err)
		}
		if !results[0].Denied {
			admitted[key]++
			most = max(most, admitted[key])
		}
	}
	return most
}

// TestMovedCounters tests every operation on a counter that moves.
func TestMovedCounters(t *testing.T) {
	t.Parallel()
	servers := startRing(t, 3)
	old, both, changed := ringsOf(t, servers[:2], servers)
	limit := limittest.Parse(t, "10/1h fixed_window")
	key := movedKey(t, both)
	at := counter.Micros(1_700_002_800) * counter.Second
	take := func(s *Store, c counter.Check) counter.Result {
		t.Helper()
		s.pinned.Store(int64(at))
		c.Key, c.Limit = []byte(key), &limit
		var results [1]counter.Result
		if err := s.Take(context.Background(), []counter.Check{c}, results[:]); err != nil {
			t.Fatal(err)
		}
		return results[0]
	}
	left := func(s *Store) int64 { return take(s, counter.Check{Op: counter.OpLook}).Remaining }
	wants := func(what string, wantOld, wantNew int64) {
		t.Helper()
		if o, n := left(old), left(changed); o != wantOld || n != wantNew {
			t.Errorf("%s: %d left on the server of before and %d on the new one, want %d and %d", what, o, n, wantOld, wantNew)
		}
	}
	take(old, counter.Check{Cost: 4})
	wants("charged before", 6, 10)
	charge := take(both, counter.Check{Cost: 3})
	if charge.Granted != 3 || charge.Remaining != 3 {
		t.Errorf("charged on both: %+v", charge)
	}
	wants("charged on both", 3, 7)
	if r := take(both, counter.Check{Cost: 4}); !r.Denied || r.Remaining != 3 {
		t.Errorf("a request that one server denies: %+v", r)
	}
	wants("denied by one", 3, 7)
	if r := take(both, counter.Check{Op: counter.OpUpTo, Cost: 1, Min: 1, Max: 10, ShareMille: 1000, Age: counter.Second}); r.Granted != 1 {
		t.Errorf("a lease of a counter that moves: %+v, want 1 unit", r)
	}
	wants("leased", 2, 6)
	take(both, counter.Check{Op: counter.OpRefund, Cost: 3, Receipt: charge.Receipt})
	wants("refunded", 5, 9)
	if r := take(both, counter.Check{Op: counter.OpLook}); r.Remaining != 5 {
		t.Errorf("a look: %+v, want 5 left", r)
	}
	take(both, counter.Check{Op: counter.OpForce, Cost: 7})
	wants("forced", 0, 2)
	take(both, counter.Check{Op: counter.OpReset})
	wants("reset", 10, 10)
}

// movedKey returns a key whose server changes.
func movedKey(t *testing.T, s *Store) string {
	t.Helper()
	for i := range 1000 {
		key := fmt.Sprintf("rl1:ring:{moves%d}", i)
		if _, moved := s.placeBefore([]byte(key)); moved {
			return key
		}
	}
	t.Fatal("no key moves")
	return ""
}

// TestViolationsOfMovedCounters tests that a denial by only the previous server of a counter is a
// violation for a penalty on another server. It also tests that nodes of two consecutive steps
// count violations together.
func TestViolationsOfMovedCounters(t *testing.T) {
	t.Parallel()
	three := startRing(t, 3)
	for _, tt := range []struct {
		name        string
		before, now []*redistest.Server
		suits       func(s *Store, penalty, limit []byte) bool
	}{
		{"the limit comes to the server of the penalty", three, three[:2], func(s *Store, penalty, limit []byte) bool {
			_, penaltyMoves := s.placeBefore(penalty)
			_, limitMoves := s.placeBefore(limit)
			return !penaltyMoves && limitMoves && s.placeOf(penalty) == s.placeOf(limit)
		}},
		{"the limit leaves the server of the penalty", three[:2], three, func(s *Store, penalty, limit []byte) bool {
			_, penaltyMoves := s.placeBefore(penalty)
			place, limitMoves := s.placeBefore(limit)
			return !penaltyMoves && limitMoves && s.placeOf(penalty) == place
		}},
		{"the penalty moves", three[:2], three, func(s *Store, penalty, limit []byte) bool {
			from, penaltyMoves := s.placeBefore(penalty)
			_, limitMoves := s.placeBefore(limit)
			return penaltyMoves && !limitMoves && s.placeOf(limit) != from
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			old, both, changed := ringsOf(t, tt.before, tt.now)
			checks := request(t)
			for i := 0; ; i++ {
				checks[0].Key = fmt.Appendf(nil, "rl1:%d:~penalty:{p%d}", len(tt.name), i%100)
				checks[1].Key = fmt.Appendf(nil, "rl1:%d:{l%d}:3600s:fw", len(tt.name), i)
				if tt.suits(both, checks[0].Key, checks[1].Key) {
					break
				}
				if i == 100_000 {
					t.Fatal("there are no such keys")
				}
			}
			ask(t, old, checks...)
			if r := ask(t, both, checks...); !r[1].Denied {
				t.Fatalf("%+v, want a denial by the limit", r)
			}
			look := checks[0]
			look.Op = counter.OpLook
			for name, s := range map[string]*Store{"before": old, "both": both, "changed": changed} {
				waitUntil(t, "the penalty holds for a node of the step "+name, func() bool { return ask(t, s, look)[0].Denied })
				if r := ask(t, s, look); r[0].Violations != 1 {
					t.Errorf("%s: %d violations, want 1", name, r[0].Violations)
				}
			}
		})
	}
}

// TestRingsCountTogether tests which nodes may run at the same time.
func TestRingsCountTogether(t *testing.T) {
	const old, both, changed, other = "a:1,b:1", "a:1,b:1,c:1 before a:1,b:1", "a:1,b:1,c:1", "a:1,c:1"
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{old, old, true}, {old, both, true}, {both, both, true}, {both, changed, true}, {changed, changed, true},
		{old, changed, false}, {other, both, false}, {other, old, false},
	} {
		if got := RingsCountTogether(tt.a, tt.b); got != tt.want {
			t.Errorf("%q and %q: %v, want %v", tt.a, tt.b, got, tt.want)
		}
		if got := RingsCountTogether(tt.b, tt.a); got != tt.want {
			t.Errorf("%q and %q: %v, want %v", tt.b, tt.a, got, tt.want)
		}
	}
}

// TestAddrsBeforeAreChecked tests that a mistake in addrs_before is an error that names it.
func TestAddrsBeforeAreChecked(t *testing.T) {
	addrs := []string{"a:1", "b:1"}
	for _, tt := range []struct {
		options Options
		want    string
	}{
		{Options{Mode: ModeRing, Addrs: addrs, AddrsBefore: []string{"b:1", "a:1"}}, "addrs_before are the same servers as addrs"},
		{Options{Mode: ModeCluster, Addrs: addrs, AddrsBefore: []string{"c:1"}}, "addrs_before goes with mode ring"},
		{Options{URL: "redis://a:1", AddrsBefore: []string{"c:1"}}, "addrs_before goes with mode ring"},
		{Options{Mode: ModeRing, Addrs: addrs, AddrsBefore: []string{"c:1", "C:1"}}, `addrs_before[1] "C:1" is listed twice`},
		{Options{Mode: ModeRing, Addrs: addrs, AddrsBefore: []string{"redis://c"}}, "addrs_before[0] is not a host:port"},
	} {
		s, err := New(tt.options)
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %q", tt.options, err, tt.want)
		}
	}
}
