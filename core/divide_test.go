// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/limittest"
)

// regionRules returns a policy in a region that has the given share out of 10. The policy's rule
// api allows 10 requests an hour in all regions together.
func regionRules(t *testing.T, share int64, shards int, limits ...string) *Ruleset {
	t.Helper()
	d := policy.Division{Shares: [policy.RegionsMax]uint16{uint16(share), uint16(10 - share)}}
	r := policy.Rule{Name: "api", Limits: limittest.All(t, limits...), Shards: shards, Region: &policy.RegionPart{Division: d}}
	for i := range r.Limits {
		part, ok := d.Limit(&r.Limits[i])
		if !ok {
			t.Fatalf("%v has no part", r.Limits[i])
		}
		r.Limits[i] = part
	}
	return mustCompile(t, policy.Policy{Name: "n", Identify: []policy.Identify{{Kind: policy.IdentifyHeader, Name: "X-User", Unverified: true}},
		Rules: []policy.Rule{r}})
}

// checksFor returns the checks for a client with a record.
func checksFor(rs *Ruleset, record *policy.ClientRecord) []counter.Check {
	var plan Plan
	plan.UseDirectory(oneRecord{record})
	plan.Add(rs, &client{peer: netip.MustParseAddr("192.0.2.1"), header: map[string]string{"X-User": "ann"}, now: 30 * counter.Minute})
	return slices.Clone(plan.Checks())
}

// TestOwnLimitsAreDivided: the regions' parts of a client's own limits add up to these limits, no
// matter which rules have cached parts before.
func TestOwnLimitsAreDivided(t *testing.T) {
	three, seven := regionRules(t, 3, 0, "10/1h fixed_window"), otherRegion(t)
	whole := mustCompile(t, policy.Policy{Name: "n", Identify: []policy.Identify{{Kind: policy.IdentifyHeader, Name: "X-User", Unverified: true}},
		Rules: []policy.Rule{{Name: "api", Limits: limittest.All(t, "10/1h fixed_window")}}})
	for _, rule := range []string{"api", "*"} {
		record := &policy.ClientRecord{Overrides: parseOwnLimits(t, map[string]string{rule: "25/1h fixed_window"})}
		for range 2 {
			for want, rs := range map[int64]*Ruleset{8: three, 17: seven, 25: whole} { // the parts are 7.5 and 17.5, and the first region gets the remaining unit
				checks := checksFor(rs, record)
				if n := checks[0].Limit.Count(); n != want || checks[0].Cost != 1 {
					t.Errorf("under %q: %d of 25, cost %d, want %d", rule, n, checks[0].Cost, want)
				}
			}
		}
	}
}

