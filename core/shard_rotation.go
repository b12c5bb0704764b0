// SPDX-License-Identifier: Apache-2.0

package core

import (
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// shardRotation chooses the shards of a rule in rotation. A shardRotation is safe for concurrent
// use.
type shardRotation struct {
	split shardSpec
	// drawn makes each round start at a pseudo-random shard. It is set if the requests of one
	// counter, or the expensive requests, could arrive in step with the rotation and always use the
	// same shards.
	drawn bool
	turn  atomic.Uint64
	// the turn of requests under limits other than the rule's: a tier's, or a client's own. Such a
	// request can be denied even though the rule's own limits would admit it. With a single
	// rotation, such a client could alternate with other clients and leave them only half of the
	// shards. These rounds always start at a pseudo-random shard.
	others atomic.Uint64
	// a set with one bit for each shard whose turn was released because another rule denied the
	// request. These shards are used next. Otherwise clients that alternate with denied requests
	// would get only half of the shards.
	back atomic.Uint64
}

var _ sharding = (*shardRotation)(nil)

// Ruleset.spread distributes the counters of the rules with shards over the shards.
func (rs *Ruleset) spread(p *policy.Policy) {
	for i := range rs.rules {
		r, source := &rs.rules[i], &p.Rules[i]
		if !r.sharded {
			continue
		}
		t := &shardRotation{drawn: !source.PerNone || r.after.costs || r.after.settles,
			split: shardSpec{region: source.Region, shards: uint64(source.Shards), dearest: 1}}
		for j := range source.Cost {
			t.split.dearest = max(t.split.dearest, source.Cost[j].N)
		}
		if c := source.CostAfter; c != nil {
			t.split.dearest, t.split.settled = max(t.split.dearest, c.Estimate), c.Max
		}
		t.distribute(t.split, r.limits)
		for _, set := range r.tiers {
			t.distribute(t.split, set.limits)
		}
		r.spread = t
	}
}

func (t *shardRotation) own(o *ownLimits, r *rule, holdsClient bool) *limitSet {
	how := t.split
	how.shared = !holdsClient
	return o.separateLimits(r, how, holdsClient)
}

// shardRotation.distribute spreads the limits of a set, all of them over the same number of shards,
// so that one request's counters are in one slot. Validation ensures that the policy's limits can
// be divided. A client's own limits might not divide evenly. Such limits are spread over so few
// shards that each limit loses at most one hundredth, and that the rule's costs fit into one shard,
// even as a debt.
func (t *shardRotation) distribute(how shardSpec, limits []ruleLimit) {
	if how.shared {
		how.overShared(limits)
		return
	}
	n := int64(how.shards)
	for i := range limits {
		l := &limits[i].limit
		n = min(n, l.Count(), l.Capacity()/how.dearest, min(l.Count(), l.Capacity())/max(1, how.settled))
	}
	for ; n > 1; n-- {
		if spreadLimits(limits, n) {
			return
		}
	}
}

// overShared spreads a client's own limits if other clients with other limits share the counters.
// Together the shards must admit as much as one counter would under the highest of these limits. To
// ensure this, each shard gets the limit divided by the number of all shards, or what the rule's
// costs need if that is more. So a limit that is too low for all shards uses only the first few
// shards, or one, and division can lose units.
func (how shardSpec) overShared(limits []ruleLimit) {
	all, settled := int64(how.shards), max(1, how.settled)
	n, shards := all, make([]shard, len(limits))
	for i := range limits {
		l, s := &limits[i].limit, &shards[i]
		burst := partOf(l.Capacity(), all, max(settled, how.dearest))
		count := burst
		if l.Algorithm() == counter.TokenBucket {
			count = partOf(l.Count(), all, settled)
		}
		var err error
		if s.part, err = l.Resized(count, burst); err != nil { // the burst would fill too slowly: lower it
			s.part, _ = l.Resized(count, l.Fillable(count))
		}
		s.whole = *l
		n = min(n, l.Count()/count, l.Capacity()/burst)
	}
	for i := range limits {
		shards[i].count = n
		limits[i].limit, limits[i].shard = shards[i].part, &shards[i]
	}
}

// partOf returns a part of n: n divided by parts, rounded down, but at least the given minimum and
// at most n.
func partOf(n, parts, least int64) int64 { return min(n, max(n/parts, least)) }

// spreadLimits spreads limits over n shards. If one of the limits cannot be divided, ok is false
// and no limit is changed.
func spreadLimits(limits []ruleLimit, n int64) (ok bool) {
	shards := make([]shard, len(limits))
	for i := range limits {
		l, s := &limits[i].limit, &shards[i]
		s.whole, s.count = *l, n
		var err error
		s.part, err = l.Resized(l.Count()/n, l.Capacity()/n)
		if l.Count()%n*100 > l.Count() || l.Capacity()%n*100 > l.Capacity() || err != nil {
			return false
		}
	}
	for i := range limits {
		limits[i].limit, limits[i].shard = shards[i].part, &shards[i]
	}
	return true
}

// selectShard selects the shard for the rule that was put in play last. If a request has several
// descriptors under the rule, all use the same shard.
func (t *shardRotation) selectShard(p *Plan, u *ruleUse) {
	p.rotation = t
	for i := range p.uses[:len(p.uses)-1] {
		if earlier := &p.uses[i]; earlier.rule == u.rule && earlier.shards > 0 {
			u.turn = earlier.turn
			return
		}
	}
	if u.whose != whoseRule {
		u.turn = t.drawTurn(t.others.Add(1) - 1)
		return
	}
	u.turn = t.next()
}

// shardRotation.next returns the next turn for a request under the rule's own limits. The shard is
// the turn modulo the number of shards.
func (t *shardRotation) next() uint64 {
	if !t.drawn {
		for back := t.back.Load(); back != 0; back = t.back.Load() {
			if t.back.CompareAndSwap(back, back&(back-1)) {
				return uint64(bits.TrailingZeros64(back))
			}
		}
	}
	turn := t.turn.Add(1) - 1
	if !t.drawn {
		return turn
	}
	return t.drawTurn(turn)
}

// drawTurn adds an offset to a turn. The offset is a hash of the number of the turn's round.
func (t *shardRotation) drawTurn(turn uint64) uint64 {
	hash := (turn/t.split.shards + 1) * 0x9E3779B97F4A7C15
	hash = (hash ^ hash>>32) * 0xD6E8FEB86659FD93
	return turn + hash>>33
}

// shardRotation.pass releases the turns of the plan's rules that charged nothing because the
// request is finally denied.
func (*shardRotation) pass(p *Plan) {
	for i := range p.uses {
		u := &p.uses[i]
		if o := p.outcomes[i].Outcome; u.shards == 0 || o != OutcomeUncharged && o != OutcomeNone {
			continue
		}
		if t, ok := u.rule.spread.(*shardRotation); ok && !t.drawn && u.whose == whoseRule {
			t.back.Or(1 << (u.turn % u.shards))
		}
	}
	p.rotation = nil // so that no turn is released twice
}

// shardRotation.mark inserts the shard into the text at an offset.
func (*shardRotation) mark(p *Plan, at int, u *ruleUse) {
	var scratch [4]byte
	p.text = slices.Insert(p.text, at, counter.AppendShard(scratch[:0], u.turn%u.shards)...)
}

// shardRotation.violation returns the violation number of a shard's key. All shards of a counter
// have the same number.
func (t *shardRotation) violation(p *Plan, key []byte) int64 {
	mark := len(p.text)
	p.text = counter.AppendUnshardedKey(p.text, key)
	id := violationOf(p.text[mark:])
	p.text = p.text[:mark]
	return id
}
