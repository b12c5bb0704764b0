// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"testing"

	"github.com/penstock/penstock/core"
)

func limitOf(t *testing.T, text string) *core.Limit {
	t.Helper()
	l, err := core.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	return &l
}

// TestHear: what a request that asked for itself was refused is remembered for its own wait, counted from when it was sent,
// a second at most; no longer than units on lease may be out; and a smaller cost asks.
func TestHear(t *testing.T) {
	for name, c := range map[string]struct {
		wait, leased, until core.Micros
	}{
		"its wait":          {30 * core.Millisecond, 0, 31 * core.Millisecond},
		"a second":          {core.Minute, 0, core.Second + core.Millisecond},
		"units come back":   {core.Minute, 10 * core.Millisecond, 13 * core.Millisecond},
		"what never fits":   {core.Never, 0, core.Second + core.Millisecond},
		"less than a gap":   {core.Millisecond, 0, 2 * core.Millisecond},
		"already over":      {1, 0, core.Millisecond + 1},
		"leased for longer": {5 * core.Millisecond, core.Second, 6 * core.Millisecond},
	} {
		var counter Counter
		l := limitOf(t, "100/1m")
		sent, now := core.Millisecond, 3*core.Millisecond
		counter.Hear(now, sent, l, 5, &core.Result{Refused: true, Wait: c.wait, LeasedIn: c.leased, Remaining: 3, Reset: core.Minute})
		if counter.Denies(c.until, l, 5) {
			t.Errorf("%s: refused after it is over", name)
		}
		if c.until-1 >= now && !counter.Denies(c.until-1, l, 5) {
			t.Errorf("%s: forgotten before", name)
		}
		if counter.Denies(c.until-1, l, 4) || counter.Denies(c.until-1, limitOf(t, "101/1m"), 5) {
			t.Errorf("%s: a smaller cost, or a raised limit, is refused", name)
		}
	}
}

// TestSending: what has begun to wait since is asked for as well, and what is held is held from when the call went out.
func TestSending(t *testing.T) {
	var c Counter
	l := limitOf(t, "100/1m")
	if v, _ := c.Take(0, l, 1); v != Ask {
		t.Fatal(v)
	}
	a, ok := c.Ask(0, l, 1)
	if !ok || !a.Plain() {
		t.Fatalf("%+v %v", a, ok)
	}
	if v, _ := c.Take(5, l, 3); v != Wait {
		t.Fatal(v)
	}
	c.Sending(7, &a)
	if a.Cost != 4 || a.Max != 4 || a.Min != 1 || a.Plain() || a.sent != 7 {
		t.Errorf("%+v", a)
	}
	c.Sending(8, &a)
	if a.Cost != 4 || a.Max != 4 {
		t.Errorf("asked for twice: %+v", a)
	}
}

// TestAllows: what a counter ever asks is allowed, and no more than that.
func TestAllows(t *testing.T) {
	l := limitOf(t, "1000/1s token_bucket")
	for _, c := range []struct {
		extra, share int64
		age          core.Micros
		want         bool
	}{
		{50, 1000, 50 * core.Millisecond, true}, {51, 0, 1, false}, {-1, 0, 1, false}, {0, 1001, 1, false}, {0, -1, 1, false},
		{50, 0, 50*core.Millisecond + 1, false}, {1, 1, -1, false}, {0, 0, 0, true},
	} {
		if Allows(l, c.extra, c.share, c.age) != c.want {
			t.Errorf("%+v", c)
		}
	}
	if minute := limitOf(t, "1000/1m fixed_window"); !Allows(minute, 50, 0, 6*core.Second) || Allows(minute, 50, 0, 6*core.Second+1) {
		t.Error("of a window")
	}
}
