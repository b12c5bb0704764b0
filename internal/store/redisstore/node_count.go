// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/internal/survive"
)

// Parameters of counting nodes.
const (
	// announceEvery is the interval at which a node announces itself. The constant missingAfter is
	// the time after which a silent node no longer counts; it allows for a few announcements that
	// were missed while Redis was busy.
	announceEvery = 2 * time.Second
	missingAfter  = 10 * time.Second
	// unseenMax is the longest gap between two answers during which Redis is assumed to have been
	// available. A longer gap means that an announcement was missed, possibly because this process
	// was not running.
	unseenMax = 2 * announceEvery
	// nodesKey is a sorted set of the nodes by the time of their latest announcement. No rule's key
	// has this form.
	nodesKey = "rl1:~nodes:{~nodes}"
	// nodesTTL is how long the set at nodesKey exists after the latest announcement of a node.
	nodesTTL = time.Minute
)

// CountNodes makes this process announce itself as a node that uses this Redis, and enables
// [Store.Nodes]. CountNodes may be called more than once and concurrently. The counting ends when
// the store is closed, and does not start if the store is closed already.
func (s *Store) CountNodes() {
	s.counting.Do(func() { survive.Go(&s.running, s.settings.logger, s.countNodes) })
}

// Nodes returns the number of nodes that use this Redis, including this one, or 0 if it is unknown.
// The result is the highest number that Redis reported in the last ten seconds of uninterrupted
// availability. So a Redis that comes back without data, even if it was away only for a moment,
// does not lower the number before the other nodes can reconnect.
func (s *Store) Nodes() int { return int(s.nodeCount.Load()) }

// countNodes announces this node every few seconds.
func (s *Store) countNodes() {
	c := &nodeCounter{store: s, name: strconv.FormatUint(rand.Uint64(), 36)}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-timer.C:
		}
		c.turn(time.Now())
		// The random part prevents nodes from announcing themselves at the same time.
		timer.Reset(announceEvery - rand.N(announceEvery/4))
	}
}

// nodeCounter counts the nodes on behalf of this one. A nodeCounter belongs to one goroutine.
type nodeCounter struct {
	store    *Store
	name     string // the name of this node
	estimate nodeEstimate

	asked *node     // the server that answered the last announcement, or nil
	epoch uint64    // the epoch of that server's breaker at that time
	at    time.Time // the time of the last announcement
}

// nodeCounter.turn announces this node and updates the count. If Redis does not answer, or its
// breaker is not closed, the previous count remains.
func (c *nodeCounter) turn(now time.Time) {
	before := c.asked
	c.asked = nil
	n := c.store.nodeOf(c.store.valuePlaceOf([]byte(nodesKey)))
	if n == nil || n.breaker.State() != BreakerClosed {
		return
	}
	epoch := n.breaker.epoch.Load()
	all, err := n.announce(c.name)
	if err != nil {
		return
	}
	unbroken := before == n && epoch == c.epoch && now.Sub(c.at) <= unseenMax
	c.asked, c.epoch, c.at = n, epoch, now
	c.store.nodeCount.Store(c.estimate.addReading(now, all, unbroken))
}

// node.announce announces a node and returns the number of nodes. It uses only commands that
// [LeastPrivilege] allows.
func (n *node) announce(name string) (all int64, err error) {
	ctx, cancel := context.WithTimeout(n.ctx, max(connectTimeMin, n.store.settings.timeout))
	defer cancel()
	now, err := n.client.Time(ctx).Result()
	if err != nil {
		return 0, err
	}
	var count *redis.IntCmd
	_, err = n.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.ZAdd(ctx, nodesKey, redis.Z{Score: float64(now.UnixMicro()), Member: name})
		pipe.ZRemRangeByScore(ctx, nodesKey, "-inf", strconv.FormatInt(now.Add(-missingAfter).UnixMicro(), 10))
		count = pipe.ZCount(ctx, nodesKey, "-inf", "+inf")
		pipe.PExpire(ctx, nodesKey, nodesTTL)
		return nil
	})
	if err != nil {
		return 0, err
	}
	return count.Val(), nil
}

// nodeEstimate estimates the number of nodes as the maximum that Redis reported in the last period
// of missingAfter. In that time every running node has announced itself, if Redis was available
// throughout; after an interruption the period starts again. The zero nodeEstimate has no readings.
type nodeEstimate struct {
	// sorted by increasing time and decreasing number, so the first reading is the maximum, and
	// there is at most one reading per announcement
	readings []nodeReading
}

type nodeReading struct {
	at    time.Time
	nodes int64
}

// addReading adds a reading and returns the estimate. The argument named unbroken reports whether
// Redis was available since the previous reading.
func (h *nodeEstimate) addReading(now time.Time, nodes int64, unbroken bool) int64 {
	if !unbroken && len(h.readings) > 0 {
		h.readings = h.readings[:1]
		h.readings[0].at = now
	}
	h.readings = slices.DeleteFunc(h.readings, func(t nodeReading) bool { return t.nodes <= nodes || now.Sub(t.at) > missingAfter })
	h.readings = append(h.readings, nodeReading{now, nodes})
	return h.readings[0].nodes
}
