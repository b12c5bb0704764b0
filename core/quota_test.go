// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/penstock/penstock/core/policy"
)

func withQuota(r policy.Rule) policy.Rule {
	r.Quota = true
	return r
}

// TestQuota: of several descriptors with quota, one with room is enough. If no descriptor has room,
// the request is denied and nothing is charged.
func TestQuota(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket"} {
		rs := compiled(t, policy.Policy{Rules: []policy.Rule{withQuota(perAttr("a", "1/1m "+algorithm, t)), withQuota(perAttr("b", "3/1m "+algorithm, t)),
			perAttr("n", "9/1m "+algorithm, t)}})
		c := newCounters()
		for i, want := range []struct {
			denied, a, b bool
			left         int64 // of n
		}{{left: 8}, {a: true, left: 7}, {a: true, left: 6}, {true, true, true, 6}, {true, true, true, 6}} {
			ds := []Descriptor{{Ruleset: rs, Attributes: entriesOnly("a", "1"), Hits: 1}, {Ruleset: rs, Attributes: entriesOnly("b", "1"), Hits: 1},
				{Ruleset: rs, Attributes: entriesOnly("n", "1"), Hits: 1}}
			plan, d := c.describe(t, ds)
			a, b, n := plan.Status(&ds[0]), plan.Status(&ds[1]), plan.Status(&ds[2])
			if d.Denied() != want.denied || a.Denied != want.a || b.Denied != want.b || n.Denied {
				t.Errorf("%s: request %d: refused %t: %+v, %+v, %+v", algorithm, i, d.Denied(), a, b, n)
			}
			if left := c.unitsLeft(t, rs, "n", "1"); left != want.left {
				t.Errorf("%s: request %d: %d left, want %d", algorithm, i, left, want.left)
			}
			if d.Denied() && (d.Outcome != OutcomeDenied || d.RetryAfter <= 0 || d.Rule != "a" && d.Rule != "b") {
				t.Errorf("%s: request %d: %+v", algorithm, i, d)
			}
		}
	}
}

// TestQuotaReports: reported hits stay charged, exactly once.
func TestQuotaReports(t *testing.T) {
	rs := compiled(t, policy.Policy{Rules: []policy.Rule{withQuota(perAttr("a", "1/1m fw", t)), withQuota(perAttr("b", "1/1m fw", t)), perAttr("n", "9/1m fw", t)}})
	c := newCounters()
	for i, want := range []int64{7, 5, 3} {
		c.describe(t, []Descriptor{{Ruleset: rs, Attributes: entriesOnly("a", "1"), Hits: 1}, {Ruleset: rs, Attributes: entriesOnly("b", "1"), Hits: 1},
			{Ruleset: rs, Attributes: entriesOnly("n", "1"), Hits: 1}, {Ruleset: rs, Attributes: entriesOnly("n", "1"), Hits: 2, Past: PastYes}})
		if left := c.unitsLeft(t, rs, "n", "1"); left != want {
			t.Errorf("request %d: %d left, want %d", i, left, want)
		}
	}
}

// TestQuotaAlike compares decisions with what quota promises, for random limits and requests.
func TestQuotaAlike(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 12))
	denied, passed := 0, 0
	for range 300 {
		const names = "abcde"
		var p policy.Policy
		limits, quota, shadow := map[string]int64{}, map[string]bool{}, map[string]bool{}
		for _, letter := range names {
			name := string(letter)
			limits[name], quota[name] = int64(1+rnd.IntN(6)), rnd.IntN(3) > 0
			shadow[name] = rnd.IntN(8) == 0
			r := perAttr(name, fmt.Sprintf("%d/1m %s", limits[name], []string{"fw", "sw", "sl", "tb"}[rnd.IntN(4)]), t)
			if r.Quota = quota[name]; shadow[name] {
				r.Action = policy.ActionLogOnly
			}
			p.Rules = append(p.Rules, r)
		}
		rs, c, used := compiled(t, p), newCounters(), map[string]int64{}
		for range 20 {
			var ds []Descriptor
			var asked []string
			offers, room, over := 0, 0, false
			for _, i := range rnd.Perm(len(names))[:1+rnd.IntN(4)] {
				name := names[i : i+1]
				asked = append(asked, name)
				ds = append(ds, Descriptor{Ruleset: rs, Attributes: entriesOnly(name, "1"), Hits: 1})
				fits := used[name] < limits[name] || shadow[name]
				switch {
				case quota[name] && fits:
					offers, room = offers+1, room+1
				case quota[name]:
					offers++
				case !fits:
					over = true
				}
			}
			want := over || offers > 0 && room == 0
			if _, d := c.describe(t, ds); d.Denied() != want {
				t.Fatalf("%v of %v, used %v, quota %v, shadow %v: refused %t, want %t", asked, limits, used, quota, shadow, d.Denied(), want)
			}
			if want {
				denied++
				continue
			}
			passed++
			for _, name := range asked {
				used[name] = min(limits[name], used[name]+1)
			}
		}
		for name := range limits {
			if left := c.unitsLeft(t, rs, name, "1"); left != limits[name]-used[name] && !shadow[name] {
				t.Fatalf("%s: %d left, want %d of %d", name, left, limits[name]-used[name], limits[name])
			}
		}
	}
	if denied < 500 || passed < 500 {
		t.Errorf("%d refused, %d passed", denied, passed)
	}
}
