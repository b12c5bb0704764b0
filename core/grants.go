// SPDX-License-Identifier: Apache-2.0

package core

import (
	"sync/atomic"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// A grant raises a limit within one window: the one that contains the instant of the grant. The
// counter keeps its key, so units that were used before count against the raised limit. Stores,
// leases and fallbacks see only the limit of each check, so they need no support for grants.
//
// Only programs that call a store raise limits. The filter for Envoy does not raise limits. The
// bridge decides the requests of a client with a grant, and leases the filter no units of the
// raised limit.
//
// The front's clock determines the window. If the store's clock differs from it, the raised limit
// begins and ends earlier or later by that difference.
//
// A rule with shards has no grants, because its limits are divided. If a rule has regions, the
// units of a grant are divided in the same way as its limits.

// granting raises limits by grants. The type is an interface, so that a program that calls
// no store does not link the code for grants.
type granting interface {
	raise(p *Plan, rs *Ruleset, r *rule, limits []ruleLimit) []ruleLimit
}

type grantRaiser struct{}

// ownGrant is a grant in the form that is compared with its rule's limits.
type ownGrant struct {
	tail string // the suffix of the keys of the limit to raise; "" means the limit with the longest window
	// raised holds the limits that this grant, together with other grants, raised most recently.
	// Grants refer to the rule only by name, so that a client does not keep an old policy in
	// memory.
	raised atomic.Pointer[[]ruleLimit]
}

func compileGrants(g *policy.Grants) any {
	own := make([]ownGrant, len(g.List()))
	for i := range own {
		if window := g.List()[i].Window; window != "" {
			own[i].tail = ":" + window + fixedTail
		}
	}
	return own
}

// fixedTail is the suffix of the keys of fixed and calendar windows, as [counter.KeyTail] writes
// it.
const fixedTail = ":fw"

// grantRaiser.raise returns the limits, raised by the client's grants for the current window.
func (grantRaiser) raise(p *Plan, rs *Ruleset, r *rule, limits []ruleLimit) []ruleLimit {
	if r.sharded || len(limits) > counter.ChecksMax {
		return limits
	}
	var units [counter.ChecksMax]int64
	var cache *ownGrant
	for _, overrides := range p.records.overrides[:p.records.overridden] {
		grants := overrides.Grants()
		if grants == nil {
			continue
		}
		own := grants.Derived(compileGrants).([]ownGrant)
		for i := range own {
			g := &grants.List()[i]
			if g.Rule != r.name {
				continue
			}
			at := rs.limitOfGrant(g, own[i].tail, limits, p.who.Request.Attrs.Now())
			if at < 0 || limits[at].closed() {
				continue
			}
			if more := r.part(&limits[at], g.Units); more > 0 {
				units[at] += more
				cache = &own[i]
			}
		}
	}
	if cache == nil {
		return limits
	}
	known := cache.raised.Load()
	if known == nil || !isRaisedFrom(*known, limits, &units) {
		made := raiseBy(r.name, limits, &units)
		known = &made
		cache.raised.Store(known)
	}
	return *known
}

// limitOfGrant returns the index of the limit that a grant raises now, or -1.
func (rs *Ruleset) limitOfGrant(g *policy.Grant, tail string, limits []ruleLimit, now counter.Micros) int {
	at := -1
	for i := range limits {
		l := &limits[i]
		if l.limit.Algorithm() == counter.FixedWindow && (tail == l.tail || tail == "" && (at < 0 || l.limit.Window() > limits[at].limit.Window())) {
			at = i
		}
	}
	if at < 0 || !rs.sameWindow(&limits[at].limit, g, now) {
		return -1
	}
	return at
}

// sameWindow reports whether the current window of a limit contains the instant of a grant.
func (rs *Ruleset) sameWindow(l *counter.Limit, g *policy.Grant, now counter.Micros) bool {
	if l.Calendar() == 0 {
		return now/l.Window() == g.At/l.Window()
	}
	b := rs.calendar.bounds(l, now)
	return b[1] <= g.At && g.At < b[2]
}

// isRaisedFrom reports whether the argument raised is what raiseBy would return.
func isRaisedFrom(raised, limits []ruleLimit, units *[counter.ChecksMax]int64) bool {
	if len(raised) != len(limits) {
		return false
	}
	for i := range limits {
		l, from := &raised[i], &limits[i]
		if l.tail != from.tail || l.limit.Count() != raiseCount(&from.limit, units[i]) ||
			units[i] == 0 && (l.limit.Capacity() != from.limit.Capacity() || !l.sameRegion(from)) || l.told() != from.told() {
			return false
		}
	}
	return true
}

func raiseCount(l *counter.Limit, units int64) int64 { return min(l.Count()+units, counter.CountMax) }

// raiseBy compiles the limits with the granted units added. A limit keeps the data about its region
// if it has no grant, or if its rule has across: gossip.
func raiseBy(rule string, limits []ruleLimit, units *[counter.ChecksMax]int64) []ruleLimit {
	sources := make([]counter.Limit, len(limits))
	for i := range limits {
		l := &limits[i].limit
		if sources[i] = *l; units[i] > 0 {
			sources[i], _ = l.Resized(raiseCount(l, units[i]), 0) // the count is within its bounds
		}
	}
	made := compileLimits(rule, sources)
	for i := range made {
		if units[i] == 0 || limits[i].told() {
			made[i].part = limits[i].part
		}
	}
	return made
}

// grantedUnits returns how many units of grants the limit of a check includes. The check must
// belong to the policy that was added last.
func (p *Plan) grantedUnits(check int) int64 {
	u := &p.uses[p.asked[check].use]
	if p.asked[check].limit == nil || u.shards > 0 || p.records.overridden == 0 {
		return 0
	}
	before, _ := p.limitsOf(u.rule)
	return p.checks[check].Limit.Count() - before.limits[check-int(u.checks[0])].limit.Count()
}
