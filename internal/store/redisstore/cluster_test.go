// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/racescale"
	"github.com/penstock/penstock/internal/test/redistest"
	"github.com/penstock/penstock/internal/test/seed"
	"github.com/penstock/penstock/internal/test/storetest"
)

// TestSlotOf compares slots with those that Redis computes.
func TestSlotOf(t *testing.T) {
	server := redistest.StartAlone(t)
	for _, key := range []string{"", "a", "123456789", "rl1:shop:api:{user:u_42}:60s:sw", "{}{a}", "{a", "a}", "{{a}}", "x{}y", "{a}{b}",
		"\x00\xff{\x80}", "foo{bar}{zap}", "rl1:shop:~penalty:{ip:192.0.2.7}:until"} {
		want, err := server.Client().Do(t.Context(), "cluster", "keyslot", key).Int()
		if err != nil {
			t.Fatal(err)
		}
		if got := slotOf(key); got != want {
			t.Errorf("slot of %q is %d, Redis says %d", key, got, want)
		}
	}
}

// taggedStore puts all keys of a store into one slot.
type taggedStore struct{ counter.Store }

const tag = "{t}"

func (s taggedStore) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	moved := append([]counter.Check(nil), checks...)
	for i := range moved {
		if c := &moved[i]; len(c.Key) > 0 {
			c.Key, c.ScopeLen = append([]byte(tag), c.Key...), c.ScopeLen+len(tag)
		}
	}
	return s.Store.Take(ctx, moved, results)
}

// taggedSubject returns the subject of an exam for a store with several servers. The argument named
// keeper reads from the server of the tag.
func taggedSubject(s *Store, keeper *bareStore) storetest.Subject {
	return storetest.Subject{
		Store: taggedStore{s},
		Pin:   func(now counter.Micros) { s.pinned.Store(int64(now)) },
		Counter: func(t testing.TB, key []byte, l *counter.Limit) (counter.State, []counter.Mark) {
			return keeper.counter(t, append([]byte(tag), key...), l)
		},
		Penalty: func(t testing.TB, key []byte) (counter.Micros, []counter.Violation) {
			return keeper.penalty(t, append([]byte(tag), key...))
		},
	}
}

// exam runs the exam on a store in one of its modes. The script and the encoding are those of
// [TestScriptExam], so a tenth of the random traffic is enough.
func exam(t *testing.T, open func(t testing.TB) storetest.Subject) {
	t.Run("promises", func(t *testing.T) { storetest.RunPromises(t, open) })
	t.Run("vectors", func(t *testing.T) { storetest.RunVectors(t, open) })
	t.Run("random", func(t *testing.T) { storetest.RunRandom(t, open, storetest.RandomSteps/10) })
	t.Run("oracle", func(t *testing.T) { storetest.RunOracle(t, open, storetest.OracleSteps) })
}

