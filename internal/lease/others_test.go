// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
)

// TestObserve: a denial is remembered until its wait has passed, counted from when the request was
// sent. It is not remembered for more than a second, nor after leased units of other nodes might
// have been refunded. A request with a smaller cost still calls the store.
func TestObserve(t *testing.T) {
	for name, c := range map[string]struct {
		wait, leased, until counter.Micros
	}{
		"its wait":          {30 * counter.Millisecond, 0, 31 * counter.Millisecond},
		"a second":          {counter.Minute, 0, counter.Second + counter.Millisecond},
		"units come back":   {counter.Minute, 10 * counter.Millisecond, 13 * counter.Millisecond},
		"what never fits":   {counter.Never, 0, counter.Second + counter.Millisecond},
		"less than a gap":   {counter.Millisecond, 0, 2 * counter.Millisecond},
		"already over":      {1, 0, counter.Millisecond + 1},
		"leased for longer": {5 * counter.Millisecond, counter.Second, 6 * counter.Millisecond},
	} {
		var ctr Counter
		l := limittest.New(t, "100/1m")
		sent, now := counter.Millisecond, 3*counter.Millisecond
		ctr.Observe(now, sent, l, 5, &counter.Result{Denied: true, Wait: c.wait, LeasedIn: c.leased, Remaining: 3, Reset: counter.Minute})
		if ctr.Denies(c.until, l, 5) {
			t.Errorf("%s: refused after it is over", name)
		}
		if c.until-1 >= now && !ctr.Denies(c.until-1, l, 5) {
			t.Errorf("%s: forgotten before", name)
		}
		if ctr.Denies(c.until-1, l, 4) || ctr.Denies(c.until-1, limittest.New(t, "101/1m"), 5) {
			t.Errorf("%s: a smaller cost, or a raised limit, is refused", name)
		}
	}
}

// TestSending: the call includes requests that began to wait after Ask, and the deadline of leased
// units counts from when the call was sent.
func TestSending(t *testing.T) {
	var c Counter
	l := limittest.New(t, "100/1m")
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

// TestAllows: Allows accepts everything that a counter may request, and nothing more.
func TestAllows(t *testing.T) {
	l := limittest.New(t, "1000/1s token_bucket")
	for _, c := range []struct {
		extra, share int64
		age          counter.Micros
		want         bool
	}{
		{50, 1000, 50 * counter.Millisecond, true}, {51, 0, 1, false}, {-1, 0, 1, false}, {0, 1001, 1, false}, {0, -1, 1, false},
		{50, 0, 50*counter.Millisecond + 1, false}, {1, 1, -1, false}, {0, 0, 0, true},
	} {
		if Allows(l, c.extra, c.share, c.age) != c.want {
			t.Errorf("%+v", c)
		}
	}
	if minute := limittest.New(t, "1000/1m fixed_window"); !Allows(minute, 50, 0, 6*counter.Second) || Allows(minute, 50, 0, 6*counter.Second+1) {
		t.Error("of a window")
	}
}
