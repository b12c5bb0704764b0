// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/internal/test/limittest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// entriesOnly returns a descriptor that has only attributes.
func entriesOnly(pairs ...string) *client {
	c := &client{attr: map[string]string{}, now: newCounters().now}
	for i := 0; i < len(pairs); i += 2 {
		c.attr[pairs[i]] = pairs[i+1]
	}
	return c
}

func perAttr(name, limit string, tb testing.TB) policy.Rule {
	return policy.Rule{Name: name, Match: policy.Match{Attr: []policy.AttrMatch{{Name: name}}}, Per: []policy.Dimension{{Kind: policy.PerAttr, Name: name}},
		Limits: []counter.Limit{limittest.Parse(tb, limit)}}
}

// mapStore.describe sends one request with several descriptors to the store, and then the reports.
func (c *mapStore) describe(t *testing.T, ds []Descriptor) (*Plan, Decision) {
	t.Helper()
	plan := new(Plan)
	plan.AddDescriptors(ds)
	checks, results := plan.Checks(), plan.Results()
	if err := counter.ValidateChecks(checks, results); err != nil {
		t.Fatal(err)
	}
	c.take(checks, results)
	for plan.TryNextQuota(ds) {
		c.take(checks, results)
	}
	d := plan.DecideDescriptors(ds)
	if reports := plan.Reports(nil, ds, d.Denied()); len(reports) > 0 && len(checks) > 0 {
		results := make([]counter.Result, len(reports))
		if err := counter.ValidateChecks(reports, results); err != nil {
			t.Fatal(err)
		}
		c.take(reports, results)
	}
	return plan, d
}

// unitsLeft returns how many units remain of the limit for an attribute. unitsLeft charges nothing.
func (c *mapStore) unitsLeft(t *testing.T, rs *Ruleset, pairs ...string) int64 {
	t.Helper()
	ds := []Descriptor{{Ruleset: rs, Attributes: entriesOnly(pairs...), Negative: true}}
	plan, _ := c.describe(t, ds)
	return plan.Status(&ds[0]).Remaining
}

