// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// How the nodes of a Redis are counted.
const (
	// censusEvery is how often a node says that it is there, and missingAfter when one that does not counts no more: it
	// may have missed a few turns while Redis was busy.
	censusEvery  = 2 * time.Second
	missingAfter = 10 * time.Second
	// unseenMax is how long after an answer the next one must come for Redis to have been there in between: a turn was
	// missed otherwise, be it that this process did not run.
	unseenMax = 2 * censusEvery
	// censusKey is where: a sorted set with the instant at which each was last there. No rule's key has this form.
	censusKey = "rl1:~nodes:{~nodes}"
	// censusTTL is how long the set outlives the last of them.
	censusTTL = time.Minute
)

// CountNodes has this process counted among the nodes that use this Redis, and [Store.Nodes] answer. It may be called more
// than once and from many goroutines; the counting ends with the store, and does not begin when that is closed.
func (s *Store) CountNodes() {
	s.counting.Do(func() { s.running.Go(s.countNodes) })
}

// Nodes returns how many nodes use this Redis, this one among them; 0 if it is not known. It is the most that Redis has told of
// within the last ten seconds of being there without a break, so that one that comes back, maybe with nothing in it and only for a
// moment, is not taken at its word before the other nodes could come back to it too.
func (s *Store) Nodes() int { return int(s.population.Load()) }

// countNodes says every few seconds that this node is there.
func (s *Store) countNodes() {
	c := &census{store: s, name: strconv.FormatUint(rand.Uint64(), 36)}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-timer.C:
		}
		c.turn(time.Now())
		timer.Reset(censusEvery - rand.N(censusEvery/4)) // not all at once
	}
}

// census is what one node knows of how many there are. It is of one goroutine.
type census struct {
	store *Store
	name  string // this node's
	heads headcount

	asked *node     // whom the last turn had its answer from; nil: it had none
	epoch uint64    // of that one's breaker then
	at    time.Time // the last turn
}

// turn says that this node is there, and counts. Where Redis does not answer, what it said before stands. A breaker that is half
// open is tried with it, as it charges nothing: a node that nobody asks would not be counted again after an outage.
func (c *census) turn(now time.Time) {
	before := c.asked
	c.asked = nil
	n := c.store.nodeOf(c.store.placeOf([]byte(censusKey)))
	if n == nil {
		return
	}
	admitted, trial := n.breaker.admit()
	if !admitted {
		return
	}
	epoch, began := n.breaker.epoch.Load(), time.Now()
	all, err := n.enroll(c.name)
	if trial {
		if err == nil && time.Since(began) > 2*n.store.settings.timeout { // of two round trips: checks would not wait so long
			err = context.DeadlineExceeded
		}
		n.tried(epoch, err)
		epoch++ // it has closed the breaker, if there was an answer
	}
	if err != nil {
		return
	}
	unbroken := before == n && epoch == c.epoch && now.Sub(c.at) <= unseenMax
	c.asked, c.epoch, c.at = n, epoch, now
	c.store.population.Store(c.heads.saw(now, all, unbroken))
}

// enroll says that a node is there, and returns how many are, by commands that [LeastPrivilege] allows.
func (n *node) enroll(name string) (all int64, err error) {
	ctx, cancel := context.WithTimeout(n.ctx, max(connectTimeMin, n.store.settings.timeout))
	defer cancel()
	now, err := n.client.Time(ctx).Result()
	if err != nil {
		return 0, err
	}
	var count *redis.IntCmd
	_, err = n.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.ZAdd(ctx, censusKey, redis.Z{Score: float64(now.UnixMicro()), Member: name})
		pipe.ZRemRangeByScore(ctx, censusKey, "-inf", strconv.FormatInt(now.Add(-missingAfter).UnixMicro(), 10))
		count = pipe.ZCount(ctx, censusKey, "-inf", "+inf")
		pipe.PExpire(ctx, censusKey, censusTTL)
		return nil
	})
	if err != nil {
		return 0, err
	}
	return count.Val(), nil
}

// tried ends the trial of a half-open breaker that an enrolment was, in the given epoch. A refusal that may be the enrolment's
// alone (no right to its commands, another type at its key) says nothing of checks: the next call is tried instead.
func (n *node) tried(epoch uint64, err error) {
	switch {
	case err == nil:
		n.breaker.report(epoch, false)
	case n.ctx.Err() == nil && !redis.IsPermissionError(err) && failureOf(err).storeWide():
		n.breaker.report(epoch, true)
	default:
		n.breaker.release()
	}
}

// headcount says how many nodes to believe in, of what Redis has told over time: the most of the last missingAfter. In that
// time each node that is there has said so, if Redis was there all along; where it was not, the time begins anew. The zero
// headcount was told nothing.
type headcount struct {
	told []telling // the first is the most; instants rise and numbers fall, so that there are at most as many as turns in that time
}

type telling struct {
	at    time.Time
	nodes int64
}

// saw takes note of how many nodes Redis tells of, and whether it has been there since it last did, and returns how many to
// believe in.
func (h *headcount) saw(now time.Time, nodes int64, unbroken bool) int64 {
	if !unbroken && len(h.told) > 0 {
		h.told = h.told[:1]
		h.told[0].at = now
	}
	h.told = slices.DeleteFunc(h.told, func(t telling) bool { return t.nodes <= nodes || now.Sub(t.at) > missingAfter })
	h.told = append(h.told, telling{now, nodes})
	return h.told[0].nodes
}
