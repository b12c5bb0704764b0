// SPDX-License-Identifier: Apache-2.0

package writeoff

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/counter"
)

// TestOneUseOfAPart: a region and its steward never use a part in the same window. After a change,
// the other one begins to use the part in a later window. A sliding window also counts the units of
// the previous window.
func TestOneUseOfAPart(t *testing.T) {
	const hour = counter.Hour
	lost, back := Entry{Generation: 1, Since: 10*hour + 1, Steward: "us"}, Entry{Generation: 2, Since: 10*hour + 1}
	for _, c := range []struct {
		limit string
		b     *counter.Bounds
		at    counter.Micros
		used  bool
	}{
		{"9/1h fixed_window", nil, 11*hour - 1, false},
		{"9/1h fixed_window", nil, 11 * hour, true},
		{"9/1h sliding_window", nil, 12*hour - 1, false},
		{"9/1h sliding_window", nil, 12 * hour, true},
		{"9/day fixed_window", &counter.Bounds{0, 24 * hour, 48 * hour, 72 * hour}, 24*hour - 1, false},
		{"9/day fixed_window", &counter.Bounds{0, 24 * hour, 48 * hour, 72 * hour}, 24 * hour, true},
		{"9/day fixed_window", nil, 24 * hour, false},
	} {
		l, err := counter.ParseLimit(c.limit)
		if err != nil {
			t.Fatal(err)
		}
		if lends, shuts := lost.Lends("us", &l, c.b, c.at), back.Shuts(&l, c.b, c.at); lends != c.used || shuts == c.used {
			t.Errorf("%s at %v: the steward lends %t, the region is shut %t, want %t and %t", c.limit, c.at, lends, shuts, c.used, !c.used)
		}
		if !lost.Shuts(&l, c.b, c.at) || lost.Lends("ap", &l, c.b, c.at) || back.Lends("us", &l, c.b, c.at) || (Entry{}).Shuts(&l, c.b, c.at) {
			t.Errorf("%s at %v: another region than the present one uses the part", c.limit, c.at)
		}
	}
}

// TestChanges: both changes are idempotent, and fail unless the regions that must hear of them are
// reached. A steward that is lost is replaced.
func TestChanges(t *testing.T) {
	s := State{Here: "us", Names: []string{"us", "eu", "ap"}}
	if err := s.Forget("mars", []string{"us"}, 5); err == nil {
		t.Error("a region that is not in the policy was written off")
	}
	if err := s.Forget("eu", []string{"us"}, 5); err == nil || !strings.Contains(err.Error(), "ap") {
		t.Errorf("a region was written off without another: %v", err)
	}
	for range 2 {
		if err := s.Forget("eu", []string{"us", "ap"}, 5); err != nil || s.Entries["eu"] != (Entry{1, 5, "ap"}) {
			t.Errorf("%+v, %v", s, err)
		}
	}
	if err := s.Forget("ap", []string{"us"}, 7); err != nil || s.Entries["ap"] != (Entry{1, 7, "us"}) || s.Entries["eu"] != (Entry{3, 7, "us"}) {
		t.Errorf("%+v, %v", s, err)
	}
	if err := s.Forget("us", []string{"us"}, 8); err == nil {
		t.Error("the last region was written off")
	}
	if err := s.Restore("eu", []string{"eu"}, 9); err == nil {
		t.Error("a region was taken back, and its steward did not hear of it")
	}
	for range 2 {
		if err := s.Restore("eu", []string{"eu", "us"}, 9); err != nil || s.Entries["eu"] != (Entry{Generation: 4, Since: 9}) {
			t.Errorf("%+v, %v", s, err)
		}
	}
	if old := map[string]Entry{"eu": {3, 7, "us"}}; s.Merge(old) || s.Entries["eu"].Generation != 4 {
		t.Errorf("an older generation replaced a newer one: %+v", s)
	}
}

// TestTwoOperators: two operators write off one region each at the same time. Each operator makes
// the region that the other one writes off the steward. When one of them repeats the change, a
// third region becomes the steward of both, and lends their parts only in windows that begin after
// both were lost.
func TestTwoOperators(t *testing.T) {
	names := []string{"ap", "eu", "us", "za"}
	a, b := State{Here: "us", Names: names}, State{Here: "us", Names: names}
	if err := errors.Join(a.Forget("ap", []string{"eu", "us", "za"}, 9), b.Forget("eu", []string{"ap", "us", "za"}, 5)); err != nil {
		t.Fatal(err)
	}
	a.Merge(b.Entries)
	if a.Entries["ap"].Steward != "eu" || a.Entries["eu"].Steward != "ap" {
		t.Fatalf("%+v", a)
	}
	if err := a.Forget("eu", []string{"us", "za"}, 5); err != nil || a.Entries["eu"] != (Entry{3, 9, "us"}) || a.Entries["ap"] != (Entry{3, 9, "us"}) {
		t.Errorf("%+v, %v", a, err)
	}
	if err := a.Restore("mars", names, 9); err == nil {
		t.Error("a region that is not in the policy was taken back")
	}
}

// TestBoundsOfAState: values from other machines add no more regions than a state may have, so that
// the state can still be read.
func TestBoundsOfAState(t *testing.T) {
	s := State{Here: "us", Names: []string{"us"}}
	for i := range 3 * regionsMax {
		s.Merge(map[string]Entry{fmt.Sprintf("%032d", i): {1<<50 - 1, 1 << 60, strings.Repeat("z", nameBytesMax)}})
	}
	text, err := s.Text()
	if err != nil {
		t.Fatal(err)
	}
	if parsed, err := Parse(text); err != nil || len(parsed.Entries) != regionsMax {
		t.Errorf("%d regions, %v", len(parsed.Entries), err)
	}
}

// TestDamagedValues: what cannot be a state is an error.
func TestDamagedValues(t *testing.T) {
	good := State{Here: "us", Names: []string{"us", "eu"}, Entries: map[string]Entry{"eu": {1, 5, "us"}}}
	text, err := good.Text()
	if err != nil {
		t.Fatal(err)
	}
	if s, err := Parse(text); err != nil || s.Entries["eu"] != good.Entries["eu"] {
		t.Errorf("%+v, %v", s, err)
	}
	for _, value := range []string{"", "{", "{}", "7", string(text[:len(text)-2]), strings.Replace(string(text), `"generation":1`, `"generation":2`, 1),
		strings.Replace(string(text), `"steward":"us"`, `"steward":"eu"`, 1), strings.Replace(string(text), `"here":"us"`, `"here":"Ü"`, 1),
		strings.Repeat(" ", stateBytesMax) + string(text)} {
		if s, err := Parse([]byte(value)); !errors.Is(err, ErrDamaged) {
			t.Errorf("%.80q is %+v, %v", value, s, err)
		}
	}
}
