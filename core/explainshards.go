// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"
	"strconv"
)

// A request is charged to one shard of a rule, by turns that processes keep to themselves. Who asks beforehand cannot know
// which it will be, so an explanation tells of all of them.

// lookedAt is what all shards of a limit have together.
type lookedAt struct {
	remaining, used int64
	reset           Micros // until the last of them is
	refusing        int    // how many shards would refuse the request, for this limit or another of the rule
}

// Looks returns looks at every counter that the request of a traced plan may be charged to: Checks as looks, those of a rule
// with shards once for each shard. There may be more than ChecksMax, which are then asked in several calls. Looked takes
// the answers.
func (p *Plan) Looks() (looks []Check) {
	for i, c := range p.Checks() {
		c.Op, c.Guard, c.Violation = OpLook, 0, 0
		u := &p.uses[p.asked[i].use]
		if u.shards == 0 {
			looks = append(looks, c)
		}
		for shard := range u.shards {
			c.Key = appendKeyOf(nil, p.checks[i].Key, shard)
			looks = append(looks, c)
		}
	}
	return looks
}

// Looked takes the answers to Looks, in place of a store's to Checks: Decide follows, and Explain tells of all shards. A rule
// then decides as the shard does that lets the request through soonest, whose Checks and Results stand for the others.
func (p *Plan) Looked(results []Result) {
	if len(results) == 0 {
		return
	}
	p.trace.looked = make([]lookedAt, len(p.checks))
	for i := range p.uses {
		u := &p.uses[i]
		shards := max(1, int(u.shards))
		count := int(u.checks[1]-u.checks[0]) * shards
		p.lookedAtRule(u, results[:count], shards)
		results = results[count:]
	}
}

// lookedAtRule takes the answers about a rule: of each limit those of all its shards.
func (p *Plan) lookedAtRule(u *use, results []Result, shards int) {
	waits := make([]Micros, shards)
	refuses := make([]bool, shards)
	for i := range results {
		shard := i % shards
		waits[shard] = max(waits[shard], results[i].Wait)
		refuses[shard] = refuses[shard] || results[i].Refused
	}
	soonest := slices.Index(waits, slices.Min(waits))
	refusing := 0
	for _, one := range refuses {
		if one {
			refusing++
		}
	}
	for i := u.checks[0]; i < u.checks[1]; i++ {
		all := &p.trace.looked[i]
		all.refusing = refusing
		for _, result := range results[:shards] {
			all.remaining += result.Remaining
			all.reset = max(all.reset, result.Reset)
			if l := p.checks[i].Limit; l != nil {
				all.used += l.Capacity() - result.Remaining
			}
		}
		p.results[i], results = results[soonest], results[shards:]
		if u.shards > 0 {
			p.checks[i].Key = appendKeyOf(nil, p.checks[i].Key, uint64(soonest))
		}
	}
}

// appendKeyOf appends the key of another shard of the counter that has this one.
func appendKeyOf(dst, key []byte, shard uint64) []byte {
	start, end, _ := shardIn(key)
	return append(appendShard(append(dst, key[:start]...), shard), key[end:]...)
}

// appendShard appends what stands in the key of a shard before what its other shards have in common.
func appendShard(dst []byte, shard uint64) []byte {
	return append(strconv.AppendUint(append(dst, shardMark), shard, 10), ':')
}