// TestOwnLimitsWithoutAPart: a region that has no unit of a client's own limit admits nothing.
func TestOwnLimitsWithoutAPart(t *testing.T) {
	rs := regionRules(t, 2, 0, "10/1h fixed_window")
	record := &policy.ClientRecord{Overrides: parseOwnLimits(t, map[string]string{"api": "1/1h fixed_window"})}
	checks := checksFor(rs, record)
	slots, results := make([]counter.Slot, 1), make([]counter.Result, 1)
	counter.Decide(30*counter.Minute, checks, slots, results)
	if !results[0].Denied {
		t.Errorf("%+v is admitted", checks[0])
	}
	all, err := record.Overrides.WithGrants([]policy.Grant{{Rule: "api", Units: 100, At: 30 * counter.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	if checks = checksFor(rs, &policy.ClientRecord{Overrides: all}); checks[0].Cost <= checks[0].Limit.Capacity() {
		t.Errorf("a grant admits %+v", checks[0])
	}
}

// TestAGrantOpensOneLimit: a limit of which the region has no unit stays closed when a grant raises
// another limit of the client. It does not matter which rules have cached the raised limits before.
func TestAGrantOpensOneLimit(t *testing.T) {
	own := parseOwnLimits(t, map[string]string{"api": "1/1h fixed_window,100/1d fixed_window"})
	all, err := own.WithGrants([]policy.Grant{{Rule: "api", Window: "86400s", Units: 50, At: 30 * counter.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	record := &policy.ClientRecord{Overrides: all}
	small, large := regionRules(t, 2, 0, "10/1h fixed_window"), regionRules(t, 8, 0, "10/1h fixed_window")
	for range 2 {
		for rs, closed := range map[*Ruleset]bool{small: true, large: false} {
			checks := checksFor(rs, record)
			if len(checks) != 2 || (checks[0].Cost > checks[0].Limit.Capacity()) != closed || checks[1].Cost != 1 {
				t.Errorf("closed %t: %+v", closed, checks)
			}
		}
	}
}

// TestGrantsAreDivided: the regions' parts of a grant add up to the grant.
func TestGrantsAreDivided(t *testing.T) {
	all, err := (*policy.Overrides)(nil).WithGrants([]policy.Grant{{Rule: "api", Units: 15, At: 30 * counter.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for self := range 2 {
		rs := regionRules(t, 3, 0, "10/1h fixed_window")
		if self == 1 {
			rs = otherRegion(t)
		}
		sum += checksFor(rs, &policy.ClientRecord{Overrides: all})[0].Limit.Count()
	}
	if sum != 25 {
		t.Errorf("the limits of both regions add up to %d, want 25", sum)
	}
}

// otherRegion returns the policy of regionRules(t, 3, …) as it is in the second region.
func otherRegion(t *testing.T) *Ruleset {
	t.Helper()
	d := policy.Division{Shares: [policy.RegionsMax]uint16{3, 7}, Self: 1}
	return mustCompile(t, policy.Policy{Name: "n", Identify: []policy.Identify{{Kind: policy.IdentifyHeader, Name: "X-User", Unverified: true}},
		Rules: []policy.Rule{{Name: "api", Limits: limittest.All(t, "7/1h fixed_window"), Region: &policy.RegionPart{Division: d}}}})
}

// TestTheStricterLimitIsLent: if two limits use one counter, the check has the stricter limit, and
// its limit over all regions belongs to the stricter one, too.
func TestTheStricterLimitIsLent(t *testing.T) {
	d := policy.Division{Shares: [policy.RegionsMax]uint16{3, 7}}
	lent := func(part, whole string) *Ruleset {
		r := perAttr("a", part, t)
		r.Region = &policy.RegionPart{Division: d, Lends: true, Whole: limittest.All(t, whole)}
		return compiled(t, policy.Policy{Name: "n", Rules: []policy.Rule{r}})
	}
	wide, strict := lent("30/1h fw", "100/1h fw"), lent("15/1h fw", "50/1h fw")
	for _, order := range [][2]*Ruleset{{wide, strict}, {strict, wide}} {
		var plan Plan
		plan.AddDescriptors([]Descriptor{{Ruleset: order[0], Attributes: entriesOnly("a", "1"), Hits: 1},
			{Ruleset: order[1], Attributes: entriesOnly("a", "1"), Hits: 1}})
		checks := plan.Checks()
		if len(checks) != 1 || checks[0].Limit.Count() != 15 || checks[0].WholeLimit == nil || checks[0].WholeLimit.Count() != 50 {
			t.Errorf("%+v", checks)
		}
	}
}

// TestShardsOfARegion: under a rule with shards, a client's own limit is divided among the regions
// first.
func TestShardsOfARegion(t *testing.T) {
	rs := regionRules(t, 4, 2, "10/1h fixed_window")
	record := &policy.ClientRecord{Overrides: parseOwnLimits(t, map[string]string{"api": "50/1h fixed_window"})}
	checks := checksFor(rs, record)
	if n := checks[0].Limit.Count(); n != 10 || checks[0].UnshardedLimit == nil || checks[0].UnshardedLimit.Count() != 20 {
		t.Errorf("a shard has %d of %v, want 10 of 20", n, checks[0].UnshardedLimit)
	}
}

// TestToldLimitsAreWhole: with gossip, each region applies a client's own limits and grants
// undivided. If gossip does not support a limit, each region applies only its part.
func TestToldLimitsAreWhole(t *testing.T) {
	d := policy.Division{Shares: [policy.RegionsMax]uint16{3, 7}}
	rs := mustCompile(t, policy.Policy{Name: "n", Identify: []policy.Identify{{Kind: policy.IdentifyHeader, Name: "X-User", Unverified: true}},
		Rules: []policy.Rule{{Name: "api", Limits: limittest.All(t, "10/1h fixed_window"),
			Region: &policy.RegionPart{Division: d, Gossip: counter.Second}}}})
	own := func(limit string) *policy.Overrides { return parseOwnLimits(t, map[string]string{"api": limit}) }
	granted, err := own("20/1h fixed_window").WithGrants([]policy.Grant{{Rule: "api", Units: 5, At: 30 * counter.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		own  *policy.Overrides
		want int64
		told bool
	}{{nil, 10, true}, {own("20/1h fixed_window"), 20, true}, {own("20/1h token_bucket"), 6, false}, {own("20/5s"), 6, false}, {granted, 25, true}} {
		for range 2 {
			checks := checksFor(rs, &policy.ClientRecord{Overrides: c.own})
			if got := checks[0].Limit.Count(); got != c.want || checks[0].Gossip != c.told || checks[0].WholeLimit != nil {
				t.Errorf("a check of %d units, told: %t, want %d, %t", got, checks[0].Gossip, c.want, c.told)
			}
		}
	}
}
