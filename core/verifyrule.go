// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"strconv"
)

func (v *verifier) rule(at string, r *Rule) {
	if r.Name == "" {
		v.problem(at+".name", "", "is missing", "name the rule: the name stands in keys, metrics and header fields")
	} else {
		v.name(at+".name", r.Name)
	}
	v.onError(at+".on_error", r.OnError)
	v.lease(at+".lease", r.Lease)
	v.group(at, r)
	if r.Missing > MissingDeny {
		v.problem(at+".missing", strconv.Itoa(int(r.Missing)), "is unknown", "write client, share, skip or deny")
	}
	v.actions(at, r)
	switch r.Action {
	case ActionReject, ActionLogOnly, ActionThrottle:
		v.limiting(at, r)
	case ActionAllow, ActionBlock:
		v.limitless(at, r)
	default:
		v.problem(at+".action", strconv.Itoa(int(r.Action)), "is unknown", "write reject, throttle, log_only, allow or block")
	}
}

func (v *verifier) group(at string, r *Rule) {
	first := v.policy.Enforce == EnforceFirst
	switch {
	case r.Group != "" && first:
		v.problem(at+".group", r.Group, "does not go with enforce: first, which puts all rules in one group",
			"leave out one of them")
	case r.Group != "":
		v.name(at+".group", r.Group)
	case first:
	case r.Priority != 0:
		v.problem(at+".priority", strconv.Itoa(r.Priority), "has no effect outside a group: all rules that match count",
			"add a group, or leave it out")
	}
	if r.Action == ActionAllow && r.Group == "" && !first {
		v.problem(at+".action", "allow", "has no effect outside a group: it exempts from the rules of its own",
			"add a group; to exempt from every rule, use exempt")
	}
	if r.Action == ActionBlock && r.Priority != 0 && (r.Group != "" || first) {
		v.problem(at+".priority", strconv.Itoa(r.Priority), "has no effect: block wins whatever its group", "leave it out")
	}
}

// limitless checks a rule that counts nothing.
func (v *verifier) limitless(at string, r *Rule) {
	action := map[Action]string{ActionAllow: "allow", ActionBlock: "block"}[r.Action]
	for _, word := range []struct {
		name    string
		present bool
	}{
		{"limit", len(r.Limits) > 0},
		{"tiers", len(r.Tiers) > 0},
		{"per", len(r.Per) > 0 || r.PerNone},
		{"cost", len(r.Cost) > 0},
		{"missing", r.Missing != MissingClient},
		{"unverified", r.Unverified},
		{"on_error", r.OnError != OnErrorInherit},
		{"lease", r.Lease != LeaseInherit},
		{"shards", r.Shards != 0},
		{"expose", r.Expose},
		{"quota", r.Quota},
	} {
		if word.present {
			v.problem(at+"."+word.name, "", "does not go with action: "+action+", which counts nothing", "leave it out")
		}
	}
}

// limiting checks a rule that counts.
func (v *verifier) limiting(at string, r *Rule) {
	v.limits(at, r)
	v.tiers(at, r)
	v.costs(at, r)
	v.dimensions(at, r)
	v.after(at, r)
	v.shards(at, r)
	if r.Expose && !hiddenByDefault(r) {
		v.problem(at+".expose", "true", "has no effect: the rule's limits are shown anyway", "leave it out")
	}
	if r.Quota && r.Action == ActionThrottle {
		v.problem(at+".quota", "true", "does not go with action: throttle: nobody waits for one of several limits",
			"leave one of them out")
	}
	if r.Action == ActionLogOnly && r.OnError != OnErrorInherit {
		v.problem(at+".on_error", "", "has no effect: a log_only rule refuses nothing", "leave it out")
	}
}

func (v *verifier) limits(at string, r *Rule) {
	if len(r.Limits) == 0 {
		v.problem(at+".limit", "", "is missing", "write COUNT/WINDOW, for example 100/1m")
	}
	if len(r.Limits) > ChecksMax {
		v.problem(at+".limit", strconv.Itoa(len(r.Limits)), fmt.Sprintf("are more than %d limits", ChecksMax),
			"leave some out")
		return
	}
	v.limitList(at+".limit", r.Limits)
}

// matchesAll reports whether the match has no condition.
func matchesAll(m *Match) bool {
	return len(m.Path)+len(m.Method)+len(m.Host)+len(m.Header)+len(m.IP)+
		len(m.Tier)+len(m.User)+len(m.APIKey)+len(m.Tenant)+len(m.Attr) == 0
}
