// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"

	"github.com/penstock/penstock/core/counter"
)

// A request is charged to one shard of a rule. Each process rotates through the shards
// independently, so the shard is not known in advance, and an explanation covers all shards.

// shardSum is the sum over all shards of a limit.
type shardSum struct {
	remaining, used int64
	reset           counter.Micros // until the last shard is full again
	// the number of shards that would deny the request by any limit of the rule
	denying int
}

// Looks returns an OpLook check for every counter to which the request of a traced plan might be
// charged: one for each check, or one for each shard if the rule has shards. There can be more than
// ChecksMax; the caller then splits them into several calls. Pass the answers to Looked.
func (p *Plan) Looks() (looks []counter.Check) {
	for i, c := range p.Checks() {
		c.Op, c.Guard, c.Violation = counter.OpLook, 0, 0
		u := &p.uses[p.asked[i].use]
		if u.shards == 0 {
			looks = append(looks, c)
		}
		for shard := range u.shards {
			c.Key = counter.AppendKeyOfShard(nil, p.checks[i].Key, shard)
			looks = append(looks, c)
		}
	}
	return looks
}

// Looked stores the answers to the checks of Looks, in place of answers to Checks. After Looked,
// call Decide; Explain then covers all shards. A rule with shards then decides by the shard that
// admits the request soonest. Checks and Results then describe that shard.
func (p *Plan) Looked(results []counter.Result) {
	if len(results) == 0 {
		return
	}
	p.trace.looked = make([]shardSum, len(p.checks))
	for i := range p.uses {
		u := &p.uses[i]
		shards := max(1, int(u.shards))
		count := int(u.checks[1]-u.checks[0]) * shards
		p.mergeRule(u, results[:count], shards)
		results = results[count:]
	}
}

// mergeRule merges the answers of all shards, for each limit of a rule.
func (p *Plan) mergeRule(u *ruleUse, results []counter.Result, shards int) {
	waits := make([]counter.Micros, shards)
	denies := make([]bool, shards)
	for i := range results {
		shard := i % shards
		waits[shard] = max(waits[shard], results[i].Wait)
		denies[shard] = denies[shard] || results[i].Denied
	}
	soonest := slices.Index(waits, slices.Min(waits))
	denying := 0
	for _, one := range denies {
		if one {
			denying++
		}
	}
	for i := u.checks[0]; i < u.checks[1]; i++ {
		all := &p.trace.looked[i]
		all.denying = denying
		for _, result := range results[:shards] {
			all.remaining += result.Remaining
			all.reset = max(all.reset, result.Reset)
			if l := p.checks[i].Limit; l != nil {
				all.used += l.Capacity() - result.Remaining
			}
		}
		p.results[i], results = results[soonest], results[shards:]
		if u.shards > 0 {
			p.checks[i].Key = counter.AppendKeyOfShard(nil, p.checks[i].Key, uint64(soonest))
		}
	}
}
