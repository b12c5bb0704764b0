// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"slices"
	"strconv"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile"
)

// adviser.leases warns of rules with "lease: auto" whose limits cannot be leased. If the policy has
// "lease: auto", this setting skips such rules. So leases warns of the policy's setting only if no
// rule has a limit that can be leased.
func (a *adviser) leases() {
	for i := range a.policy.Rules {
		r := &a.policy.Rules[i]
		if r.Lease == policy.LeaseAuto {
			a.checkLeasing(policyfile.Index("rules", i), &a.doc.Rules[i], r)
		}
	}
	if a.policy.Lease == policy.LeaseAuto && !slices.ContainsFunc(a.policy.Rules, leasesAny) {
		a.problem("lease", "auto", "has no effect: no rule has a limit that can be leased", "leave it out")
	}
}

// adviser.shards warns of rules with shards that count per client. Even without shards, the many
// counters of such a rule are spread over all servers. With shards, some requests of a client are
// denied although the client has units left.
func (a *adviser) shards() {
	for i := range a.policy.Rules {
		r := &a.policy.Rules[i]
		byClient := len(r.Per) == 0 && !r.PerNone || slices.ContainsFunc(r.Per, func(d policy.Dimension) bool {
			return d.Kind <= policy.PerIP
		})
		if r.Shards > 0 && byClient && !r.Disabled {
			a.problem(policyfile.Index("rules", i)+".shards", strconv.Itoa(r.Shards),
				"has no use, because many counters are spread already, and denies each client early, by chance",
				"leave it out; it is for counters that many share, such as per: []")
		}
	}
}

// adviser.checkLeasing warns of each limit of a rule that cannot be leased. If none of the limits
// can be leased, it warns only once.
func (a *adviser) checkLeasing(at string, d *policyfile.Rule, r *policy.Rule) {
	if r.Action == policy.ActionLogOnly {
		a.problem(at+".lease", "auto", "has no effect: only the store knows what a log_only rule would deny", "leave it out")
		return
	}
	a.eachLimit(at, d, r, func(place, text string, l *counter.Limit) {
		switch {
		case l.Algorithm() == counter.SlidingLog:
			a.problem(place, text, "cannot be leased: each unit of a sliding log has its own instant",
				"use sliding_window, or leave out lease: auto")
		case !l.Leasable():
			a.problem(place, text, "cannot be leased: its window is below "+counter.LeasableWindowMin.String(),
				"write a longer window, or leave out lease: auto")
		case !r.Leasable(l):
			a.problem(place, text, "cannot be leased: leases of a token bucket would return too little of the units that responses refund",
				"use fixed_window or sliding_window, or leave out lease: auto")
		}
	})
}

// leasesAny reports whether the rule has a limit that is leased under a policy-wide lease: auto.
func leasesAny(r policy.Rule) bool {
	if r.Disabled || r.Lease == policy.LeaseOff || r.Shards > 0 || r.Action != policy.ActionReject && r.Action != policy.ActionThrottle {
		return false
	}
	leasable := func(l counter.Limit) bool { return r.Leasable(&l) }
	if slices.ContainsFunc(r.Limits, leasable) {
		return true
	}
	for _, set := range r.Tiers {
		if slices.ContainsFunc(set.Limits, leasable) {
			return true
		}
	}
	return false
}
