// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"fmt"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestTextOfALease checks the stored text: it has a fourth number while units might be leased, and
// otherwise three, as in earlier releases.
func TestTextOfALease(t *testing.T) {
	const noon = 1_700_049_600_000_000
	s := redistest.Start(t)
	for _, c := range []struct {
		limit       counter.Limit
		lease, then string
	}{
		{mustLimit(t, counter.FixedWindow, 100, counter.Minute), "1700049600000000 21 0 1700049602000000", "1700049600000000 22 0"},
		{mustLimit(t, counter.SlidingWindow, 100, counter.Minute), "1700049600000000 21 0 1700049602000000", "1700049600000000 22 0"},
		{mustLimit(t, counter.TokenBucket, 60, counter.Minute), "1700049600000000 22000000 1000000 1700049602000000",
			"1700049602000000 21000000 1000000"},
	} {
		b := bareOn(t, s)
		ask := func(at counter.Micros, check counter.Check) counter.Result {
			t.Helper()
			b.pinned.Store(int64(at))
			check.Key, check.Limit = []byte("k"), &c.limit
			var r [1]counter.Result
			if err := b.Take(t.Context(), []counter.Check{check}, r[:]); err != nil {
				t.Fatal(err)
			}
			return r[0]
		}
		// This is a text that an earlier release stored. The text of a bucket says that it is full,
		// and divides a token into a different number of parts.
		if c.limit.Algorithm() == counter.TokenBucket {
			s.Client().Set(t.Context(), "k", fmt.Sprintf("%d 0 7", noon-counter.Hour), 0)
		} else {
			s.Client().Set(t.Context(), "k", fmt.Sprintf("%d 1 0", noon), 0)
		}
		r := ask(noon, counter.Check{Op: counter.OpUpTo, Min: 1, Max: 20, ShareMille: 1000, Age: 2 * counter.Second})
		if text := s.Client().Get(t.Context(), "k").Val(); r.Granted != 20 || r.LeasedIn != 2*counter.Second || text != c.lease {
			t.Errorf("%s: after a lease: %+v and %q, want 20 granted and %q", c.limit, r, text, c.lease)
		}
		if r := ask(noon+counter.Second, counter.Check{Op: counter.OpLook}); r.LeasedIn != counter.Second {
			t.Errorf("%s: a second later: %+v, want units out for one more", c.limit, r)
		}
		r = ask(noon+2*counter.Second, counter.Check{Cost: 1})
		if text := s.Client().Get(t.Context(), "k").Val(); r.LeasedIn != 0 || text != c.then {
			t.Errorf("%s: when no unit is out: %+v and %q, want %q", c.limit, r, text, c.then)
		}
	}
}

// TestPlanOfALease measures the size of the plan: a lease adds 8 bytes, and a check without a lease
// is unchanged.
func TestPlanOfALease(t *testing.T) {
	for a, want := range map[counter.Algorithm]int{counter.FixedWindow: 34, counter.SlidingWindow: 34, counter.TokenBucket: 66} {
		l := mustLimit(t, a, 100, counter.Minute)
		take := counter.Check{Limit: &l, Cost: 1}
		upTo := counter.Check{Limit: &l, Op: counter.OpUpTo, Cost: 1, Min: 1, Max: 9}
		lease := upTo
		lease.Age = counter.Second
		for _, c := range []struct {
			what  string
			check counter.Check
			want  int
		}{{"take", take, want}, {"up to n", upTo, want + 24}, {"a lease", lease, want + 32}} {
			if got := len(appendCheck(nil, &c.check)); got != c.want {
				t.Errorf("%s: %s takes %d bytes of the plan, want %d", a, c.what, got, c.want)
			}
		}
	}
}
