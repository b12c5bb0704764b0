// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/limittest"
)

// grantingRecord returns a record with the given grants. If limits is not "", the record also has
// own limits for the rule api.
func grantingRecord(t *testing.T, limits string, list ...policy.Grant) *policy.ClientRecord {
	t.Helper()
	var o *policy.Overrides
	if limits != "" {
		o = parseOwnLimits(t, map[string]string{"api": limits})
	}
	all, err := o.WithGrants(list)
	if err != nil {
		t.Fatal(err)
	}
	return &policy.ClientRecord{Overrides: all}
}

func grantRules(t *testing.T, zone *time.Location, limits ...string) *Ruleset {
	return mustCompile(t, policy.Policy{Name: "n", Timezone: zone, Identify: []policy.Identify{{Kind: policy.IdentifyHeader, Name: "X-User", Unverified: true}},
		Rules: []policy.Rule{{Name: "api", Limits: limittest.All(t, limits...)}, {Name: "other", Limits: limittest.All(t, "3/1h fixed_window")}}})
}

// countsAt returns the counts of the limits of the rule api for a client at an instant.
func countsAt(rs *Ruleset, record *policy.ClientRecord, at time.Time) (counts []int64) {
	var plan Plan
	plan.UseDirectory(oneRecord{record})
	plan.Add(rs, &client{peer: netip.MustParseAddr("192.0.2.1"), header: map[string]string{"X-User": "ann"}, now: counter.Micros(at.UnixMicro())})
	for i := range plan.Checks() {
		if plan.ruleOf(i).name == "api" {
			counts = append(counts, plan.Checks()[i].Limit.Count())
		}
	}
	return counts
}

func instant(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// TestGrantsHoldInTheirWindow: a grant raises one limit, from the first to the last microsecond of
// the window that contains the grant. It changes no other limit, rule or window.
func TestGrantsHoldInTheirWindow(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		zone           *time.Location
		limits         []string
		parseOwnLimits string
		window         string
		at             string
		first, last    string // the first and the last instant of the window
		limit          int    // the index of the limit that is raised
		base           int64
	}{
		"an hour":          {nil, []string{"5/1h fixed_window"}, "", "", "2026-11-23T10:20:00Z", "2026-11-23T10:00:00Z", "2026-11-23T10:59:59.999999Z", 0, 5},
		"the longest":      {nil, []string{"5/1h fixed_window", "50/month"}, "", "", "2026-02-10T00:00:00Z", "2026-02-01T00:00:00Z", "2026-02-28T23:59:59.999999Z", 1, 50},
		"the named":        {nil, []string{"5/1h fixed_window", "50/month"}, "", "3600s", "2026-02-10T00:30:00Z", "2026-02-10T00:00:00Z", "2026-02-10T00:59:59.999999Z", 0, 5},
		"not the bucket":   {nil, []string{"5/1d token_bucket", "4/1h fixed_window"}, "", "", "2026-02-10T00:30:00Z", "2026-02-10T00:00:00Z", "2026-02-10T00:59:59.999999Z", 1, 4},
		"a day of DST":     {berlin, []string{"5/day"}, "", "", "2026-10-25T12:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T22:59:59.999999Z", 0, 5},
		"a month of DST":   {berlin, []string{"5/month"}, "", "month", "2026-03-31T21:59:59Z", "2026-02-28T23:00:00Z", "2026-03-31T21:59:59.999999Z", 0, 5},
		"the record's own": {nil, []string{"5/1m"}, "7/1h fixed_window", "", "2026-02-10T00:30:00Z", "2026-02-10T00:00:00Z", "2026-02-10T00:59:59.999999Z", 0, 7},
	} {
		rs := grantRules(t, c.zone, c.limits...)
		at := counter.Micros(instant(t, c.at).UnixMicro())
		record := grantingRecord(t, c.parseOwnLimits, policy.Grant{Rule: "api", Window: c.window, Units: 3, At: at}, policy.Grant{Rule: "api", Window: c.window, Units: 4, At: at})
		first, last := instant(t, c.first), instant(t, c.last)
		for _, moment := range []struct {
			at   time.Time
			more int64
		}{{first.Add(-time.Microsecond), 0}, {first, 7}, {instant(t, c.at), 7}, {last, 7}, {last.Add(time.Microsecond), 0}} {
			counts := countsAt(rs, record, moment.at)
			if len(counts) <= c.limit || counts[c.limit] != c.base+moment.more {
				t.Errorf("%s: at %s the limits are %d, want %d more than %d", name, moment.at, counts, moment.more, c.base)
				continue
			}
			plain := countsAt(rs, grantingRecord(t, c.parseOwnLimits, policy.Grant{Rule: "other", Units: 1, At: at}), moment.at)
			for i := range plain {
				if i != c.limit && counts[i] != plain[i] {
					t.Errorf("%s: the limit %d is %d, and was %d", name, i, counts[i], plain[i])
				}
			}
		}
	}
}

