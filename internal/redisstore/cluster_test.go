// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"fmt"
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/internal/storetest"
)

// TestSlotOf: the slots are those that Redis itself computes.
func TestSlotOf(t *testing.T) {
	server := redistest.Start(t, "--cluster-enabled", "yes")
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

// tagged puts all keys of a store into one slot.
type tagged struct{ core.Store }

const tag = "{t}"

func (s tagged) Take(ctx context.Context, checks []core.Check, results []core.Result) error {
	moved := append([]core.Check(nil), checks...)
	for i := range moved {
		if c := &moved[i]; len(c.Key) > 0 {
			c.Key, c.ScopeLen = append([]byte(tag), c.Key...), c.ScopeLen+len(tag)
		}
	}
	return s.Store.Take(ctx, moved, results)
}

func openCluster(t testing.TB, c *redistest.Cluster, options Options) *Store {
	options.Mode, options.Addrs = ModeCluster, c.Addrs()
	return open(t, options)
}

func TestStoreExamOnACluster(t *testing.T) {
	c := redistest.StartCluster(t)
	storetest.Run(t, func(t testing.TB) storetest.Subject {
		keeper := bareOn(t, c.Master(slotOf(tag)))
		s := openCluster(t, c, Options{Timeout: TimeoutMax})
		return storetest.Subject{
			Store: tagged{s},
			Pin:   func(now core.Micros) { s.pinned.Store(int64(now)) },
			Counter: func(t testing.TB, key []byte, l *core.Limit) (core.State, []core.Mark) {
				return keeper.counter(t, append([]byte(tag), key...), l)
			},
			Penalty: func(t testing.TB, key []byte) (core.Micros, []core.Violation) {
				return keeper.penalty(t, append([]byte(tag), key...))
			},
		}
	})
}

// TestSlotsTogether asks for counters in all servers at once.
func TestSlotsTogether(t *testing.T) {
	c := redistest.StartCluster(t)
	s := openCluster(t, c, Options{Timeout: TimeoutMax})
	wide, narrow := limitOf(t, "10/1d fixed_window"), limitOf(t, "2/1d fixed_window")
	checks := make([]core.Check, 12)
	for i := range checks {
		checks[i] = core.Check{Key: fmt.Appendf(nil, "rl1:{%d}", i), Limit: wide, Cost: 1}
	}
	checks[7].Limit = narrow
	results := make([]core.Result, len(checks))
	for round := range 4 {
		if err := s.Take(context.Background(), checks, results); err != nil {
			t.Fatal(err)
		}
		for i, r := range results {
			granted, left := int64(1), checks[i].Limit.Count()-int64(round)-1
			if round >= 2 {
				granted, left = 0, checks[i].Limit.Count()-2
			}
			if r.Granted != granted || r.Remaining != left || r.Refused != (round >= 2 && i == 7) || (r.Receipt == 0) != (granted == 0) {
				t.Errorf("round %d, check %d: %+v, want %d granted, %d left", round, i, r, granted, left)
			}
		}
	}
}
