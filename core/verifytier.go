// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// tiersMax bounds the tiers of one rule: price lists are short, and a problem of each is reported.
const tiersMax = 256

// tiers checks the limits of a rule that counts, tier by tier.
func (v *verifier) tiers(at string, r *Rule) {
	at += ".tiers"
	if len(r.Tiers) > tiersMax {
		v.problem(at, strconv.Itoa(len(r.Tiers)), fmt.Sprintf("are more than %d tiers", tiersMax), "leave some out")
		return
	}
	if len(r.Tiers) > 0 && !v.givesTiers() {
		v.problem(at, "", "has no effect: nothing says which tier a client is of",
			"identify clients by jwt or api_key, or add tier: { attr: NAME } to the policy")
	}
	others := len(r.Match.Tier) == 0
	for _, tier := range r.Match.Tier {
		_, has := r.Tiers[tier]
		others = others || !has
	}
	if len(r.Tiers) > 0 && !others {
		v.problem(at, "", "holds every tier that the rule's match names: its limit has no effect",
			"write the limit of one of them as limit")
	}
	for _, tier := range sortedKeys(r.Tiers) {
		v.tier(at+"."+tier, r, tier)
	}
}

// tier checks the limits of one tier.
func (v *verifier) tier(at string, r *Rule, tier string) {
	set := r.Tiers[tier]
	switch {
	case tier == "":
		v.problem(at, "", "names no tier", "write the tier's name; clients without a tier have limit")
	case len(tier) > valueBytesMax:
		v.problem(at[:len(at)-len(tier)]+tier[:NameBytesMax]+"…", "", fmt.Sprintf("has %d bytes", len(tier)),
			fmt.Sprintf("write at most %d: no client has a longer tier", valueBytesMax))
		return
	}
	if len(r.Match.Tier) > 0 && !slices.Contains(r.Match.Tier, tier) {
		v.problem(at, "", "has no effect: the rule's match does not name that tier", "leave it out, or add it to match")
	}
	switch {
	case set.Unlimited && len(set.Limits) > 0:
		v.problem(at, "unlimited", "does not go with limits", "leave out one of them")
	case !set.Unlimited && len(set.Limits) == 0:
		v.problem(at, "", "is missing a limit", "write COUNT/WINDOW, for example 100/1m, or unlimited")
	case len(set.Limits) > ChecksMax:
		v.problem(at, strconv.Itoa(len(set.Limits)), fmt.Sprintf("are more than %d limits", ChecksMax), "leave some out")
	default:
		v.limitList(at, set.Limits)
	}
}

// givesTiers reports whether a client of the policy can have a tier.
func (v *verifier) givesTiers() bool {
	return len(v.policy.Tier) > 0 || v.verifies()
}

// verifies reports whether the policy knows clients by something that can bring a tier, or limits of their own.
func (v *verifier) verifies() bool {
	return slices.ContainsFunc(v.policy.Identify, func(m Identify) bool {
		return m.Kind == IdentifyJWT || m.Kind == IdentifyAPIKey
	})
}

// limitList checks limits that hold together; at says where they stand.
func (v *verifier) limitList(at string, limits []Limit) {
	for i := range limits {
		l, place := &limits[i], fmt.Sprintf("%s[%d]", at, i)
		if l.algorithm == 0 {
			v.problem(place, "", "is not a limit", "write COUNT/WINDOW, for example 100/1m")
			continue
		}
		if j := sameCounter(limits, i); j >= 0 {
			v.problem(place, l.String(), sharedCounter(j), "keep the lower one")
		}
	}
}

// limitNames checks that none of the rule's limits is called as another rule or limit. A name twice in one rule is a limit
// twice, which is reported as that, or stands in two tiers.
func (v *verifier) limitNames(names map[string]string, at string, r *Rule) {
	check := func(at string, limits []Limit) {
		for i := range limits {
			if limits[i].algorithm == 0 {
				continue
			}
			if name := policyName(r.Name, limits, i); name != r.Name && !strings.HasPrefix(names[name], ruleOf(at)) {
				v.unique(names, fmt.Sprintf("%s[%d]", at, i), name)
			}
		}
	}
	check(at+".limit", r.Limits)
	for _, tier := range sortedKeys(r.Tiers) {
		check(at+".tiers."+tier, r.Tiers[tier].Limits)
	}
}

// ruleOf returns the part of a place that names the rule, with the dot: "rules[2].".
func ruleOf(at string) string { return at[:strings.IndexByte(at, '.')+1] }

// timezone checks that there is a calendar window to tell the time of.
func (v *verifier) timezone() {
	p := v.policy
	if p.Timezone == nil || len(p.Rules) == 0 || v.verifies() { // a client's own limits may be by the calendar
		return
	}
	calendar := func(l Limit) bool { return l.calendar != 0 }
	for i := range p.Rules {
		if slices.ContainsFunc(p.Rules[i].Limits, calendar) {
			return
		}
		for _, set := range p.Rules[i].Tiers {
			if slices.ContainsFunc(set.Limits, calendar) {
				return
			}
		}
	}
	v.problem("timezone", p.Timezone.String(), "has no effect: no limit is by the calendar",
		"leave it out, or write a limit such as 5000/day")
}
