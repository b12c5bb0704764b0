// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"fmt"
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/redistest"
)

// TestTextOfALease reads what Redis keeps: a fourth decimal while units may be out on lease, and three otherwise, as
// counters of before have.
func TestTextOfALease(t *testing.T) {
	const noon = 1_700_049_600_000_000
	s := redistest.Start(t)
	for _, c := range []struct {
		limit       core.Limit
		lease, then string
	}{
		{mustLimit(t, core.FixedWindow, 100, core.Minute), "1700049600000000 21 0 1700049602000000", "1700049600000000 22 0"},
		{mustLimit(t, core.SlidingWindow, 100, core.Minute), "1700049600000000 21 0 1700049602000000", "1700049600000000 22 0"},
		{mustLimit(t, core.TokenBucket, 60, core.Minute), "1700049600000000 22000000 1000000 1700049602000000",
			"1700049602000000 21000000 1000000"},
	} {
		b := bareOn(t, s)
		ask := func(at core.Micros, check core.Check) core.Result {
			t.Helper()
			b.pinned.Store(int64(at))
			check.Key, check.Limit = []byte("k"), &c.limit
			var r [1]core.Result
			if err := b.Take(t.Context(), []core.Check{check}, r[:]); err != nil {
				t.Fatal(err)
			}
			return r[0]
		}
		if c.limit.Algorithm() == core.TokenBucket { // as one of before left it: full, with other parts of a token
			s.Client().Set(t.Context(), "k", fmt.Sprintf("%d 0 7", noon-core.Hour), 0)
		} else {
			s.Client().Set(t.Context(), "k", fmt.Sprintf("%d 1 0", noon), 0)
		}
		r := ask(noon, core.Check{Op: core.OpUpTo, Min: 1, Max: 20, ShareMille: 1000, Age: 2 * core.Second})
		if text := s.Client().Get(t.Context(), "k").Val(); r.Granted != 20 || r.LeasedIn != 2*core.Second || text != c.lease {
			t.Errorf("%s: after a lease: %+v and %q, want 20 granted and %q", c.limit, r, text, c.lease)
		}
		if r := ask(noon+core.Second, core.Check{Op: core.OpLook}); r.LeasedIn != core.Second {
			t.Errorf("%s: a second later: %+v, want units out for one more", c.limit, r)
		}
		r = ask(noon+2*core.Second, core.Check{Cost: 1})
		if text := s.Client().Get(t.Context(), "k").Val(); r.LeasedIn != 0 || text != c.then {
			t.Errorf("%s: when no unit is out: %+v and %q, want %q", c.limit, r, text, c.then)
		}
	}
}

// TestPlanOfALease measures what goes over the wire: a lease is 8 bytes more, and what is none is what it was.
func TestPlanOfALease(t *testing.T) {
	for a, want := range map[core.Algorithm]int{core.FixedWindow: 34, core.SlidingWindow: 34, core.TokenBucket: 66} {
		l := mustLimit(t, a, 100, core.Minute)
		take := core.Check{Limit: &l, Cost: 1}
		upTo := core.Check{Limit: &l, Op: core.OpUpTo, Cost: 1, Min: 1, Max: 9}
		lease := upTo
		lease.Age = core.Second
		for _, c := range []struct {
			what  string
			check core.Check
			want  int
		}{{"take", take, want}, {"up to n", upTo, want + 24}, {"a lease", lease, want + 32}} {
			if got := len(appendCheck(nil, &c.check)); got != c.want {
				t.Errorf("%s: %s takes %d bytes of the plan, want %d", a, c.what, got, c.want)
			}
		}
	}
}
