// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/redistest"
	"github.com/penstock/penstock/internal/test/storetest"
)

func openSentinel(t testing.TB, s *redistest.Sentinel, options Options) *Store {
	options.Mode, options.Addrs, options.Master = ModeSentinel, s.Addrs(), s.Name
	return open(t, options)
}

func TestStoreExamOverSentinels(t *testing.T) {
	t.Parallel()
	masterView := redistest.StartSentinel(t)
	exam(t, func(t testing.TB) storetest.Subject {
		keeper := bareOn(t, masterView.Master())
		s := openSentinel(t, masterView, Options{Timeout: TimeoutMax})
		return storetest.Subject{
			Store:   s,
			Pin:     func(now counter.Micros) { s.pinned.Store(int64(now)) },
			Counter: keeper.counter,
			Penalty: keeper.penalty,
		}
	})
}

// TestSentinelFailoverUnderLoad kills the master and the first sentinel: the replica takes over,
// and no call is charged twice.
func TestSentinelFailoverUnderLoad(t *testing.T) {
	t.Parallel()
	masterView := redistest.StartSentinel(t)
	f := start(t, openSentinel(t, masterView, Options{}), 32)
	f.awaitAnswers(t)
	master := masterView.Master()
	masterView.Sentinels[0].Kill()
	master.Kill()
	f.failures(t, 200)
	masterView.AwaitFailover(master)
	f.calm(t, time.Now())
	f.end(t)
	f.checkAtMostOnce(t, masterView.Master(), true)
}

// TestOrderlySentinelFailoverUnderLoad: an orderly failover loses nothing, and the old master
// becomes a replica.
func TestOrderlySentinelFailoverUnderLoad(t *testing.T) {
	t.Parallel()
	masterView := redistest.StartSentinel(t)
	// Leave processor time to the sentinels.
	f := startPaced(t, openSentinel(t, masterView, Options{}), 32, time.Millisecond)
	f.awaitAnswers(t)
	masterView.Failover()
	f.awaitAnswers(t)
	f.end(t)
	f.checkAtMostOnce(t, masterView.Master(), true)
}

// TestSentinelsThatKnowOfFewerFailovers: the answer of a sentinel that was cut off is ignored, but
// if most sentinels agree and none has a newer view, their answer is adopted.
func TestSentinelsThatKnowOfFewerFailovers(t *testing.T) {
	const known = 5
	type told struct {
		failovers int
		master    byte // the master: 'a', 'b', or the replica 'r'; 0 means unknown
	}
	for name, test := range map[string]struct {
		told [3]told
		// the master in use afterwards; 0 means that it is unchanged, because the answers were
		// ignored.
		want byte
		then int64
	}{
		"one was cut off":              {[3]told{{4, 'b'}, {5, 'a'}, {5, 'a'}}, 'a', known},
		"one failover more":            {[3]told{{4, 'a'}, {6, 'b'}, {5, 'a'}}, 'b', 6},
		"only one answers":             {[3]told{{4, 'b'}, {}, {}}, 0, known},
		"all have forgotten":           {[3]told{{0, 'b'}, {0, 'b'}, {0, 'b'}}, 'b', 0},
		"the same master":              {[3]told{{0, 'a'}, {0, 'a'}, {0, 'a'}}, 'a', 0},
		"one of them is gone":          {[3]told{{}, {0, 'b'}, {0, 'b'}}, 'b', 0},
		"one of them remembers":        {[3]told{{0, 'b'}, {0, 'b'}, {5, 'a'}}, 'a', known},
		"its master is none":           {[3]told{{0, 'b'}, {0, 'b'}, {6, 'r'}}, 'b', 0},
		"it is first, and master none": {[3]told{{5, 'r'}, {0, 'b'}, {0, 'b'}}, 'b', 0},
		"one forgot, one master none":  {[3]told{{}, {0, 'b'}, {6, 'r'}}, 0, known},
		"one has heard of a new one":   {[3]told{{0, 'a'}, {1, 'b'}, {0, 'a'}}, 'b', 1},
		"one knows the old one":        {[3]told{{0, 'r'}, {0, 'b'}, {}}, 'b', 0},
		"of the latest none is master": {[3]told{{1, 'r'}, {0, 'b'}, {1, 'r'}}, 0, known},
	} {
		t.Run(name, func(t *testing.T) {
			servers := map[byte]*fakeServer{'a': newFake(t, passed), 'b': newFake(t, passed), 'r': newFake(t, passed)}
			servers['r'].role = "slave"
			options := Options{Mode: ModeSentinel, Master: "penstock", Timeout: TimeoutMax}
			var sentinels []*fakeServer
			for range 3 {
				f := newFake(t, passed)
				f.watch(servers['a'], known)
				sentinels, options.Addrs = append(sentinels, f), append(options.Addrs, f.addr())
			}
			s := open(t, options)
			// this makes the master known
			ask(t, s, take1("rl1:k", limittest.New(t, "10/1m fixed_window"))...)
			for i, told := range test.told {
				sentinels[i].watch(servers[told.master], told.failovers)
			}
			err := s.askSentinels(t.Context())
			for i := 1; i < behindRoundsMin && err != nil; i++ {
				if s.epoch.Load() != known {
					t.Fatalf("believed after %d times: %v", i, err)
				}
				err = s.askSentinels(t.Context())
			}
			if (err == nil) != (test.want != 0) {
				t.Errorf("%v", err)
			}
			want := servers['a']
			if test.want != 0 {
				want = servers[test.want]
			}
			if at := s.only.Load().address.target; at != want.addr() || s.epoch.Load() != test.then {
				t.Errorf("failover %d, master %s; want %d, %s", s.epoch.Load(), at, test.then, want.addr())
			}
		})
	}
}