// configureSteady configures a cluster so that it replaces no master merely because the machine is
// busy.
func configureSteady(t testing.TB, c *redistest.Cluster) *redistest.Cluster {
	for _, node := range c.Nodes {
		if err := node.Client().ConfigSet(t.Context(), "cluster-node-timeout", "20000").Err(); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func openCluster(t testing.TB, c *redistest.Cluster, options Options) *Store {
	options.Mode, options.Addrs = ModeCluster, c.Addrs()
	return open(t, options)
}

func TestStoreExamOnACluster(t *testing.T) {
	t.Parallel()
	c := configureSteady(t, redistest.StartCluster(t))
	exam(t, func(t testing.TB) storetest.Subject {
		keeper := bareOn(t, c.Master(slotOf(tag)))
		s := openCluster(t, c, Options{Timeout: TimeoutMax})
		return taggedSubject(s, keeper)
	})
}

// TestSlotsTogether checks counters on all servers in one call.
func TestSlotsTogether(t *testing.T) {
	t.Parallel()
	c := configureSteady(t, redistest.StartCluster(t))
	s := openCluster(t, c, Options{Timeout: TimeoutMax})
	t.Run("all or nothing", func(t *testing.T) { allOrNothing(t, s, 4*3+3+1) })
	t.Run("as one store would", func(t *testing.T) { compareWithModel(t, s) })
	t.Run("a violation elsewhere", func(t *testing.T) { violationElsewhere(t, s) })
	t.Run("many calls", func(t *testing.T) { manyCallsOfACluster(t, s) })
}

// spreadChecks returns twelve checks, in four rounds of one check for each of the three servers.
func spreadChecks(t *testing.T, s *Store, limit *counter.Limit) []counter.Check {
	ask(t, s, counter.Check{Key: []byte("rl1:{warm}"), Limit: limit}) // this call discovers the servers
	of := map[*node][]counter.Check{}
	for i := range 1000 {
		key := fmt.Appendf(nil, "rl1:{%d}", i)
		n := s.nodeOf(s.placeOf(key))
		of[n] = append(of[n], counter.Check{Key: key, Limit: limit, Cost: 1})
	}
	var checks []counter.Check
	for turn := range 4 {
		for _, theirs := range of {
			checks = append(checks, theirs[turn])
		}
	}
	if len(checks) != 12 {
		t.Fatalf("%d servers have something of a thousand keys, want 3", len(of))
	}
	return checks
}

// allOrNothing tests that a call that one server denies is not charged on the other servers. It
// sends 4 calls, 2 of which are denied, and checks the number of pipelines. The first denial is
// refunded, and the second is known before the other servers are called.
func allOrNothing(t *testing.T, s *Store, pipelines uint64) {
	wide, narrow := limittest.New(t, "10/1d fixed_window"), limittest.New(t, "2/1d fixed_window")
	checks := spreadChecks(t, s, wide)
	checks[7].Limit = narrow
	before := s.Stats().Batches
	for round := range 4 {
		for i, r := range ask(t, s, checks...) {
			granted, left := int64(1), checks[i].Limit.Count()-int64(round)-1
			if round >= 2 {
				granted, left = 0, checks[i].Limit.Count()-2
			}
			if r.Granted != granted || r.Remaining != left || r.Denied != (round >= 2 && i == 7) || (r.Receipt == 0) != (granted == 0) {
				t.Errorf("round %d, check %d: %+v, want %d granted, %d left", round, i, r, granted, left)
			}
		}
	}
	if n := s.Stats().Batches - before; n != pipelines {
		t.Errorf("4 calls to 3 servers, 2 of which are denied, went out in %d pipelines, want %d", n, pipelines)
	}
}

// compareWithModel compares calls over several slots with the model, which has no slots. Every
// answer must equal that of the model. The clock stands still during a call. The instants of a
// bucket may differ by the tick to which a refund rounds.
func compareWithModel(t *testing.T, s *Store) {
	rng := seed.Random(t)
	model, now := &storetest.Model{}, counter.Micros(1_700_049_600)*counter.Second
	defer s.pinned.Store(0)
	for step := range racescale.Fewer(2000) {
		now += counter.Micros(rng.Int64N(int64(10 * counter.Second)))
		s.pinned.Store(int64(now))
		model.Pin(now)
		var checks []counter.Check
		for i := range 8 {
			if rng.IntN(2) == 0 {
				text := []string{"5/1m fixed_window", "7/1m", "6/1m sliding_log", "6/1m burst 9"}[i%4]
				op := []counter.Op{counter.OpTake, counter.OpTake, counter.OpTake, counter.OpUpTo, counter.OpLook, counter.OpForce}[rng.IntN(6)]
				check := counter.Check{Key: fmt.Appendf(nil, "rl1:random:{%d}", i), Limit: limittest.New(t, text), Cost: rng.Int64N(3), Op: op,
					Shadow: rng.IntN(4) == 0}
				if op == counter.OpUpTo {
					check.Min, check.Max, check.ShareMille = 1, check.Cost+2, 500
				}
				checks = append(checks, check)
			}
		}
		if len(checks) == 0 {
			continue
		}
		want := make([]counter.Result, len(checks))
		if err := model.Take(t.Context(), checks, want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, ask(t, s, checks...)); diff != "" {
			t.Fatalf("step %d (-model +cluster):\n%s", step, diff)
		}
	}
}

// violationElsewhere penalizes a client under one name for violations of a limit under another
// name, so that the keys are in different slots.
func violationElsewhere(t *testing.T, s *Store) {
	checks := request(t)
	for i := 42; ; i++ {
		checks[1].Key = fmt.Appendf(nil, "rl1:shop:api:{attr.a:u_%d}:3600s:fw", i)
		if _, one := s.onePlace(checks); !one {
			break
		}
	}
	if r := ask(t, s, checks...); r[1].Denied {
		t.Fatalf("%+v", r)
	}
	if r := ask(t, s, checks...); !r[1].Denied || r[0].Denied {
		t.Fatalf("%+v, want the limit's own refusal", r)
	}
	look := checks[0]
	look.Op = counter.OpLook
	waitUntil(t, "the penalty is there", func() bool { r := ask(t, s, look); return r[0].Denied && r[0].Violations == 1 })
	if r := ask(t, s, checks...); !r[0].Denied || !r[1].Denied {
		t.Errorf("%+v, want refused by the penalty too", r)
	}
	if r := ask(t, s, look); r[0].Violations != 1 {
		t.Errorf("%d violations: what a penalty refuses is none", r[0].Violations)
	}
}

// manyCallsOfACluster: each call has its own answer.
func manyCallsOfACluster(t *testing.T, s *Store) {
	limit := limittest.New(t, "2/1d fixed_window")
	for round := range 3 {
		calls := makeCalls(300, limit)
		for i := range calls {
			// In the last round one of the two servers denies the call, so the charge on the other
			// is refunded.
			calls[i].Checks = append(calls[i].Checks, take1(fmt.Sprint("rl1:more:", i), limittest.New(t, "9/1d fixed_window"))...)
			calls[i].Results = make([]counter.Result, 2)
		}
		calls[7].Checks[0].Cost = -1
		calls[8].Checks = nil
		before := s.Stats().Batches
		s.TakeAll(context.Background(), calls)
		for i := range calls {
			switch call := &calls[i]; {
			case i == 7 && !errors.Is(call.Err, counter.ErrInvalid):
				t.Errorf("call 7: %v", call.Err)
			case i != 7 && call.Err != nil:
				t.Errorf("call %d: %v", i, call.Err)
			case i != 7 && i != 8 && (call.Results[0].Denied != (round == 2) || call.Results[1].Remaining != int64([]int{8, 7, 7}[round])):
				t.Errorf("call %d in round %d: %+v", i, round, call.Results)
			}
		}
		if n := s.Stats().Batches - before; n > 4*3 {
			t.Errorf("600 checks of 300 calls for 3 servers went out in %d pipelines in round %d, want six or so", n, round)
		}
	}
}
