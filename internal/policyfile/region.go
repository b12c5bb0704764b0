// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile/syntax"
)

// The ways to hold a rule's limits over all regions.
const (
	AcrossShare = "share" // each region has its part
	AcrossLease = "lease" // each region has its part, and borrows units from other regions
	// AcrossGossip: each region has the whole limit, and tells other regions what it has counted.
	AcrossGossip = "gossip"
)

// Bounds of the interval at which regions tell each other what they have counted.
const (
	gossipDefault = counter.Second
	gossipMin     = 200 * counter.Millisecond
	gossipMax     = 10 * counter.Minute
)

// acrossLater lists the ways to hold a limit over all regions that this version does not support,
// each with what to write instead.
var acrossLater = map[string]string{
	"home": "write share; or leave regions out, and let the processes of all regions use one Redis",
}

// InRegion makes the document one for a process in a region: Policy and Compile return the region's
// parts of the limits. InRegion has no effect on a policy without regions. Without InRegion, Policy
// and Compile return the whole limits. A process of one region must not enforce these, because
// every region would then admit the whole limit. The error is [policy.Problems].
func (d *Document) InRegion(name string) error {
	if len(d.Regions) == 0 {
		return nil
	}
	names := strings.Join(d.RegionNames(), ", ")
	switch _, known := d.Regions[name]; {
	case name == "":
		return d.regionProblem("", "are the policy's, and this process is in none of them",
			"name one in the configuration of the process: "+names)
	case !known:
		return d.regionProblem(name, "is the region of this process, and none of the policy's",
			"write one of "+names+" in the configuration of the process, or add it with its share")
	}
	d.region = name
	return nil
}

func (d *Document) regionProblem(value, why, remedy string) error {
	return policy.Problems{{Path: "regions", Value: value, Why: why, Remedy: remedy, Place: d.Place("regions")}}
}

// Region returns the region for whose parts of the limits the document is compiled, or "".
func (d *Document) Region() string { return d.region }

// RegionNames returns the names of the policy's regions, sorted.
func (d *Document) RegionNames() []string { return slices.Sorted(maps.Keys(d.Regions)) }

// Division returns how limits are divided for the document's region. Without a region, the result
// divides nothing.
func (d *Document) Division() policy.Division {
	set := (&converter{tree: d.tree}).regions(d)
	self := slices.Index(set.names, d.region)
	if self < 0 {
		return policy.Division{}
	}
	set.division.Self = uint8(self)
	return set.division
}

// regionSet holds the regions of a policy, ready to divide limits.
type regionSet struct {
	*converter
	names    []string // sorted
	division policy.Division
}

// converter.regions reads the shares of the regions.
func (c *converter) regions(d *Document) regionSet {
	s := regionSet{converter: c, names: d.RegionNames()}
	if len(s.names) > policy.RegionsMax {
		c.problem("regions", "", fmt.Sprintf("has %d regions, more than %d", len(s.names), policy.RegionsMax), "write fewer")
		s.names = nil
	}
	for i, name := range s.names {
		at, share := Join("regions", name), d.Regions[name]
		if !IsRegion(name) {
			c.problem(at, "", "is not the name of a region", "write a to z, 0 to 9 and -, 32 characters at most")
		}
		if share < 1 || share > policy.ShareMax {
			c.problem(at, strconv.FormatInt(share, 10), fmt.Sprintf("is not between 1 and %d", policy.ShareMax), "write another share")
			share = 1
		}
		s.division.Shares[i] = uint16(share)
	}
	if d.Across != "" && c.across("across", d.Across) && len(d.Regions) == 0 {
		c.problem("across", d.Across, "has no effect without regions", "write the regions with their shares, or leave it out")
	}
	return s
}

// regionBytesMax is the greatest length of a region's name.
const regionBytesMax = 32

