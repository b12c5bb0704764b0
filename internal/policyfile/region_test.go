// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/core/counter"
)

func regional(t *testing.T, rest string) *Document {
	t.Helper()
	d, err := Decode("policy.yaml", YAML, []byte("name: shop\n"+rest))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// limitsIn returns the limits that the first rule and its tier gold have in a region.
func limitsIn(t *testing.T, d *Document, region string) (limits []string) {
	t.Helper()
	here := *d
	if err := here.InRegion(region); err != nil {
		t.Fatal(err)
	}
	p, err := here.Policy()
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range [][]counter.Limit{p.Rules[0].Limits, p.Rules[0].Tiers["gold"].Limits} {
		for _, l := range list {
			limits = append(limits, l.String())
		}
	}
	return limits
}

// TestRegions: a document in a region has the region's parts of its limits, and without a region
// the whole limits. The version is the same in every region.
func TestRegions(t *testing.T) {
	d := regional(t, `regions: {us: 50, eu: 30, ap: 20}
across: share
tier: {attr: plan}
rules: [{name: api, limit: ["11/1h", "20/1s burst 40"], tiers: {gold: 7/day}}]
`)
	if err := d.Check(); err != nil {
		t.Fatal(err)
	}
	version := d.Version()
	for region, want := range map[string]string{
		"us": "6/1h, 10/1s burst 20, 4/day",
		"eu": "3/1h, 6/1s burst 12, 2/day",
		"ap": "2/1h, 4/1s burst 8, 1/day",
	} {
		if got := strings.Join(limitsIn(t, d, region), ", "); got != want {
			t.Errorf("%s has %s, want %s", region, got, want)
		}
	}
	p, err := d.Policy()
	if err != nil || p.Rules[0].Limits[0].Count() != 11 || p.Rules[0].Region != nil {
		t.Errorf("without a region: %+v, %v", p.Rules[0], err)
	}
	if err := d.InRegion("eu"); err != nil || d.Version() != version || d.Region() != "eu" {
		t.Errorf("in eu: version %s, want %s; region %q, error %v", d.Version(), version, d.Region(), err)
	}
	if p, err = d.Policy(); err != nil || p.Rules[0].Region.Division.Part(100) != 30 {
		t.Errorf("the division of eu gives %d of 100, error %v", p.Rules[0].Region.Division.Part(100), err)
	}
}

// TestRegionsThatTellEachOther: with gossip each region has the whole limits.
func TestRegionsThatTellEachOther(t *testing.T) {
	d := regional(t, `regions: {us: 50, eu: 30}
across: share
tier: {attr: plan}
rules: [{name: api, limit: [11/1h, 20/day], tiers: {gold: 7/1m}, across: gossip, gossip: 10s}, {name: b, limit: 9/1s}, {name: c, limit: 9/1h, across: gossip}]
`)
	if err := d.Check(); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(limitsIn(t, d, "eu"), ", "); got != "11/1h, 20/day, 7/1m" {
		t.Errorf("eu has %s", got)
	}
	if err := d.InRegion("eu"); err != nil {
		t.Fatal(err)
	}
	p, err := d.Policy()
	if err != nil {
		t.Fatal(err)
	}
	if interval, rules := GossipInterval(&p); interval != counter.Second || strings.Join(rules, " ") != "api c" {
		t.Errorf("%s are told every %s, want api and c every second", rules, interval)
	}
	if r := p.Rules[0].Region; r.Gossip != 10*counter.Second || r.Lends || r.Division.Part(100) != 38 {
		t.Errorf("the region of the rule is %+v", r)
	}
}

// TestInRegion: a process without a region, or with another one, rejects a policy with regions. A
// policy without regions is the same in every region.
func TestInRegion(t *testing.T) {
	const rules = "rules: [{name: api, limit: 10/1h}]\n"
	d := regional(t, "regions: {us: 5, eu: 5}\nacross: share\n"+rules)
	for region, want := range map[string]string{"": "none of them", "ap": `regions: "ap"`} {
		if err := d.InRegion(region); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "policy.yaml:2") {
			t.Errorf("region %q: error %v, want one about %s", region, err, want)
		}
	}
	d = regional(t, rules)
	if got := limitsIn(t, d, "ap"); len(got) != 1 || got[0] != "10/1h" {
		t.Errorf("without regions: %v", got)
	}
}

