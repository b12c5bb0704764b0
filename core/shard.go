// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// A rule with shards uses several counters in place of one, in different slots of a Redis cluster.
// Each shard has an equal part of the limit and of the burst, so together they never admit more
// than the limit does. A request is charged to one shard, with all limits of the rule, and the
// shards rotate.
//
// Suppose that M processes count a rule with one counter for all clients, a cost of 1 and N shards.
// Within one process, the numbers of times that any two shards were used differ by at most one, so
// over all processes they differ by at most M. When a request is denied for the first time, its
// shard has received more requests than its part of the limit. Every other shard has received at
// most M fewer requests than this shard. So at most M - 1 units are left in each of them, and
// (N-1)(M-1) in all. These units are not lost: after that many further requests, the whole limit is
// admitted.
//
// The bound counts requests when they are sent to the store, so requests in flight can add to the
// units left. It assumes that all shards start with the same number of units. A process that
// reloads its policy restarts its rotation, and counts as one more process until the window ends.

// sharding spreads the counters of a rule over shards, and chooses a shard for each
// request. The type is an interface so that a program that calls no store, such as the filter for
// Envoy, does not link it. In such a program limits and results are never divided into shards.
type sharding interface {
	// own returns a client's own limits, as ownLimits.limitsFor does
	own(o *ownLimits, r *rule, holdsClient bool) *limitSet
	// distribute spreads the limits of a set over shards
	distribute(how shardSpec, limits []ruleLimit)
	// selectShard selects the shard for the rule that was put in play last
	selectShard(p *Plan, u *ruleUse)
	// mark inserts the shard into the key, at the given offset of the text
	mark(p *Plan, at int, u *ruleUse)
	// violation returns the violation number of a key
	violation(p *Plan, key []byte) int64
	// pass releases the turns of rules that charged nothing
	pass(p *Plan)
}

// shardSpec describes how limits are divided into shards, after the region's part of each limit was
// taken.
type shardSpec struct {
	region  policy.InRegion
	shards  uint64
	dearest int64 // the highest cost that the rule itself sets
	settled int64 // the highest cost that a response can have
	shared  bool  // several clients share the counters and can have their own limits
}

// shard is the part of a limit that one shard has.
type shard struct {
	_     [0]func()     // makes shard incomparable, which saves the comparison code in the filter
	part  counter.Limit // the limit of one shard
	whole counter.Limit // the limit of all shards; division may lose some units of it
	count int64         // the number of shards, 1 to ShardsMax
}

// shardsOf returns the number of shards that limits are spread over; 0 if they are not spread.
func shardsOf(limits []ruleLimit) uint64 {
	if len(limits) == 0 || limits[0].shard == nil {
		return 0
	}
	return uint64(limits[0].shard.count)
}

// ruleLimit.wholeLimit returns the limit as clients see it: the whole limit if it is spread over
// shards.
func (l *ruleLimit) wholeLimit() *counter.Limit {
	if l.shard != nil {
		return &l.shard.whole
	}
	return &l.limit
}

// AppendUnsharded appends the results for a reader that knows neither shards nor grants, such as
// the filter for Envoy. The remaining units are then at most the limit without grants.
func (p *Plan) AppendUnsharded(dst []counter.Result) []counter.Result {
	first := len(dst)
	dst = append(dst, p.Results()...)
	for i := first; i < len(dst); i++ {
		dst[i].Remaining = p.Remaining(i - first)
		if granted := p.grantedUnits(i - first); granted > 0 {
			dst[i].Remaining = min(dst[i].Remaining, p.checks[i-first].Limit.Count()-granted)
		}
	}
	return dst
}
