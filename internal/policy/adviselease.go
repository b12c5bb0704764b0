// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"strconv"

	"github.com/penstock/penstock/core"
)

// leases warns of rules that are told to lease and cannot. What the policy says for all of them is for those that can.
func (a *adviser) leases() {
	for i := range a.policy.Rules {
		r := &a.policy.Rules[i]
		if r.Lease == core.LeaseAuto {
			a.leasing(index("rules", i), &a.doc.Rules[i], r)
		}
	}
	if a.policy.Lease == core.LeaseAuto && !slices.ContainsFunc(a.policy.Rules, leasesAny) {
		a.problem("lease", "auto", "has no effect: no rule has a limit that can be leased", "leave it out")
	}
}

// shards warns of rules whose counters are spread though each client has its own: there are enough of them to be on all servers,
// and each is refused early by chance.
func (a *adviser) shards() {
	for i := range a.policy.Rules {
		r := &a.policy.Rules[i]
		byClient := len(r.Per) == 0 && !r.PerNone || slices.ContainsFunc(r.Per, func(d core.Dimension) bool {
			return d.Kind <= core.PerIP
		})
		if r.Shards > 0 && byClient && !r.Disabled {
			a.problem(index("rules", i)+".shards", strconv.Itoa(r.Shards),
				"spreads what many counters spread already, and each client is refused early, by chance",
				"leave it out; it is for counters that many share, such as per: []")
		}
	}
}

// leasing warns of the limits of a rule that cannot be leased, or of all of them at once.
func (a *adviser) leasing(at string, d *Rule, r *core.Rule) {
	if r.Action == core.ActionLogOnly {
		a.problem(at+".lease", "auto", "has no effect: what a log_only rule would refuse, the store alone can tell", "leave it out")
		return
	}
	a.eachLimit(at, d, r, func(place, text string, l *core.Limit) {
		switch {
		case l.Algorithm() == core.SlidingLog:
			a.problem(place, text, "cannot be leased: each unit of a sliding log has its own instant",
				"use sliding_window, or leave out lease: auto")
		case !l.Leasable():
			a.problem(place, text, "cannot be leased: its window is below "+core.LeasableWindowMin.String(),
				"write a longer window, or leave out lease: auto")
		case !r.Leasable(l):
			a.problem(place, text, "cannot be leased: of what responses give back, leases of a token bucket would restore too little",
				"use fixed_window or sliding_window, or leave out lease: auto")
		}
	})
}

// leasesAny reports whether a rule has a limit that is leased where the policy says so.
func leasesAny(r core.Rule) bool {
	if r.Disabled || r.Lease == core.LeaseOff || r.Shards > 0 || r.Action != core.ActionReject && r.Action != core.ActionThrottle {
		return false
	}
	leasable := func(l core.Limit) bool { return r.Leasable(&l) }
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
