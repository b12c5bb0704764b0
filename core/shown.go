// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// LimitText holds the texts that describe a limit in header fields and problems.
type LimitText struct {
	_ slim.Incomparable

	Quota string // its capacity in units: X-RateLimit-Limit
	Name  string // its name: the rule's, followed by the window if the rule has several limits
	Item  string // its item in RateLimit-Policy
}

// Shown returns the text of a check's limit if the check's policy shows it to clients and uses one
// of the header families, otherwise nil. A penalty has no limit to show.
//
//go:noinline
func (p *Plan) Shown(check int, families policy.HeaderFamilies) *LimitText {
	if !p.showsCheck(check, families) {
		return nil
	}
	return &p.asked[check].limit.text
}

// ShownCheck returns the check that a header family shows, or -1 if there is none. Normally this is
// the decision's check. If the request is admitted and the decision's policy does not use the
// family, it is the tightest check of the policies that do.
//
//go:noinline
func (p *Plan) ShownCheck(d *Decision, family policy.HeaderFamilies) int {
	switch {
	case d.Limit == nil:
		return -1
	case p.showsCheck(d.shown, family):
		return d.shown
	case d.Denied():
		return -1
	default:
		return p.tightest(family)
	}
}

// Remaining returns the number of units left of a check's limit. If the limit is spread over
// shards, the result is an estimate: the units left in this shard times the number of shards.
//
//go:noinline
func (p *Plan) Remaining(check int) int64 {
	left := p.results[check].Remaining
	if l := p.asked[check].limit; l != nil && l.shard != nil {
		left *= l.shard.count
	}
	return left
}

// Cost returns the units that a check charges; 0 if its rule has no cost setting.
//
//go:noinline
func (p *Plan) Cost(check int) int64 {
	if !p.ruleOf(check).after.costs {
		return 0
	}
	return p.checks[check].Cost
}

// Plan.tightest returns the shown limit that allows the fewest further requests like this one,
// among policies with one of the header families. If several limits allow equally few requests, the
// method returns the limit that resets last, or the first of several such limits. The result is -1
// if no limit is shown.
func (p *Plan) tightest(families policy.HeaderFamilies) int {
	best, fewest := -1, int64(0)
	for i := range p.asked {
		if !p.showsCheck(i, families) {
			continue
		}
		left := p.Remaining(i) / max(1, p.checks[i].Cost)
		if best < 0 || left < fewest || left == fewest && p.results[i].Reset > p.results[best].Reset {
			best, fewest = i, left
		}
	}
	return best
}

// showsCheck reports whether a check's limit is shown to clients by a policy with one of the
// families. A penalty has no limit to show.
func (p *Plan) showsCheck(check int, families policy.HeaderFamilies) bool {
	u := &p.uses[p.asked[check].use]
	return p.asked[check].limit != nil && !u.rule.hidden && u.ruleset.families&families != 0
}
