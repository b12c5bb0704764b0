// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"testing"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/internal/storetest"
)

func openSentinel(t testing.TB, s *redistest.Sentinel, options Options) *Store {
	options.Mode, options.Addrs, options.Master = ModeSentinel, s.Addrs(), s.Name
	return open(t, options)
}

func TestStoreExamOverSentinels(t *testing.T) {
	t.Parallel()
	watched := redistest.StartSentinel(t)
	exam(t, func(t testing.TB) storetest.Subject {
		keeper := bareOn(t, watched.Master())
		s := openSentinel(t, watched, Options{Timeout: TimeoutMax})
		return storetest.Subject{
			Store:   s,
			Pin:     func(now core.Micros) { s.pinned.Store(int64(now)) },
			Counter: keeper.counter,
			Penalty: keeper.penalty,
		}
	})
}

// TestSentinelFailoverUnderLoad kills the master, and the sentinel that is asked first: the replica takes its place, and nothing
// is charged twice.
func TestSentinelFailoverUnderLoad(t *testing.T) {
	t.Parallel()
	watched := redistest.StartSentinel(t)
	f := start(t, openSentinel(t, watched, Options{}), 32)
	f.some(t)
	master := watched.Master()
	watched.Sentinels[0].Kill()
	master.Kill()
	f.failures(t, 200)
	watched.AwaitFailover(master)
	f.calm(t, time.Now())
	f.end(t)
	f.atMostOnce(t, watched.Master(), true)
}

// TestOrderlySentinelFailoverUnderLoad loses nothing, and the old master comes back as a replica.
func TestOrderlySentinelFailoverUnderLoad(t *testing.T) {
	t.Parallel()
	watched := redistest.StartSentinel(t)
	f := startPaced(t, openSentinel(t, watched, Options{}), 32, time.Millisecond) // or the sentinels wait for the processor
	f.some(t)
	watched.Failover()
	f.some(t)
	f.end(t)
	f.atMostOnce(t, watched.Master(), true)
}

// TestSentinelsThatKnowOfFewerFailovers: one that was cut off is not believed, and most of them are, if nobody knows better.
func TestSentinelsThatKnowOfFewerFailovers(t *testing.T) {
	const known = 5
	type told struct {
		failovers int
		master    byte // 'a', 'b', or the replica 'r'; 0: it does not know of any
	}
	for name, test := range map[string]struct {
		told [3]told
		want byte // the master that is asked; 0: as before, and the sentinels' answers are refused
		then int64
	}{
		"one was cut off":              {[3]told{{4, 'b'}, {5, 'a'}, {5, 'a'}}, 'a', known},
		"one failover more":            {[3]told{{4, 'a'}, {6, 'b'}, {5, 'a'}}, 'b', 6},
		"only one answers":             {[3]told{{4, 'b'}, {}, {}}, 0, known},
		"all have forgotten":           {[3]told{{0, 'b'}, {0, 'b'}, {0, 'b'}}, 'b', 0},
		"the same master":              {[3]told{{0, 'a'}, {0, 'a'}, {0, 'a'}}, 'a', 0},
		"one of them is gone":          {[3]told{{}, {0, 'b'}, {0, 'b'}}, 'b', 0},
		"one of them remembers":        {[3]told{{0, 'b'}, {0, 'b'}, {5, 'a'}}, 'a', known},
		"its master is none":           {[3]told{{0, 'b'}, {0, 'b'}, {6, 'r'}}, 0, known},
		"one has heard of a new one":   {[3]told{{0, 'a'}, {1, 'b'}, {0, 'a'}}, 'b', 1},
		"one knows the old one":        {[3]told{{0, 'r'}, {0, 'b'}, {}}, 'b', 0},
		"of the latest none is master": {[3]told{{1, 'r'}, {0, 'b'}, {1, 'r'}}, 0, known},
	} {
		t.Run(name, func(t *testing.T) {
			servers := map[byte]*fake{'a': newFake(t, passed), 'b': newFake(t, passed), 'r': newFake(t, passed)}
			servers['r'].role = "slave"
			options := Options{Mode: ModeSentinel, Master: "penstock", Timeout: TimeoutMax}
			var sentinels []*fake
			for range 3 {
				f := newFake(t, passed)
				f.watch(servers['a'], known)
				sentinels, options.Addrs = append(sentinels, f), append(options.Addrs, f.addr())
			}
			s := open(t, options)
			ask(t, s, take1("rl1:k", limitOf(t, "10/1m fixed_window"))...) // from here on the master is known
			for i, told := range test.told {
				sentinels[i].watch(servers[told.master], told.failovers)
			}
			err := s.askSentinels(t.Context())
			for i := 1; i < forgetfulMin && err != nil; i++ {
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

// TestSentinelsThatForget come back without their files: what they say is believed again, and so are the failovers that follow.
func TestSentinelsThatForget(t *testing.T) {
	t.Parallel()
	watched := redistest.StartSentinel(t)
	s := openSentinel(t, watched, Options{Timeout: TimeoutMax})
	believes := func(failovers bool) {
		t.Helper()
		eventually(t, "the sentinels are believed", func() bool {
			s.nudge()
			return s.epoch.Load() > 0 == failovers && s.lost.Load() == nil && s.only.Load().address.target == watched.Master().Addr
		})
		working(t, s)
	}
	working(t, s)
	watched.Failover()
	believes(true)
	watched.Forget()
	believes(false)
	watched.Failover()
	believes(true)
}
