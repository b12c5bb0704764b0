// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"math/rand/v2"
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
	// censusKey is where: a sorted set with the instant at which each was last there. No rule's key has this form.
	censusKey = "rl1:~nodes:{~nodes}"
	// censusTTL is how long the set outlives the last of them.
	censusTTL = time.Minute
)

// CountNodes has this process counted among the nodes that use this Redis, and [Store.Nodes] answer. It may be called more
// than once and from many goroutines; the counting ends with the store.
func (s *Store) CountNodes() {
	s.counting.Do(func() {
		if s.ctx.Err() == nil {
			s.running.Go(s.census)
		}
	})
}

// Nodes returns how many nodes used this Redis when it was last asked, this one among them; 0 if it is not known.
func (s *Store) Nodes() int { return int(s.population.Load()) }

// census says every few seconds that this node is there.
func (s *Store) census() {
	name := strconv.FormatUint(rand.Uint64(), 36)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-timer.C:
		}
		s.enroll(name)
		timer.Reset(censusEvery - rand.N(censusEvery/4)) // not all at once
	}
}

// enroll says that this node is there, and counts, by commands that [LeastPrivilege] allows. Where Redis does not answer, what it said before stands.
func (s *Store) enroll(name string) {
	n := s.nodeOf(s.placeOf([]byte(censusKey)))
	if n == nil || n.breaker.State() != BreakerClosed {
		return
	}
	ctx, cancel := context.WithTimeout(n.ctx, max(connectTimeMin, s.settings.timeout))
	defer cancel()
	now, err := n.client.Time(ctx).Result()
	if err != nil {
		return
	}
	var all *redis.IntCmd
	_, err = n.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.ZAdd(ctx, censusKey, redis.Z{Score: float64(now.UnixMicro()), Member: name})
		pipe.ZRemRangeByScore(ctx, censusKey, "-inf", strconv.FormatInt(now.Add(-missingAfter).UnixMicro(), 10))
		all = pipe.ZCount(ctx, censusKey, "-inf", "+inf")
		pipe.PExpire(ctx, censusKey, censusTTL)
		return nil
	})
	if err == nil {
		s.population.Store(all.Val())
	}
}