// TestSentinelThatRemembersAnOldFailover: most sentinels have lost their state and watch another
// master, while one sentinel still names the old master. As soon as the old master is no longer a
// master, the store adopts the answer of the other sentinels. It does not adopt the old master
// again when that returns.
func TestSentinelThatRemembersAnOldFailover(t *testing.T) {
	a, b, c := newFake(t, passed), newFake(t, passed), newFake(t, passed)
	options := Options{Mode: ModeSentinel, Master: "penstock", Timeout: TimeoutMax}
	var sentinels []*fakeServer
	for range 3 {
		f := newFake(t, passed)
		f.watch(a, 5)
		sentinels, options.Addrs = append(sentinels, f), append(options.Addrs, f.addr())
	}
	s := open(t, options)
	ask(t, s, take1("rl1:k", limittest.New(t, "10/1m fixed_window"))...) // makes the master known
	believes := func(what string, master *fakeServer, failovers int64, rounds int) {
		t.Helper()
		var err error
		for range rounds {
			err = s.askSentinels(t.Context())
		}
		if at := s.only.Load().address.target; at != master.addr() || s.epoch.Load() != failovers || err != nil {
			t.Errorf("%s: failover %d, master %s, error %v; want %d, %s", what, s.epoch.Load(), at, err, failovers, master.addr())
		}
	}
	sentinels[1].watch(b, 0)
	sentinels[2].watch(b, 0)
	believes("the old master answers calls", a, 5, behindRoundsMin)
	s.only.Load().breaker.state.Store(uint32(BreakerOpen))
	believes("the old master is one", a, 5, behindRoundsMin)
	a.setRole("slave")
	believes("the old master is none", b, 0, behindRoundsMin)
	a.setRole("master")
	believes("the old master is back", b, 0, 2*behindRoundsMin)
	sentinels[1].watch(c, 1)
	sentinels[2].watch(c, 1)
	believes("a failover", c, 1, 1)
	sentinels[1].watch(a, 5)
	sentinels[2].watch(a, 5)
	believes("failovers back to the old master", a, 5, behindRoundsMin)
}

// TestSentinelsThatForget: the store follows sentinels again after they have lost their files,
// including through later failovers.
func TestSentinelsThatForget(t *testing.T) {
	t.Parallel()
	masterView := redistest.StartSentinel(t)
	s := openSentinel(t, masterView, Options{Timeout: TimeoutMax})
	believes := func(failovers bool) {
		t.Helper()
		waitUntil(t, "the sentinels are believed", func() bool {
			s.rediscover()
			return s.epoch.Load() > 0 == failovers && s.lost.Load() == nil && s.only.Load().address.target == masterView.Master().Addr
		})
		callUntilAnswered(t, s)
	}
	callUntilAnswered(t, s)
	masterView.Failover()
	believes(true)
	masterView.Forget()
	believes(false)
	masterView.Failover()
	believes(true)
}
