// SPDX-License-Identifier: Apache-2.0

package regionstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/eventually"
)

// marker collects the names that a store writes.
type marker struct {
	mu     sync.Mutex
	names  []string
	writes int
	err    error
}

func (m *marker) mark(names []string) (int64, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	if m.err != nil {
		return 0, false, m.err
	}
	m.names = append(m.names, names...)
	return 0, true, nil
}

func (m *marker) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

func (m *marker) seen() (names []string, writes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(slices.Values(m.names)), m.writes
}

// TestChangedCountersAreNamed tests that the store writes the names of counters that may have
// changed, if their use is reported to other regions. Each name is written once, however often its
// counter changed. After an error, the names are written again. The last names are written when the
// store closes.
func TestChangedCountersAreNamed(t *testing.T) {
	_, whole := limits(t)
	inner, m := &granting{}, new(marker)
	s := New(inner, Agency{Mark: func(_ context.Context, names []string) (int64, bool, error) { return m.mark(names) }}, nil)
	take := func(key string, change func(c *counter.Check)) {
		t.Helper()
		checks := []counter.Check{{Key: []byte(key + counter.KeyTail(&whole)), Limit: &whole, Cost: 1, Gossip: true}}
		change(&checks[0])
		_ = s.Take(t.Context(), checks, make([]counter.Result, 1))
	}
	as := func(*counter.Check) {}
	m.fail(errors.New("away"))
	for range 5 {
		take("told", as)
	}
	take("not told", func(c *counter.Check) { c.Gossip = false })
	take("looked at", func(c *counter.Check) { c.Op = counter.OpLook })
	take("refunded", func(c *counter.Check) { c.Op = counter.OpRefund })
	inner.denied = true
	take("denied", as)
	inner.err = counter.ErrUnavailable
	take("unknown", as)
	inner.err, inner.denied = nil, false
	eventually.Until(t, patience, "a failed attempt", func() bool { _, writes := m.seen(); return writes > 0 })
	m.fail(nil)
	want := []string{"100/1h||told:3600s:sw", "100/1h||unknown:3600s:sw"}
	eventually.Until(t, patience, "the names are written", func() bool { names, _ := m.seen(); return slices.Equal(names, want) })
	take("last", as)
	s.Close()
	if names, _ := m.seen(); !slices.Contains(names, "100/1h||last:3600s:sw") {
		t.Errorf("a store that closes has written only %q", names)
	}
}

// TestChangedCountersAreBounded: names beyond the bound are counted, and not kept.
func TestChangedCountersAreBounded(t *testing.T) {
	_, whole := limits(t)
	s := New(&granting{}, Agency{Mark: func(_ context.Context, names []string) (int64, bool, error) {
		if len(names) > marksMax {
			t.Errorf("%d names in one command", len(names))
		}
		return 3, true, nil
	}}, nil)
	s.changes.started.Do(func() {}) // nothing is written
	for i := range changedMax + 7 {
		_ = s.Take(t.Context(), []counter.Check{{Key: fmt.Append(nil, i), Limit: &whole, Cost: 1, Gossip: true}}, make([]counter.Result, 1))
	}
	s.changes.write(markTime)
	if left, removed := s.ChangesLeft(); left != 7 || removed != 3*changedMax/marksMax {
		t.Errorf("%d left out, %d removed", left, removed)
	}
	s.Close()
}

// TestParseChanged: the name of a counter is parsed to the counter that was written. Any other text
// is an error.
func TestParseChanged(t *testing.T) {
	for _, limit := range []string{"100/1h", "7/10s fixed_window", "5/month", "3/1m token_bucket"} {
		l, err := counter.ParseLimit(limit)
		if err != nil {
			t.Fatal(err)
		}
		c := Changed{Key: "rl1:n:api:{user:a|b}" + counter.KeyTail(&l), Limit: l}
		if l.Calendar() != 0 {
			c.Bounds = &counter.Bounds{1, 20, 300, 4000}
		}
		got, err := ParseChanged(c.String())
		if err != nil || got.Key != c.Key || got.Limit != l || (got.Bounds == nil) != (c.Bounds == nil) || c.Bounds != nil && *got.Bounds != *c.Bounds {
			t.Errorf("%q is read as %+v, error %v", c.String(), got, err)
		}
	}
	for _, name := range []string{"", "|", "||", "100/1h||", "100/1h||k", "100/1h|1,2,3,4|k:3600s:sw", "5/month||k:month:fw", "5/month|1,2,3|k:month:fw",
		"5/month|1,2,3,3|k:month:fw", "5/month|0,2,3,4|k:month:fw", "5/month|1,2,3,9007199254740993|k:month:fw",
		"100/1h||" + strings.Repeat("k", KeyBytesMax) + ":3600s:sw"} {
		if c, err := ParseChanged(name); err == nil {
			t.Errorf("%q is read as %+v", name, c)
		}
	}
}

// granting is a store that grants as many units as a check asks for.
type granting struct {
	below
}

func (g *granting) Take(_ context.Context, checks []counter.Check, results []counter.Result) error {
	for i := range checks {
		if results[i] = (counter.Result{Denied: g.denied}); !g.denied {
			results[i].Granted = checks[i].Cost
		}
	}
	return g.err
}
