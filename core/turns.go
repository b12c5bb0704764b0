// SPDX-License-Identifier: Apache-2.0

package core

import (
	"math/bits"
	"slices"
	"sync/atomic"
)

// turns has the shards of a rule take turns. It is safe for concurrent use.
type turns struct {
	split splitting
	// drawn says that the requests of one counter, or the dear ones, come in an order that could keep step with the turns,
	// so that always the same shards were theirs. Then each round begins with another shard.
	drawn bool
	turn  atomic.Uint64
	// others is the turn of requests under other limits than the rule's: a tier's, or a client's own. These may refuse where the
	// rule's do not, so who comes by turns with such a client would be left half of the shards. They are always drawn.
	others atomic.Uint64
	// back holds the shards, one a bit, whose turn came to nothing, since the request was refused for something else. They
	// are the next: or else those who are refused by turns with others would be let in by half of the shards only.
	back atomic.Uint64
}

var _ spreader = (*turns)(nil)

// spread spreads the counters of the rules with shards.
func (rs *Ruleset) spread(p *Policy) {
	for i := range rs.rules {
		r, source := &rs.rules[i], &p.Rules[i]
		if !r.sharded {
			continue
		}
		t := &turns{drawn: !source.PerNone || r.after.costs || r.after.settles,
			split: splitting{shards: uint64(source.Shards), dearest: 1}}
		for j := range source.Cost {
			t.split.dearest = max(t.split.dearest, source.Cost[j].N)
		}
		if c := source.CostAfter; c != nil {
			t.split.dearest, t.split.settled = max(t.split.dearest, c.Estimate), c.Max
		}
		t.over(t.split, r.limits)
		for _, set := range r.tiers {
			t.over(t.split, set.limits)
		}
		r.spread = t
	}
}

func (t *turns) own(o *Overrides, r *rule, holdsClient bool) *limitSet {
	how := t.split
	how.shared = !holdsClient
	set, named := o.sets[r.name]
	switch {
	case named:
		return o.forRule(r, how, &set)
	case o.every == nil || !holdsClient:
		return nil
	}
	return o.forRule(r, how, o.every)
}

// over spreads the limits of a set, all over as many shards, so that one request's counters are together. Limits of the
// policy can be divided, which is verified; those of a client's own perhaps not: they have fewer shards then, so that no
// more than a hundredth is lost of any, and the rule's costs fit into one, also those that become a debt of a window's count.
func (t *turns) over(how splitting, limits []ruleLimit) {
	if how.shared {
		how.overShared(limits)
		return
	}
	n := int64(how.shards)
	for i := range limits {
		l := &limits[i].limit
		n = min(n, l.count, l.burst/how.dearest, min(l.count, l.burst)/max(1, how.settled))
	}
	for ; n > 1; n-- {
		if spreadOver(limits, n) {
			return
		}
	}
}

// overShared spreads limits of a client's own whose counters are others' too, who have other limits. Together they let through
// what the highest of these does, as one counter would, if no limit gives a shard more than its part over all shards, nor
// more than the rule's costs take, which a part of the policy's limits takes too. So a limit that is too low for that has the
// first few shards only, or one, and what division loses is lost.
func (how splitting) overShared(limits []ruleLimit) {
	all, settled := int64(how.shards), max(1, how.settled)
	n, shards := all, make([]shard, len(limits))
	for i := range limits {
		l, s := &limits[i].limit, &shards[i]
		burst := partOf(l.burst, all, max(settled, how.dearest))
		count := burst
		if l.algorithm == TokenBucket {
			count = partOf(l.count, all, settled)
		}
		var err error
		if s.part, err = l.resized(count, burst); err != nil { // it would take too long to fill
			s.part, _ = l.resized(count, mulDiv(int64(FillMax), count, int64(l.window)))
		}
		s.whole = *l
		n = min(n, l.count/count, l.burst/burst)
	}
	for i := range limits {
		shards[i].count = n
		limits[i].limit, limits[i].shard = shards[i].part, &shards[i]
	}
}

// partOf returns one of so many parts of a number, rounded down, or what a part must have at least if the number is so much.
func partOf(n, parts, least int64) int64 { return min(n, max(n/parts, least)) }

// spreadOver spreads limits over n shards, or none of them. ok is false if they cannot be.
func spreadOver(limits []ruleLimit, n int64) (ok bool) {
	shards := make([]shard, len(limits))
	for i := range limits {
		l, s := &limits[i].limit, &shards[i]
		s.whole, s.count = *l, n
		var err error
		s.part, err = l.resized(l.count/n, l.burst/n)
		if l.count%n*100 > l.count || l.burst%n*100 > l.burst || err != nil {
			return false
		}
	}
	for i := range limits {
		limits[i].limit, limits[i].shard = shards[i].part, &shards[i]
	}
	return true
}

// resized returns the limit with another count, and burst if it has one.
func (l *Limit) resized(count, burst int64) (Limit, error) {
	if l.calendar != 0 {
		return NewCalendarLimit(count, l.calendar)
	}
	if l.algorithm != TokenBucket {
		burst = 0
	}
	return NewLimit(l.algorithm, count, l.window, burst)
}

// take chooses the shard of a rule that was put in play last, for limits that are spread. Where a request has several
// descriptions, one that meets the rule again meets the same shard.
func (t *turns) take(p *Plan, u *use) {
	p.turns = t
	for i := range p.uses[:len(p.uses)-1] {
		if earlier := &p.uses[i]; earlier.rule == u.rule && earlier.shards > 0 {
			u.turn = earlier.turn
			return
		}
	}
	if u.whose != whoseRule {
		u.turn = t.draw(t.others.Add(1) - 1)
		return
	}
	u.turn = t.next()
}

// next returns whose turn it is under the rule's limits: the shard is its remainder.
func (t *turns) next() uint64 {
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
	return t.draw(turn)
}

// draw returns whose turn it is if each round begins with a shard that a hash of its number says.
func (t *turns) draw(turn uint64) uint64 {
	hash := (turn/t.split.shards + 1) * 0x9E3779B97F4A7C15
	hash = (hash ^ hash>>32) * 0xD6E8FEB86659FD93
	return turn + hash>>33
}

// pass gives back the turns of the plan's rules that charged nothing, because something else refuses the request for good.
func (*turns) pass(p *Plan) {
	for i := range p.uses {
		u := &p.uses[i]
		if o := p.outcomes[i].Outcome; u.shards == 0 || o != OutcomeUncharged && o != OutcomeNone {
			continue
		}
		if t, ok := u.rule.spread.(*turns); ok && !t.drawn && u.whose == whoseRule {
			t.back.Or(1 << (u.turn % u.shards))
		}
	}
	p.turns = nil // once
}

// mark writes a shard into the text, before what stands from there on.
func (*turns) mark(p *Plan, at int, u *use) {
	var scratch [4]byte
	p.text = slices.Insert(p.text, at, appendShard(scratch[:0], u.turn%u.shards)...)
}

// violation returns the number of a counter's refusals among a client's violations. Its shards are one limit of the client.
func (t *turns) violation(p *Plan, key []byte) int64 {
	mark := len(p.text)
	p.text = AppendWholeKey(p.text, key)
	id := violationOf(p.text[mark:])
	p.text = p.text[:mark]
	return id
}
