// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// TiersMax bounds the tiers of one rule. Price lists are short, and each tier can cause a problem
// of its own.
const TiersMax = 256

// checkTiers checks the limits of each tier of a rule.
func (v *Verifier) checkTiers(at string, r *policy.Rule) {
	at += ".tiers"
	if len(r.Tiers) > TiersMax {
		v.problem(at, strconv.Itoa(len(r.Tiers)), fmt.Sprintf("are more than %d tiers", TiersMax), "leave some out")
		return
	}
	if len(r.Tiers) > 0 && !v.givesTiers() {
		v.problem(at, "", "has no effect: the policy has no source of tiers",
			"identify clients by jwt or api_key, add tier: { attr: NAME } to the policy, or directory: true if a directory names tiers")
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
	for _, tier := range slim.SortedKeys(r.Tiers) {
		v.checkTier(at+"."+tier, r, tier)
	}
}

// checkTier checks the limits of one tier.
func (v *Verifier) checkTier(at string, r *policy.Rule, tier string) {
	set := r.Tiers[tier]
	switch {
	case tier == "":
		v.problem(at, "", "names no tier", "write the tier's name; clients without a tier have limit")
	case len(tier) > policy.ValueBytesMax:
		v.problem(at[:len(at)-len(tier)]+tier[:policy.NameBytesMax]+"…", "", fmt.Sprintf("has %d bytes", len(tier)),
			fmt.Sprintf("write at most %d: no client has a longer tier", policy.ValueBytesMax))
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
	case len(set.Limits) > counter.ChecksMax:
		v.problem(at, strconv.Itoa(len(set.Limits)), fmt.Sprintf("are more than %d limits", counter.ChecksMax), "leave some out")
	default:
		v.checkLimitList(at, set.Limits)
	}
}

// givesTiers reports whether a client of the policy can have a tier.
func (v *Verifier) givesTiers() bool {
	return len(v.policy.Tier) > 0 || v.policy.Directory || v.verifiesTier()
}

// verifiesTier reports whether the policy verifies credentials that can assign a tier or limits of
// a client's own.
func (v *Verifier) verifiesTier() bool {
	return slices.ContainsFunc(v.policy.Identify, func(m policy.Identify) bool {
		return m.Kind == policy.IdentifyJWT || m.Kind == policy.IdentifyAPIKey
	})
}

// checkLimitList checks a list of limits that apply together. The list is at the given place in
// the policy.
func (v *Verifier) checkLimitList(at string, limits []counter.Limit) {
	for i := range limits {
		l, place := &limits[i], fmt.Sprintf("%s[%d]", at, i)
		if l.Algorithm() == 0 {
			v.problem(place, "", "is not a limit", "write COUNT/WINDOW, for example 100/1m")
			continue
		}
		if j := counter.SameCounter(limits, i); j >= 0 {
			v.problem(place, l.String(), policy.SharedCounter(j), "keep the lower one")
		}
	}
}

// checkLimitNames checks that none of the rule's limits has the name of another rule or limit. A
// name that occurs twice in one rule is not reported here: it belongs to a duplicate limit, which
// is reported as such, or to limits of two tiers.
func (v *Verifier) checkLimitNames(names map[string]string, at string, r *policy.Rule) {
	check := func(at string, limits []counter.Limit) {
		for i := range limits {
			if limits[i].Algorithm() == 0 {
				continue
			}
			if name := policy.PolicyName(r.Name, limits, i); name != r.Name && !strings.HasPrefix(names[name], ruleOf(at)) {
				v.checkUnique(names, fmt.Sprintf("%s[%d]", at, i), name)
			}
		}
	}
	check(at+".limit", r.Limits)
	for _, tier := range slim.SortedKeys(r.Tiers) {
		check(at+".tiers."+tier, r.Tiers[tier].Limits)
	}
}

// ruleOf returns the prefix of a place that names the rule, including the dot: "rules[2].".
func ruleOf(at string) string { return at[:strings.IndexByte(at, '.')+1] }

// checkTimezone checks that a policy with a time zone has a calendar window.
func (v *Verifier) checkTimezone() {
	p := v.policy
	// if credentials set a client's own limits, these may use calendar windows
	if p.Timezone == nil || len(p.Rules) == 0 || v.verifiesTier() {
		return
	}
	calendar := func(l counter.Limit) bool { return l.Calendar() != 0 }
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