// TestGrantsAdmitExactlyTheirUnits: a client that has used up its limit gets exactly the units of
// the grant, in the same counter.
func TestGrantsAdmitExactlyTheirUnits(t *testing.T) {
	store := newCounters()
	rs := mustCompile(t, policy.Policy{Name: "n", Identify: []policy.Identify{{Kind: policy.IdentifyHeader, Name: "X-User", Unverified: true}},
		Rules: []policy.Rule{{Name: "api", Limits: limittest.All(t, "5/month")}}})
	a := &client{peer: netip.MustParseAddr("192.0.2.1"), header: map[string]string{"X-User": "ann"}, now: store.now}
	admitted := func(record *policy.ClientRecord) (n int) {
		for range 30 {
			plan := new(Plan)
			plan.UseDirectory(oneRecord{record})
			plan.Add(rs, a)
			store.take(plan.Checks(), plan.Results())
			if d := plan.Decide(); !d.Denied() {
				n++
			}
		}
		return n
	}
	before := admitted(nil)
	after := admitted(grantingRecord(t, "", policy.Grant{Rule: "api", Units: 4, At: store.now}))
	if before != 5 || after != 4 {
		t.Errorf("%d admitted before the grant and %d after it, want 5 and 4", before, after)
	}
}

// TestGrantsDoNotAllocate: planning a request of a client with grants allocates nothing.
func TestGrantsDoNotAllocate(t *testing.T) {
	rs := grantRules(t, nil, "5/1h fixed_window", "50/month")
	at := counter.Micros(instant(t, "2026-02-10T00:30:00Z").UnixMicro())
	d := oneRecord{grantingRecord(t, "", policy.Grant{Rule: "api", Units: 3, At: at}, policy.Grant{Rule: "api", Window: "3600s", Units: 3, At: at})}
	var a policy.Attributes = &client{peer: netip.MustParseAddr("192.0.2.1"), header: map[string]string{"X-User": "ann"}, now: at}
	var plan Plan
	ask := func() {
		plan.Reset()
		plan.UseDirectory(d)
		plan.Add(rs, a)
	}
	ask()
	if n := testing.AllocsPerRun(100, ask); n != 0 || plan.Checks()[0].Limit.Count() != 8 || plan.Checks()[1].Limit.Count() != 53 {
		t.Errorf("%v allocations, limits %v and %v", n, plan.Checks()[0].Limit, plan.Checks()[1].Limit)
	}
	if got := plan.AppendUnsharded(nil); got[1].Remaining > 50 {
		t.Errorf("a reader that knows no grants is told %d", got[1].Remaining)
	}
}

// TestGrantsLeaveShardsAlone: a grant for a rule with shards changes neither that rule's limits nor
// the limits of other rules. Only a record that was not written by the commands can have such a
// grant.
func TestGrantsLeaveShardsAlone(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Identify: []policy.Identify{{Kind: policy.IdentifyHeader, Name: "X-User", Unverified: true}},
		Rules: []policy.Rule{{Name: "api", Shards: 2, Limits: limittest.All(t, "10/1h fixed_window")}}})
	at := instant(t, "2026-02-10T00:30:00Z")
	record := grantingRecord(t, "", policy.Grant{Rule: "api", Units: 1000, At: counter.Micros(at.UnixMicro())})
	if got := countsAt(rs, record, at); len(got) != 1 || got[0] != 5 {
		t.Errorf("the limits of a shard with a grant are %v, want [5]", got)
	}
}