// IsRegion reports whether a text can be the name of a region.
func IsRegion(name string) bool {
	return name != "" && len(name) <= regionBytesMax && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// converter.across reports whether a way to hold a limit over all regions is supported. If the way
// is not supported, the method adds a problem.
func (c *converter) across(path, way string) bool {
	if remedy, later := acrossLater[way]; later {
		c.problem(path, way, "is not yet in this version", remedy)
		return false
	}
	before := len(c.Problems) + c.More
	choose(c, path, way, []choice[bool]{{AcrossShare, true}, {AcrossLease, true}, {AcrossGossip, true}})
	return len(c.Problems)+c.More == before
}

// regionSet.divide replaces the limits of a rule by the parts of the document's region. It reports
// limits of which a region has no unit.
func (s *regionSet) divide(path string, d *Document, source *Rule, r *policy.Rule) {
	if source.Across != "" && !s.across(path+".across", source.Across) {
		return
	}
	counts, way := len(r.Limits)+len(r.Tiers) > 0, cmp.Or(source.Across, d.Across)
	if source.Gossip != "" && (way != AcrossGossip || len(s.names) == 0 || !counts) {
		s.problem(path+".gossip", source.Gossip, "has no effect without across: gossip", "leave it out")
	}
	switch {
	case source.Across != "" && len(d.Regions) == 0:
		s.problem(path+".across", source.Across, "has no effect without regions", "write regions with their shares beside rules, or leave it out")
	case source.Across != "" && !counts:
		s.problem(path+".across", source.Across, "has no effect on a rule without limits", "leave it out")
	case len(s.names) == 0 || !counts:
	case way == "":
		s.problem(path+".across", "", "is missing: the policy has regions",
			"write across: share, across: lease or across: gossip, here or beside regions")
	case way == AcrossGossip:
		r.Region = &policy.RegionPart{Gossip: cmp.Or(s.span(path+".gossip", source.Gossip, gossipMin, gossipMax), gossipDefault)}
		s.gossip(path, r)
		s.place(d.region, r)
	default:
		r.Region = &policy.RegionPart{Lends: way == AcrossLease}
		if r.Region.Lends {
			s.lend(path, r)
		}
		s.divideRule(path, d.region, r)
		s.place(d.region, r)
	}
}

// regionSet.gossip reports limits that regions cannot enforce by telling each other their counts.
func (s *regionSet) gossip(path string, r *policy.Rule) {
	if r.Shards != 0 {
		s.problem(path+".shards", "", "does not go with across: gossip", "leave it out, or write across: share")
	}
	s.checkTold(path+".limit", r.Region.Gossip, r.Limits)
	for _, tier := range slices.Sorted(maps.Keys(r.Tiers)) {
		s.checkTold(Join(path+".tiers", tier), r.Region.Gossip, r.Tiers[tier].Limits)
	}
}

func (s *regionSet) checkTold(path string, interval counter.Micros, limits []counter.Limit) {
	for i := range limits {
		l := &limits[i]
		switch {
		case l.Algorithm() == 0 || policy.Tellable(l, interval):
		case !policy.Lendable(l):
			s.problem(Index(path, i), l.String(), "cannot be told to other regions: only windows can",
				"use sliding_window or fixed_window, or write across: share")
		default:
			s.problem(Index(path, i), l.String(), fmt.Sprintf("has a window of less than %d times the %s in which the regions tell each other",
				policy.GossipsMin, SpanText(interval)), "use a longer window, a shorter gossip, or across: share")
		}
	}
}

// GossipInterval returns the shortest interval at which regions tell each other what they have
// counted, and the names of the rules whose counts they tell. The interval is 0 if there are no
// such rules.
func GossipInterval(p *policy.Policy) (interval counter.Micros, rules []string) {
	for i := range p.Rules {
		if r := &p.Rules[i]; r.Region != nil && r.Region.Gossip > 0 {
			if rules = append(rules, r.Name); interval == 0 || r.Region.Gossip < interval {
				interval = r.Region.Gossip
			}
		}
	}
	return interval, rules
}

// regionSet.lend stores in the rule the whole limits, from which a region computes how many units
// it can lend. It reports limits whose units cannot be lent.
func (s *regionSet) lend(path string, r *policy.Rule) {
	if r.Shards != 0 {
		s.problem(path+".shards", "", "does not go with across: lease", "leave it out, or write across: share")
	}
	s.checkLent(path+".limit", r.Limits)
	r.Region.Whole, r.Region.WholeTiers = slices.Clone(r.Limits), map[string][]counter.Limit{}
	for _, tier := range slices.Sorted(maps.Keys(r.Tiers)) {
		s.checkLent(Join(path+".tiers", tier), r.Tiers[tier].Limits)
		r.Region.WholeTiers[tier] = slices.Clone(r.Tiers[tier].Limits)
	}
}

func (s *regionSet) checkLent(path string, limits []counter.Limit) {
	for i := range limits {
		if l := &limits[i]; l.Algorithm() != 0 && !policy.Lendable(l) {
			s.problem(Index(path, i), l.String(), "cannot be lent among regions: only windows can",
				"use sliding_window or fixed_window, or write across: share")
		}
	}
}

// divideRule divides the limits of a rule and of its tiers.
func (s *regionSet) divideRule(path, region string, r *policy.Rule) {
	s.divideLimits(path+".limit", region, r.Limits)
	for _, tier := range slices.Sorted(maps.Keys(r.Tiers)) {
		s.divideLimits(Join(path+".tiers", tier), region, r.Tiers[tier].Limits)
	}
}

// regionSet.place records in the rule how the region divides clients' own limits.
func (s *regionSet) place(region string, r *policy.Rule) {
	self := slices.Index(s.names, region)
	if self < 0 {
		r.Region = nil // in this case the limits are whole
		return
	}
	r.Region.Division = s.division
	r.Region.Division.Self = uint8(self)
}

// divideLimits replaces limits by the parts of a region, or leaves them whole if region is "".
func (s *regionSet) divideLimits(path, region string, limits []counter.Limit) {
	for i := range limits {
		if limits[i].Algorithm() == 0 {
			continue // reported already
		}
		whole := limits[i]
		for self, name := range s.names {
			division := s.division
			division.Self = uint8(self)
			part, ok := division.Limit(&whole)
			switch {
			case !ok:
				s.problem(Index(path, i), whole.String(), "has no unit for region "+name, "raise the limit or the share of "+name)
			case whole.Algorithm() == counter.TokenBucket && part.Capacity() != division.Part(whole.Capacity()):
				s.problem(Index(path, i), whole.String(), "has a burst that takes too long to fill in region "+name,
					"lower the burst, or raise the count")
			case name == region:
				limits[i] = part
			}
		}
	}
}

// checkRegions reports problems that the policy has only in one of its regions, such as a cost that
// exceeds the region's part of a limit.
func (d *Document) checkRegions(found *syntax.Report) {
	for _, name := range d.RegionNames() {
		here, inside := *d, &syntax.Report{}
		here.region = name
		here.compile(nil, inside)
		for _, p := range inside.Problems {
			p.Why += ", in region " + name
			found.Add(p)
		}
	}
}