func compiled(t *testing.T, p policy.Policy) *Ruleset {
	t.Helper()
	rs, err := Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

// TestDescriptorsAreAllOrNothing: if one descriptor is over its limit, no other descriptor is
// charged. Each descriptor reports its own limit.
func TestDescriptorsAreAllOrNothing(t *testing.T) {
	rs := compiled(t, policy.Policy{Rules: []policy.Rule{perAttr("a", "2/1m fixed_window", t), perAttr("b", "9/1m fixed_window", t)}})
	c := newCounters()
	both := func() []Descriptor {
		return []Descriptor{{Ruleset: rs, Attributes: entriesOnly("a", "1"), Hits: 1}, {Ruleset: rs, Attributes: entriesOnly("b", "1"), Hits: 3},
			{Ruleset: rs, Attributes: entriesOnly("c", "1"), Hits: 1}}
	}
	for i := range 4 {
		ds := both()
		plan, d := c.describe(t, ds)
		if d.Denied() != (i >= 2) {
			t.Fatalf("request %d: refused %t", i, d.Denied())
		}
		a, b, none := plan.Status(&ds[0]), plan.Status(&ds[1]), plan.Status(&ds[2])
		left := int64(9 - 3*min(i+1, 2))
		if a.Denied != (i >= 2) || a.Policy != "a" || a.Remaining != int64(max(0, 1-i)) || b.Denied || b.Remaining != left || b.Policy != "b" {
			t.Errorf("request %d: %+v, %+v", i, a, b)
		}
		if diff := cmp.Diff(DescriptorStatus{}, none); diff != "" {
			t.Error(diff)
		}
		if d.Denied() && (d.Rule != "a" || HeadersOf(plan, &d).RetryAfter == "") {
			t.Errorf("refused by %q", d.Rule)
		}
	}
}

// TestDescriptorsShareACounter: descriptors with the same counter charge it once, by the highest of
// their costs.
func TestDescriptorsShareACounter(t *testing.T) {
	rs := compiled(t, policy.Policy{Rules: []policy.Rule{perAttr("a", "10/1m fixed_window", t), perAttr("b", "10/1m fixed_window", t)}})
	c := newCounters()
	ds := []Descriptor{{Ruleset: rs, Attributes: entriesOnly("a", "1"), Hits: 2},
		{Ruleset: rs, Attributes: entriesOnly("a", "1", "b", "1"), Hits: 4}, {Ruleset: rs, Attributes: entriesOnly("a", "1"), Hits: 1}}
	plan, d := c.describe(t, ds)
	if d.Denied() || len(plan.Checks()) != 2 || len(plan.Outcomes()) != 2 {
		t.Fatalf("%+v, %d checks, %d outcomes", d, len(plan.Checks()), len(plan.Outcomes()))
	}
	for i, want := range []int64{6, 6, 6} {
		if s := plan.Status(&ds[i]); s.Remaining != want {
			t.Errorf("descriptor %d: %+v, want %d left", i, s, want)
		}
	}
}

// TestHits: zero hits charge nothing, reported hits are charged even beyond the limit, and negative
// hits are refunded to the current window.
func TestHits(t *testing.T) {
	rs := compiled(t, policy.Policy{Rules: []policy.Rule{perAttr("a", "10/1m fixed_window", t), perAttr("s", "10/1m sliding_window", t),
		perAttr("l", "10/1m sliding_log", t), perAttr("t", "10/1m token_bucket", t), perAttr("d", "10/day", t)}})
	for _, name := range []string{"a", "s", "l", "t", "d"} {
		c := newCounters()
		ask := func(d Descriptor) bool {
			d.Ruleset, d.Attributes = rs, entriesOnly(name, "1")
			_, decision := c.describe(t, []Descriptor{d})
			return !decision.Denied()
		}
		step := func(what string, passed, want bool, left int64) {
			t.Helper()
			got := c.unitsLeft(t, rs, name, "1")
			if name == "l" && strings.Contains(what, "back") {
				left = 0 // a sliding log finds charges only by their receipts, so it refunds nothing
			}
			if passed != want || got != left {
				t.Errorf("%s: %s: passed %t, want %t; %d left, want %d", name, what, passed, want, got, left)
			}
		}
		step("look", ask(Descriptor{}), true, 10)
		step("seven", ask(Descriptor{Hits: 7}), true, 3)
		step("four do not fit", ask(Descriptor{Hits: 4}), false, 3)
		step("absurdly many", ask(Descriptor{Hits: 1 << 62}), false, 3)
		step("four reported", ask(Descriptor{Hits: 4, Past: PastYes}), false, 0)
		step("look at nothing", ask(Descriptor{}), false, 0)
		step("back", ask(Descriptor{Hits: 5, Negative: true}), true, 4)
		step("more back than was used", ask(Descriptor{Hits: 1 << 62, Negative: true}), true, 10)
	}
}

// TestHitsThatMayHaveHappened: a request is denied by one of two counters. Hits that have happened
// are charged to both, and hits that may have happened only to the one that denies.
func TestHitsThatMayHaveHappened(t *testing.T) {
	rs := compiled(t, policy.Policy{Rules: []policy.Rule{perAttr("shared", "100/1m fixed_window", t), perAttr("own", "10/1m fixed_window", t)}})
	for past, want := range map[Past]int64{PastNo: 100, PastMaybe: 100, PastYes: 93} {
		c := newCounters()
		c.describe(t, []Descriptor{{Ruleset: rs, Attributes: entriesOnly("own", "1"), Hits: 7}})
		_, decision := c.describe(t, []Descriptor{{Ruleset: rs, Attributes: entriesOnly("shared", "1"), Hits: 7, Past: past},
			{Ruleset: rs, Attributes: entriesOnly("own", "1"), Hits: 7, Past: past}})
		left := map[Past]int64{PastNo: 3}[past]
		if shared, own := c.unitsLeft(t, rs, "shared", "1"), c.unitsLeft(t, rs, "own", "1"); !decision.Denied() || shared != want || own != left {
			t.Errorf("%d: denied %t; %d left of the shared limit, want %d; %d of the own, want %d", past, decision.Denied(), shared, want, own, left)
		}
	}
}

// TestReplaces: a rule in play removes the rules that it replaces, in any order and for any
// descriptor. This holds even for a rule that is replaced itself.
func TestReplaces(t *testing.T) {
	rules := []policy.Rule{perAttr("a", "1/1m", t), perAttr("b", "1/1m", t), perAttr("c", "1/1m", t), perAttr("d", "1/1m", t)}
	rules[0].Replaces = []string{"b"}
	rules[1].Replaces = []string{"c"}
	rs := compiled(t, policy.Policy{Rules: rules})
	for want, attrs := range map[string][]string{
		"a":   {"a", "b"},
		"b":   {"b", "c"},
		"a d": {"d", "c", "b", "a"},
		"a c": {"c", "a"},
		"c d": {"d", "c"},
	} {
		one, several := new(Plan), new(Plan)
		all, ds := entriesOnly(), []Descriptor(nil)
		for _, name := range attrs {
			all.attr[name] = "1"
			ds = append(ds, Descriptor{Ruleset: rs, Attributes: entriesOnly(name, "1"), Hits: 1})
		}
		one.Trace()
		one.Add(rs, all)
		several.AddDescriptors(ds)
		for what, plan := range map[string]*Plan{"one": one, "several": several} {
			var got []string
			for _, o := range plan.Outcomes() {
				got = append(got, rs.RuleName(o.Index))
			}
			slices.Sort(got)
			if strings.Join(got, " ") != want {
				t.Errorf("%s: %v: in play %v, want %s", what, attrs, got, want)
			}
		}
		for _, r := range one.Explain()[0].Rules {
			if replaced := strings.HasPrefix(r.Fate, "replaced by "); replaced == strings.Contains(want, r.Name) {
				t.Errorf("%v: fate of %s: %s", attrs, r.Name, r.Fate)
			}
		}
	}
}

// TestReplacesInGroups: if a group's winner is replaced, no other rule of the group takes its
// place.
func TestReplacesInGroups(t *testing.T) {
	rules := []policy.Rule{perAttr("a", "1/1m", t), perAttr("b", "1/1m", t), perAttr("c", "1/1m", t)}
	rules[1].Group, rules[2].Group, rules[2].Priority = "g", "g", 1
	rules[0].Replaces = []string{"b"}
	rs := compiled(t, policy.Policy{Rules: rules})
	plan := new(Plan)
	plan.Trace()
	plan.Add(rs, entriesOnly("a", "1", "b", "1", "c", "1"))
	if len(plan.Outcomes()) != 1 {
		t.Errorf("%+v", plan.Outcomes())
	}
	fates := map[string]string{"a": "applies", "b": "replaced by a", "c": "lost to b: its priority 0 is before 1"}
	for _, r := range plan.Explain()[0].Rules {
		if r.Fate != fates[r.Name] {
			t.Errorf("fate of %s: %q", r.Name, r.Fate)
		}
	}
}

func TestReplacesProblems(t *testing.T) {
	rules := []policy.Rule{perAttr("a", "1/1m", t), perAttr("b", "1/1m", t), {Name: "c", Action: policy.ActionBlock, Replaces: []string{"a"}}}
	rules[0].Replaces = []string{"a", "x", "b", "b", "c", ""}
	_, err := Compile(policy.Policy{Rules: rules})
	for _, want := range []string{`rules[0].replaces[0]: "a": is the rule itself`, `replaces[1]: "x": is not a rule of this policy`,
		`replaces[3]: "b": is listed twice`, `replaces[4]: "c": blocks`, `replaces[5]: is not a rule of this policy`,
		`rules[2].replaces[0]: "a": never applies`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in\n%v", want, err)
		}
	}
}

