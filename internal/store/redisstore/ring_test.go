// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/redistest"
	"github.com/penstock/penstock/internal/test/storetest"
)

func startRing(t testing.TB, n int, args ...string) (servers []*redistest.Server) {
	for range n {
		servers = append(servers, redistest.StartTCP(t, args...))
	}
	return servers
}

func openRing(t testing.TB, servers []*redistest.Server, options Options) *Store {
	options.Mode = ModeRing
	for _, server := range servers {
		options.Addrs = append(options.Addrs, server.Addr)
	}
	return open(t, options)
}

// ringHome returns a function that finds the server that has a key, among the servers of a ring.
func ringHome(s *Store, servers []*redistest.Server) func(key string) *redistest.Server {
	return func(key string) *redistest.Server {
		addr := s.nodeOf(s.placeOf([]byte(key))).address.target
		return servers[slices.IndexFunc(servers, func(server *redistest.Server) bool { return server.Addr == addr })]
	}
}

// TestRingIsForGood pins the server of each slot, because with a different function every counter
// would start again.
func TestRingIsForGood(t *testing.T) {
	addrs := []string{"redis-1.internal:6379", "redis-2.internal:6379", "redis-3.internal:6379"}
	got := map[int]string{}
	for _, slot := range []int{0, 1, 2, 3, 4, 5460, 8191, 16383} {
		got[slot] = addrs[homeOf(slot, addrs)]
	}
	// The server with the greatest hash has the slot. To compute a hash: printf %s
	// 'redis-1.internal:6379 0' | sha256sum.
	want := map[int]string{0: addrs[1], 1: addrs[2], 2: addrs[1], 3: addrs[0], 4: addrs[2], 5460: addrs[2], 8191: addrs[2], 16383: addrs[2]}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestRingGrows: a new server takes an even share from all servers, and no other slot moves. The
// order of addresses does not matter.
func TestRingGrows(t *testing.T) {
	addrs := []string{"10.0.0.1:6379", "10.0.0.2:6379", "10.0.0.3:6379"}
	more := append([]string{"10.0.0.4:6379"}, addrs...)
	had, lost, taken := map[string]int{}, map[string]int{}, 0
	for slot := range slotCount {
		before, after := addrs[homeOf(slot, addrs)], more[homeOf(slot, more)]
		had[before]++
		switch {
		case after == more[0]:
			lost[before]++
			taken++
		case after != before:
			t.Fatalf("slot %d moved from %s to %s, when %s came", slot, before, after, more[0])
		}
	}
	for _, addr := range addrs {
		if n := had[addr]; n < slotCount*31/100 || n > slotCount*36/100 {
			t.Errorf("%s of three has %d slots of %d", addr, n, slotCount)
		}
		if n := lost[addr]; n < had[addr]*22/100 || n > had[addr]*28/100 {
			t.Errorf("%s lost %d of its %d slots to the fourth", addr, n, had[addr])
		}
	}
	if taken < slotCount*23/100 || taken > slotCount*27/100 {
		t.Errorf("the fourth server has %d of %d slots", taken, slotCount)
	}
}

func TestStoreExamOnARing(t *testing.T) {
	t.Parallel()
	servers := startRing(t, 3)
	exam(t, func(t testing.TB) storetest.Subject {
		s := openRing(t, servers, Options{Timeout: TimeoutMax})
		keeper := bareOn(t, ringHome(s, servers)(tag))
		return taggedSubject(s, keeper)
	})
}

// TestServersOfARingTogether checks counters on all servers in one call.
func TestServersOfARingTogether(t *testing.T) {
	t.Parallel()
	s := openRing(t, startRing(t, 3), Options{Timeout: TimeoutMax})
	t.Run("all or nothing", func(t *testing.T) { allOrNothing(t, s, 3*3+2+1+2) })
	t.Run("as one store would", func(t *testing.T) { compareWithModel(t, s) })
	t.Run("a violation elsewhere", func(t *testing.T) { violationElsewhere(t, s) })
	t.Run("many calls", func(t *testing.T) { manyCallsOfACluster(t, s) })
}

// TestRefundAfterADenialElsewhere: between the charge of a bucket and the denial by another server,
// the bucket nearly refills and is charged again. The refund restores only the units that had not
// been refilled.
func TestRefundAfterADenialElsewhere(t *testing.T) {
	t.Parallel()
	s := openRing(t, startRing(t, 3), Options{Timeout: TimeoutMax})
	checks := spreadChecks(t, s, limittest.New(t, "60/1m burst 100"))[:2]
	checks[0].Cost, checks[1].Limit = 100, limittest.New(t, "1/1d fixed_window")
	now := counter.Micros(1_700_049_600) * counter.Second
	s.pinned.Store(int64(now))
	ask(t, s, checks[1])
	deadline := time.Now().Add(TimeoutMax)
	splitCalls := []*splitCall{s.newSplitCall(checks, make([]counter.Result, 2))}
	s.sendUntilDone(t.Context(), deadline, splitCalls)
	s.pinned.Store(int64(now + 99*counter.Second))
	between := checks[0]
	between.Cost = 99
	if r := ask(t, s, between); r[0].Granted != 99 {
		t.Fatalf("%+v", r)
	}
	s.mergeAll(t.Context(), deadline, splitCalls, func(_ int, failure *Failure) {
		if failure != nil {
			t.Error(failure)
		}
	})
	between.Cost = 0
	if r := ask(t, s, between); r[0].Remaining != 1 {
		t.Errorf("%d left, want the one that is still lacking", r[0].Remaining)
	}
}

// TestServerOfARingGone: calls to the counters of a lost server fail, the counters of the other
// servers work, and no other server takes over. When the server returns with its data, its counters
// continue.
func TestServerOfARingGone(t *testing.T) {
	t.Parallel()
	servers := startRing(t, 3, "--appendonly", "yes", "--appendfsync", "always")
	s := openRing(t, servers, Options{Timeout: TimeoutMax})
	limit, home := limittest.New(t, "2/1d fixed_window"), ringHome(s, servers)
	checks := spreadChecks(t, s, limit)
	for i := range checks {
		if r := ask(t, s, checks[i]); r[0].Remaining != 1 {
			t.Fatalf("%+v", r)
		}
	}
	gone := home(string(checks[0].Key))
	gone.Kill()
	together := []counter.Check{checks[0], checks[1], checks[2]} // one key of each server
	for range 20 {
		if err := s.Take(t.Context(), together, make([]counter.Result, 3)); err == nil {
			t.Fatal("a call was answered, one of whose servers is gone")
		}
	}
	for i := range checks {
		mine := home(string(checks[i].Key)) == gone
		err := s.Take(t.Context(), checks[i:i+1], make([]counter.Result, 1))
		if kind := kindOf(err); mine && kind != "connection" && kind != "breaker_open" || !mine && err != nil {
			t.Errorf("check %d, the server of which is gone: %v: %v", i, mine, err)
		}
	}
	for _, server := range servers {
		if server != gone && server.Client().Exists(t.Context(), string(checks[0].Key)).Val() != 0 {
			t.Errorf("%s counts for %s, which is gone", server.Addr, gone.Addr)
		}
	}
	gone.Restart()
	for i := range checks {
		results := make([]counter.Result, 1)
		waitUntil(t, "the server is asked again", func() bool { return s.Take(t.Context(), checks[i:i+1], results) == nil })
		// only the counters of the server that was gone still have their second unit
		used := home(string(checks[i].Key)) == gone
		if results[0].Denied == used {
			t.Errorf("check %d: %+v, want the second unit here: %v", i, results[0], used)
		}
	}
}

// TestRingServerKilledUnderLoad: callers of the other servers continue, and no call is charged
// twice.
func TestRingServerKilledUnderLoad(t *testing.T) {
	t.Parallel()
	servers := startRing(t, 3, "--appendonly", "yes", "--appendfsync", "always")
	s := openRing(t, servers, Options{})
	f := startPaced(t, s, 24, 2*time.Millisecond)
	f.each(t)
	dead := ringHome(s, servers)(key(0))
	dead.Kill()
	f.failures(t, 50)
	f.eachOf(t, func(i int) bool { return ringHome(s, servers)(key(i)) != dead })
	dead.Restart()
	f.each(t)
	f.end(t)
	f.atMostOnceIn(t, ringHome(s, servers), false)
}

// TestRingNodesAreCounted: every node announces itself at the same server, the one that holds the
// key.
func TestRingNodesAreCounted(t *testing.T) {
	t.Parallel()
	servers := startRing(t, 3)
	for range 3 {
		s := openRing(t, servers, Options{Timeout: TimeoutMax})
		slices.Reverse(servers)
		s.CountNodes()
		defer func() {
			waitUntil(t, "all three are counted", func() bool { return s.Nodes() == 3 })
		}()
	}
}

// TestRingHealth: one server that answers is enough.
func TestRingHealth(t *testing.T) {
	servers := startRing(t, 2)
	s := openRing(t, servers, Options{Timeout: TimeoutMax})
	servers[0].Kill()
	if err := s.Check(context.Background()); err != nil {
		t.Errorf("one of two answers: %v", err)
	}
	servers[1].Kill()
	if err := s.Check(context.Background()); err == nil {
		t.Error("nobody answers, and all is well")
	}
}

// TestRingIsNamedAlike: a node logs a warning if it spells the servers differently than the
// previous node. A node that lists the same addresses in another order logs no warning.
func TestRingIsNamedAlike(t *testing.T) {
	t.Parallel()
	servers := startRing(t, 3)
	var log eventually.Journal
	connected := func(names string) func() bool {
		return func() bool { return servers[0].Client().Get(t.Context(), RingKey).Val() == names }
	}
	first := RingNames([]string{servers[0].Addr, servers[1].Addr, servers[2].Addr})
	s := openRing(t, servers, Options{Timeout: TimeoutMax, Logger: log.Logger()})
	waitUntil(t, "the first has left its names", connected(first))
	s.Close()
	slices.Reverse(servers[1:])
	s = openRing(t, servers, Options{Timeout: TimeoutMax, Logger: log.Logger()})
	ask(t, s, spreadChecks(t, s, limittest.New(t, "9/1m"))...)
	two := RingNames([]string{servers[0].Addr, servers[1].Addr})
	if text := log.String(); text != "" {
		t.Errorf("the same servers: %s", text)
	}
	s.Close() // otherwise this store might write its servers after the next store has written others
	openRing(t, servers[:2], Options{Timeout: TimeoutMax, Logger: log.Logger()})
	waitUntil(t, "the third has left its names", connected(two))
	waitUntil(t, "it warns", func() bool {
		return strings.Contains(log.String(), "count apart") && strings.Contains(log.String(), first) && strings.Contains(log.String(), two)
	})
}

// TestPlaces: two stores have a place in common if their options name the same counters, and none
// otherwise.
func TestPlaces(t *testing.T) {
	places := func(o Options) []string {
		t.Helper()
		s, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() }) // the error is always nil
		return s.Places()
	}
	ring := func(addrs []string, before ...string) Options {
		return Options{Mode: ModeRing, Addrs: addrs, AddrsBefore: before}
	}
	sentinel := func(master string, addrs ...string) Options {
		return Options{Mode: ModeSentinel, Master: master, Addrs: addrs}
	}
	a, b, c := "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"
	for _, test := range []struct {
		what      string
		one, next Options
		same      bool
	}{
		{"other settings", Options{URL: "redis://Localhost:1"}, Options{URL: "redis://u:p@localhost:1/0", Timeout: time.Second, QueueMax: 9}, true},
		{"TLS", Options{URL: "redis://localhost:1"}, Options{URL: "rediss://localhost:1"}, true},
		{"another server", Options{URL: "redis://localhost:1"}, Options{URL: "redis://localhost:2"}, false},
		{"another database", Options{URL: "redis://localhost:1/1"}, Options{URL: "redis://localhost:1"}, false},
		{"a socket", Options{URL: "unix:///nowhere"}, Options{URL: "unix:///nowhere?db=0", Lanes: 1}, true},
		{"another socket", Options{URL: "unix:///nowhere"}, Options{URL: "unix:///nowhere/else"}, false},
		{"a cluster of one address", Options{URL: "redis://" + a}, Options{Mode: ModeCluster, URL: "redis://" + a}, true},
		{"other seeds", Options{Mode: ModeCluster, Addrs: []string{a, b}}, Options{Mode: ModeCluster, Addrs: []string{c, b}}, true},
		{"another cluster", Options{Mode: ModeCluster, Addrs: []string{a}}, Options{Mode: ModeCluster, Addrs: []string{c}}, false},
		{"one more sentinel", sentinel("m", a, b), sentinel("m", a, b, c), true},
		{"another master", sentinel("m", a, b), sentinel("n", a, b), false},
		{"another order", ring([]string{a, b}), ring([]string{b, a}), true},
		{"one more server", ring([]string{a, b}), ring([]string{a, b, c}), false},
		{"a ring that changes", ring([]string{a, b}), ring([]string{a, b, c}, a, b), true},
		{"a ring that has changed", ring([]string{a, b, c}, a, b), ring([]string{a, b, c}), true},
		{"a ring in place of a server", Options{URL: "redis://" + a}, ring([]string{a, b}, a), true},
		{"a server of a ring", Options{URL: "redis://" + a}, ring([]string{a, b}), false},
	} {
		one, next := places(test.one), places(test.next)
		if same := slices.ContainsFunc(one, func(name string) bool { return slices.Contains(next, name) }); same != test.same {
			t.Errorf("%s: %q and %q, want a place in common: %t", test.what, one, next, test.same)
		}
	}
}
