// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/policy"
)

func (v *Verifier) rule(at string, r *policy.Rule) {
	if r.Name == "" {
		v.problem(at+".name", "", "is missing", "name the rule: the name is used in keys, metrics and header fields")
	} else {
		v.checkName(at+".name", r.Name)
	}
	v.onError(at+".on_error", r.OnError)
	v.lease(at+".lease", r.Lease)
	v.group(at, r)
	if r.Missing > policy.MissingDeny {
		v.problem(at+".missing", strconv.Itoa(int(r.Missing)), "is unknown", "write client, share, skip or deny")
	}
	v.checkActions(at, r)
	switch r.Action {
	case policy.ActionReject, policy.ActionLogOnly, policy.ActionThrottle:
		v.checkLimiting(at, r)
	case policy.ActionAllow, policy.ActionBlock:
		v.checkLimitless(at, r)
	default:
		v.problem(at+".action", strconv.Itoa(int(r.Action)), "is unknown", "write reject, throttle, log_only, allow or block")
	}
}

func (v *Verifier) group(at string, r *policy.Rule) {
	first := v.policy.Enforce == policy.EnforceFirst
	switch {
	case r.Group != "" && first:
		v.problem(at+".group", r.Group, "does not go with enforce: first, which puts all rules in one group",
			"leave out one of them")
	case r.Group != "":
		v.checkName(at+".group", r.Group)
	case first:
	case r.Priority != 0:
		v.problem(at+".priority", strconv.Itoa(r.Priority), "has no effect outside a group: all rules that match count",
			"add a group, or leave it out")
	}
	if r.Action == policy.ActionAllow && r.Group == "" && !first {
		v.problem(at+".action", "allow", "has no effect outside a group: it exempts only from rules of its group",
			"add a group; to exempt from every rule, use exempt")
	}
	if r.Action == policy.ActionBlock && r.Priority != 0 && (r.Group != "" || first) {
		v.problem(at+".priority", strconv.Itoa(r.Priority), "has no effect: block wins whatever its group", "leave it out")
	}
}

// checkLimitless checks a rule without limits.
func (v *Verifier) checkLimitless(at string, r *policy.Rule) {
	action := map[policy.Action]string{policy.ActionAllow: "allow", policy.ActionBlock: "block"}[r.Action]
	for _, word := range []struct {
		name    string
		present bool
	}{
		{"limit", len(r.Limits) > 0},
		{"tiers", len(r.Tiers) > 0},
		{"per", len(r.Per) > 0 || r.PerNone},
		{"cost", len(r.Cost) > 0},
		{"missing", r.Missing != policy.MissingClient},
		{"unverified", r.Unverified},
		{"on_error", r.OnError != counter.OnErrorInherit},
		{"lease", r.Lease != policy.LeaseInherit},
		{"shards", r.Shards != 0},
		{"expose", r.Expose},
		{"quota", r.Quota},
	} {
		if word.present {
			v.problem(at+"."+word.name, "", "does not go with action: "+action+", which counts nothing", "leave it out")
		}
	}
}

// checkLimiting checks a rule with limits.
func (v *Verifier) checkLimiting(at string, r *policy.Rule) {
	v.limits(at, r)
	v.checkTiers(at, r)
	v.costs(at, r)
	v.dimensions(at, r)
	v.checkAfter(at, r)
	v.checkShards(at, r)
	if r.Expose && !policy.HiddenByDefault(r) {
		v.problem(at+".expose", "true", "has no effect: the rule's limits are shown anyway", "leave it out")
	}
	if r.Quota && r.Action == policy.ActionThrottle {
		v.problem(at+".quota", "true", "does not go with action: throttle: a request cannot wait for one of several limits",
			"leave one of them out")
	}
	if r.Action == policy.ActionLogOnly && r.OnError != counter.OnErrorInherit {
		v.problem(at+".on_error", "", "has no effect: a log_only rule denies nothing", "leave it out")
	}
}

func (v *Verifier) limits(at string, r *policy.Rule) {
	if len(r.Limits) == 0 {
		v.problem(at+".limit", "", "is missing", "write COUNT/WINDOW, for example 100/1m")
	}
	if len(r.Limits) > counter.ChecksMax {
		v.problem(at+".limit", strconv.Itoa(len(r.Limits)), fmt.Sprintf("are more than %d limits", counter.ChecksMax),
			"leave some out")
		return
	}
	v.checkLimitList(at+".limit", r.Limits)
}

// matchesAll reports whether the match has no condition.
func matchesAll(m *policy.Match) bool {
	return len(m.Path)+len(m.Method)+len(m.Host)+len(m.Header)+len(m.IP)+
		len(m.Tier)+len(m.User)+len(m.APIKey)+len(m.Tenant)+len(m.Attr) == 0
}

// checkReplaces checks the rules that each rule replaces.
func (v *Verifier) checkReplaces() {
	byName := map[string]*policy.Rule{}
	for i := range v.policy.Rules {
		if len(v.policy.Rules[i].Replaces) == 0 {
			continue
		}
		if len(byName) == 0 {
			for j := range v.policy.Rules {
				byName[v.policy.Rules[j].Name] = &v.policy.Rules[j]
			}
		}
		v.replacedBy(policy.RuleAt(i)+".replaces", &v.policy.Rules[i], byName)
	}
}

func (v *Verifier) replacedBy(at string, r *policy.Rule, byName map[string]*policy.Rule) {
	if len(r.Replaces) > match.MatchListMax {
		v.problem(at, "", fmt.Sprintf("has %d entries, more than %d", len(r.Replaces), match.MatchListMax),
			"put the rules in a group")
		return
	}
	for i, name := range r.Replaces {
		place := fmt.Sprintf("%s[%d]", at, i)
		other := byName[name]
		switch {
		case name == r.Name:
			v.problem(place, name, "is the rule itself", "leave it out")
		case other == nil || name == "":
			v.problem(place, name, "is not a rule of this policy", "write the name of one, or leave it out")
		case slices.Contains(r.Replaces[:i], name):
			v.problem(place, name, "is listed twice", "leave it out")
		case other.Action == policy.ActionBlock:
			v.problem(place, name, "blocks, and a rule that blocks cannot be replaced", "leave it out, or narrow what the other blocks")
		case r.Action == policy.ActionBlock:
			v.problem(place, name, "never applies beside action: block", "leave it out")
		}
	}
}