// TestDescriptorsDoNotAllocate: deciding descriptors allocates nothing.
func TestDescriptorsDoNotAllocate(t *testing.T) {
	rs := compiled(t, policy.Policy{Rules: []policy.Rule{perAttr("a", "10/1m", t), perAttr("b", "10/1m", t)}})
	ds := []Descriptor{{Ruleset: rs, Attributes: entriesOnly("a", "1"), Hits: 1}, {Ruleset: rs, Attributes: entriesOnly("b", "1"), Hits: 1}}
	var plan Plan
	if n := testing.AllocsPerRun(100, func() {
		plan.Reset()
		plan.AddDescriptors(ds)
		plan.Decide()
		plan.Status(&ds[0])
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestDescriptorsDeniedWithoutTheStore: the plan names the descriptor because of which the request
// is denied, and nothing is charged.
func TestDescriptorsDeniedWithoutTheStore(t *testing.T) {
	deny := perAttr("a", "5/1m", t)
	deny.Per, deny.Missing = []policy.Dimension{{Kind: policy.PerAttr, Name: "never"}}, policy.MissingDeny
	rs := compiled(t, policy.Policy{Rules: []policy.Rule{deny, perAttr("b", "5/1m", t),
		{Name: "c", Match: policy.Match{Attr: []policy.AttrMatch{{Name: "c"}}}, Action: policy.ActionBlock}}})
	for name, want := range map[string]Outcome{"a": OutcomeMissing, "c": OutcomeBlocked} {
		for first, order := range [][]string{{"b", name, "b"}, {name, "b"}} {
			c := newCounters()
			var ds []Descriptor
			for _, attr := range order {
				ds = append(ds, Descriptor{Ruleset: rs, Attributes: entriesOnly(attr, "1"), Hits: 1})
			}
			plan, d := c.describe(t, ds)
			if d.Outcome != want {
				t.Errorf("%v: %s", order, d.Outcome)
			}
			for i := range ds {
				if got := plan.Status(&ds[i]); got.Denied != (order[i] == name) || got.Limit != nil {
					t.Errorf("%v: descriptor %d: %+v", order, i, got)
				}
			}
			if left := c.unitsLeft(t, rs, "b", "1"); left != 5 {
				t.Errorf("%d: %d left", first, left)
			}
		}
	}
}
