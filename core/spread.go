// SPDX-License-Identifier: Apache-2.0

package core

// A rule with shards counts over several counters in place of one, which a Redis cluster keeps in different slots. Each has
// its whole part of the limit and of the burst, so that together they never let more through than the limit does. A request
// is charged to one of them, with all limits of the rule, and they take turns.
//
// With M processes that count a rule for everybody, a cost of 1 and N shards, no shard has been asked by one process more
// than once more often than another, so by all of them at most M times. When the first request is refused its shard has been
// asked for more than its part, and each of the others for no less than that less M: at most M - 1 units are left in each,
// and (N-1)(M-1) in all. They are not lost: after as many requests more, all of the limit has been let through.
//
// That counts requests as they are asked about, so it is by what is under way that more may be left. And it holds from a
// state in which all shards have the same left: a process that reads its policy anew begins its turns anew, and counts as
// one process more until the window is over.

// ShardsMax is how many shards a rule can have: a cluster has no more servers as a rule, and a set of them is one number.
const ShardsMax = 64

// spreader spreads the counters of a rule, and chooses their shards. It stands behind an interface so that a program that asks
// no store, such as the filter for Envoy, has none in it: there limits are whole, and so is what it is told of them.
type spreader interface {
	own(o *Overrides, r *rule, holdsClient bool) *limitSet // what a client's own limits are, as Overrides.of returns them
	over(how splitting, limits []ruleLimit)                // spreads those of a set
	take(p *Plan, u *use)                                  // chooses
	mark(p *Plan, at int, u *use)                          // writes what was chosen into the key, at that place of the text
	violation(p *Plan, key []byte) int64                   // numbers a refusal
	pass(p *Plan)                                          // gives back the turns of all rules that charged nothing
}

// splitting says how limits are divided.
type splitting struct {
	shards  uint64
	dearest int64 // the greatest cost that the rule itself states
	settled int64 // the greatest that a response may say
	shared  bool  // the counters are those of several clients, who may have limits of their own
}

// shard is a limit's part of those that a counter is spread over.
type shard struct {
	_     [0]func() // nobody compares them, and code that could would be in the filter
	part  Limit     // what one of them lets through
	whole Limit     // what all of them do, but for what division loses
	count int64     // of them, 2 to ShardsMax
}

// shardsOf returns over how many shards limits are spread; 0 if they are not.
func shardsOf(limits []ruleLimit) uint64 {
	if len(limits) == 0 || limits[0].shard == nil {
		return 0
	}
	return uint64(limits[0].shard.count)
}

// told returns the limit as people know it, which is the whole of one that is spread.
func (l *ruleLimit) told() *Limit {
	if l.shard != nil {
		return &l.shard.whole
	}
	return &l.limit
}

// left returns what is left of a check's limit: of one that is spread what this shard has, times their number, which is as
// good a guess as one answer allows.
//
//go:noinline
func (p *Plan) left(check int) int64 {
	left := p.results[check].Remaining
	if l := p.asked[check].limit; l != nil && l.shard != nil {
		left *= l.shard.count
	}
	return left
}

// AppendTold appends the results as who knows of no shards is told them, such as the filter for Envoy.
func (p *Plan) AppendTold(dst []Result) []Result {
	first := len(dst)
	dst = append(dst, p.Results()...)
	for i := first; i < len(dst); i++ {
		dst[i].Remaining = p.left(i - first)
	}
	return dst
}

// shardMark begins what stands before the rest of a key's braces, if the counter is a shard: ~3: for the fourth one. No kind
// of a client or a dimension begins so, and no rule's name.
const shardMark = '~'
