// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/survive"
)

// Parameters of heartbeats.
const (
	// heartbeatEvery is the least time between two heartbeats. A random span of up to the same
	// length is added, so that nodes do not write at the same time.
	heartbeatEvery = 5 * time.Second
	// SilentAfter is the time without a heartbeat after which a node is reported as silent.
	// SilentAfter allows for one missed heartbeat.
	SilentAfter = 25 * time.Second
	// forgottenAfter is the time after which a silent node is no longer listed.
	forgottenAfter = 10 * time.Minute
	// writeTime bounds a heartbeat, the removal of a record, and a read of events.
	writeTime = 2 * time.Second
)

// The keys; see the package.
const (
	recordPrefix = "rl1:~node:{~fleet}:"
	fleetKey     = "rl1:~fleet:{~fleet}"
	followKey    = "rl1:~follow:{~fleet}"
	eventsPrefix = "rl1:~events:{~fleet}:"
)

// NodesMax is the greatest number of nodes whose records are read.
const NodesMax = 1000

// Member writes the heartbeats of a node. Close it before the store.
type Member struct {
	store   *redisstore.Store
	node    *Node
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// Join begins to write the heartbeats of a node.
func Join(store *redisstore.Store, node *Node) *Member {
	ctx, cancel := context.WithCancel(context.Background())
	m := &Member{store: store, node: node, cancel: cancel}
	survive.Go(&m.running, nil, func() { m.beat(ctx) })
	survive.Go(&m.running, nil, func() { m.sendEvents(ctx) })
	return m
}

// Close ends the heartbeats and removes the record. A record that cannot be removed expires.
func (m *Member) Close() {
	m.cancel()
	m.running.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), writeTime)
	defer cancel()
	_, _ = m.store.DoFor(ctx, fleetKey, "del", recordPrefix+m.node.id, eventsPrefix+m.node.id)
}

// Member.beat writes the record at intervals. A failed heartbeat is not repeated before the next
// one is due.
func (m *Member) beat(ctx context.Context) {
	for {
		_ = m.write(ctx, time.Now())
		select {
		case <-ctx.Done():
			return
		case <-time.After(heartbeatEvery + rand.N(heartbeatEvery)):
		}
	}
}

// Member.write writes the record, dated by the clock of Redis.
func (m *Member) write(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	record := m.node.Record(now)
	at, err := serverTime(ctx, m.store)
	if err != nil {
		return err
	}
	record.SeenMicros = at
	text, err := record.encode()
	if err != nil {
		return err
	}
	for _, command := range [][]any{
		{"set", recordPrefix + m.node.id, text, "px", forgottenAfter.Milliseconds()},
		{"zadd", fleetKey, at, m.node.id},
		{"zremrangebyscore", fleetKey, "-inf", at - forgottenAfter.Microseconds()},
		{"pexpire", fleetKey, forgottenAfter.Milliseconds()},
	} {
		if _, err := m.store.DoFor(ctx, fleetKey, command...); err != nil {
			return err
		}
	}
	return nil
}

// serverTime returns the time of the Redis that holds the records, in Unix microseconds.
func serverTime(ctx context.Context, store *redisstore.Store) (int64, error) {
	reply, err := store.DoFor(ctx, fleetKey, "time")
	if err != nil {
		return 0, err
	}
	parts, _ := reply.([]any)
	if len(parts) != 2 {
		return 0, fmt.Errorf("the reply to TIME is %v", reply)
	}
	seconds, err1 := strconv.ParseInt(fmt.Sprint(parts[0]), 10, 64)
	micros, err2 := strconv.ParseInt(fmt.Sprint(parts[1]), 10, 64)
	return seconds*1e6 + micros, errors.Join(err1, err2)
}

// Reading holds the records of the nodes of a Redis.
type Reading struct {
	Records    []*Record
	NowMicros  int64 // when the records were read, by the clock of Redis
	Unreadable int   // records that could not be read
}

// Read reads the records of all nodes.
func Read(ctx context.Context, store *redisstore.Store) (*Reading, error) {
	now, err := serverTime(ctx, store)
	if err != nil {
		return nil, err
	}
	reply, err := store.DoFor(ctx, fleetKey, "zrange", fleetKey, 0, NodesMax-1, "rev")
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, err
	}
	ids, _ := reply.([]any)
	found := &Reading{NowMicros: now}
	// A few records are read at a time, so that no reply is large.
	for some := range slices.Chunk(ids, 64) {
		keys := make([]string, len(some))
		for i := range some {
			keys[i] = recordPrefix + fmt.Sprint(some[i])
		}
		values := make([][]byte, len(keys))
		if err := store.Values(ctx, keys, values); err != nil {
			return nil, err
		}
		for i, text := range values {
			if text == nil {
				continue // the node has left since its ID was read
			}
			record, err := decode(fmt.Sprint(some[i]), text)
			if err != nil {
				found.Unreadable++
				continue
			}
			found.Records = append(found.Records, record)
		}
	}
	slices.SortFunc(found.Records, func(a, b *Record) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })
	return found, nil
}