// TestRegionProblems: no setting about regions is accepted and then ignored.
func TestRegionProblems(t *testing.T) {
	const rule = "rules: [{name: api, limit: 10/1h}]\n"
	for text, want := range map[string]string{
		"regions: {us: 1, eu: 1}\n" + rule:                                                                                              `rules[0] "api".across: is missing: the policy has regions`,
		"across: share\n" + rule:                                                                                                        `across: "share": has no effect without regions`,
		"rules: [{name: api, limit: 10/1h, across: share}]\n":                                                                           `rules[0] "api".across: "share": has no effect without regions`,
		"regions: {us: 1}\nacross: share\nrules: [{name: api, action: block, across: share}]\n":                                         "has no effect on a rule without limits",
		"regions: {us: 1, eu: 1}\nacross: lease\nrules: [{name: api, limit: 10/1h token_bucket}]\n":                                     `limit[0]: "10/1h token_bucket": cannot be lent among regions`,
		"regions: {us: 1, eu: 1}\nacross: lease\nrules: [{name: api, limit: 10/1h, shards: 2}]\n":                                       "shards: does not go with across: lease",
		"regions: {us: 1, eu: 1}\nacross: gossip\nrules: [{name: api, limit: 10/1h token_bucket}]\n":                                    `limit[0]: "10/1h token_bucket": cannot be told to other regions`,
		"regions: {us: 1, eu: 1}\nacross: gossip\nrules: [{name: api, limit: 10/1h, tiers: {t: 9/1h sliding_log}}]\ntier: {attr: plan}": "cannot be told to other regions",
		"regions: {us: 1, eu: 1}\nacross: gossip\nrules: [{name: api, limit: 10/1h, shards: 2}]\n":                                      "shards: does not go with across: gossip",
		"regions: {us: 1, eu: 1}\nacross: gossip\nrules: [{name: api, limit: 10/5s}]\n":                                                 "has a window of less than 6 times the 1s in which",
		"regions: {us: 1, eu: 1}\nacross: gossip\nrules: [{name: api, limit: 10/1m, gossip: 11s}]\n":                                    "has a window of less than 6 times the 11s in which",
		"regions: {us: 1, eu: 1}\nacross: gossip\nrules: [{name: api, limit: 10/1m, gossip: 10ms}]\n":                                   `gossip: "10ms": is out of bounds`,
		"regions: {us: 1, eu: 1}\nacross: share\nrules: [{name: api, limit: 10/1m, gossip: 1s}]\n":                                      `gossip: "1s": has no effect without across: gossip`,
		"rules: [{name: api, limit: 10/1m, gossip: 1s}]\n":                                                                              `gossip: "1s": has no effect without across: gossip`,
		"regions: {us: 1, eu: 1}\nacross: home\n" + rule:                                                                                "let the processes of all regions use one Redis",
		"regions: {us: 1, eu: 1}\nacross: shared\n" + rule:                                                                              `across: "shared": is not a known value; did you mean "share"?`,
		"regions: {us: 1, eu: 0}\nacross: share\n" + rule:                                                                               `regions.eu: "0": is not between 1 and 1000`,
		"regions: {us: 1, eu: x}\nacross: share\n" + rule:                                                                               "regions.eu",
		"regions: {us: 1, EU: 1}\nacross: share\n" + rule:                                                                               "regions.EU: is not the name of a region",
		"regions: [us, eu]\nacross: share\n" + rule:                                                                                     "write the share of each region",
		"regions: {a: 1, b: 1, c: 1, d: 1, e: 1, f: 1, g: 1, h: 1, i: 1}\nacross: share\n" + rule:                                       "regions: has 9 regions, more than 8",
		"regions: {us: 1000, eu: 1}\nacross: share\n" + rule:                                                                            `limit[0]: "10/1h": has no unit for region eu`,
		"regions: {us: 1, eu: 1}\nacross: share\nrules: [{name: api, limit: 10/1h, tiers: {t: 1/1h}}]\ntier: {attr: plan}":              "has no unit for region us",
		"regions: {us: 5, eu: 1}\nacross: share\nrules: [{name: api, limit: 12/1h, cost: 3}]":                                           ", in region eu",
		"regions: {us: 1, eu: 1}\nacross: share\nrules: [{name: api, limit: 12/1h, shards: 4}]":                                         ", in region eu",
		"region: eu\n" + rule: "it belongs to the process that enforces the policy",
	} {
		d, err := Decode("policy.yaml", YAML, []byte("name: shop\n"+text))
		if err == nil {
			err = d.Check()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\nerror %v, want one with %q", text, err, want)
		}
	}
}
