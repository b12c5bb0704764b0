// SPDX-License-Identifier: Apache-2.0

// Package store builds the store in which a process keeps its counters.
//
// # Promise
//
// Every process with the same [Options] gets the same layers. If Redis is not configured, the store
// is in memory. Otherwise the counters are in Redis, behind a layer of leases and cached denials.
// An in-memory fallback applies on_error while Redis does not answer. [Store.Close] returns unused
// leases and then closes every layer.
//
// # Price
//
// A call costs what its layers cost. The layers call each other directly. The fallback allocates
// memory only when Redis fails.
//
// # When not to use it
//
// A test of a single layer creates that layer directly. A tool that inspects Redis without charging
// uses redisadmin.
package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/region/writeoff"
	"github.com/penstock/penstock/internal/store/fallback"
	"github.com/penstock/penstock/internal/store/leasestore"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/store/regionstore"
	"github.com/penstock/penstock/lua"
)

// leaseReturnTime bounds how long Close may take to return unused leases. A lease that is not
// returned in time remains charged.
const leaseReturnTime = 2 * time.Second

// Options configures a store. The zero Options give an in-memory store with default bounds.
type Options struct {
	// Redis configures the Redis server or servers. If Redis is nil, the process counts in its own
	// memory.
	Redis *redisstore.Options
	// CountersMax and BytesMax bound the in-memory store; 0 selects the default of memstore. The
	// bounds do not apply to Redis or to the fallback.
	CountersMax int
	BytesMax    int64
	// Pool lets the store count together with other stores of this process over the same counters,
	// while Redis does not answer. Nil means that the store counts by itself.
	Pool *Pool
	// ForgetDenials makes every denied request call Redis again. By default, a denial is cached for
	// at most a second.
	ForgetDenials bool
	// Failed is called for each failure of Redis that the fallback handles. Calls may be
	// concurrent. Failed may be nil.
	Failed func(err error)
	// Logger receives the messages of all layers. Logger may be nil.
	Logger *slog.Logger
}

// Store is the store that [Open] returns. A Store is safe for concurrent use.
type Store struct {
	// Requests charges requests. Requests implements [counter.Batcher] if the counters are in
	// Redis.
	Requests counter.Store
	// Corrections corrects charges when the response is known, both those of Redis and those of the
	// fallback.
	Corrections counter.Store
	// Memory is the in-memory store. Memory is nil if the counters are in Redis.
	Memory *memstore.Store
	// Redis and Leases are the layers of a Redis store. Both layers are nil for an in-memory store.
	Redis  *redisstore.Store
	Leases *leasestore.Store
	// Loans lets requests wait for units of other regions. Loans is nil for an in-memory store.
	Loans *regionstore.Store

	now   func([]counter.Check, []counter.Result) bool // over Redis: answers from memory, or returns false
	close func() error
}

// Open builds a store. If an option is invalid, Open returns an error that names the option, and
// leaves nothing open.
func Open(o Options) (*Store, error) {
	if o.Redis == nil {
		return openMemory(&o)
	}
	return openRedis(&o)
}

func openMemory(o *Options) (*Store, error) {
	memory, err := memstore.New(memstore.Options{CountersMax: o.CountersMax, BytesMax: o.BytesMax,
		Logger: o.Logger})
	if err != nil {
		return nil, fmt.Errorf("store memory: %w", err)
	}
	return &Store{Requests: memory, Corrections: memory, Memory: memory, close: memory.Close}, nil
}

func openRedis(o *Options) (*Store, error) {
	options := *o.Redis
	options.Logger = o.Logger
	redis, err := redisstore.New(options)
	if err != nil {
		return nil, err
	}
	pool := cmp.Or(o.Pool, new(Pool))
	at, err := pool.open(redis, o.Logger)
	if err != nil {
		return nil, errors.Join(err, redis.Close())
	}
	wait := waitMax(redis, &options)
	leasing := leasestore.Options{Timeout: options.Timeout, WaitMax: wait, Reports: at.reports}
	if o.ForgetDenials {
		leasing.DenialsMax = -1
	}
	regions := regionstore.New(redis, agency(redis), o.Logger)
	leases, err := leasestore.New(regions, leasing)
	if err != nil {
		regions.Close()
		return nil, errors.Join(fmt.Errorf("store redis: %w", err), redis.Close(), pool.leave(at, redis))
	}
	regions.ForgetWith(leases.Forget)
	standIn := fallback.New(leases, fallback.Options{Counts: at.counts, Nodes: at.nodesOf(redis), AtOnce: leases.TakeNow,
		Prepare: redis.CountNodes, Known: leases.Used, Patience: wait, Failed: o.Failed})
	return &Store{Requests: standIn, Corrections: standIn.Corrections(), Redis: redis, Leases: leases, Loans: regions, now: standIn.TakeNow,
		close: func() error {
			err := closeLeases(leases)
			regions.Close()
			return errors.Join(err, redis.Close(), pool.leave(at, redis))
		}}, nil
}

// waitMax returns how long a request may wait for the call of another request. The result is longer
// than the call's own deadline. So if Redis does not answer, the call fails first, and on_error
// decides all requests that wait for it.
func waitMax(redis *redisstore.Store, o *redisstore.Options) time.Duration {
	return redis.Patience() + cmp.Or(o.Timeout, redisstore.TimeoutDefault)
}

// agency returns the functions that reach the region's agents.
func agency(redis *redisstore.Store) regionstore.Agency {
	return regionstore.Agency{
		Publish: func(ctx context.Context, message []byte) (int64, error) {
			reply, err := redis.DoFor(ctx, regionstore.ChannelKey, "PUBLISH", regionstore.Channel, message)
			heard, _ := reply.(int64)
			return heard, err
		},
		Listen: func(ctx context.Context, begun func(), received func(message string)) error {
			return redis.Listen(ctx, regionstore.ChannelKey, regionstore.AnswerChannel, begun, received)
		},
		Writeoffs: func(ctx context.Context) ([]byte, error) { return writeoff.Read(ctx, redis) },
		Mark: func(ctx context.Context, names []string) (removed int64, told bool, err error) {
			return markChanged(ctx, redis, names)
		}}
}

// markChanged tells the region's agents the names of counters that have changed.
func markChanged(ctx context.Context, redis *redisstore.Store, names []string) (removed int64, told bool, err error) {
	keys, args := regionstore.MarkCall(names, regionstore.UntoldMax)
	reply, err := redis.Eval(ctx, lua.GossipMark, redisstore.ScriptCall{Keys: keys, Args: args})
	if err != nil {
		return 0, false, err
	}
	if list, ok := reply.([]any); ok && len(list) == 2 {
		removed, _ = list[0].(int64)
		teller, _ := list[1].(int64)
		return removed, teller == 1, nil
	}
	return 0, false, fmt.Errorf("reply %.100q does not answer a list of counters", fmt.Sprint(reply))
}

// Reachable returns an error unless Redis answers and is configured so that limits are enforced. An
// in-memory store is always reachable.
func (s *Store) Reachable(ctx context.Context) error {
	if s.Redis == nil {
		return nil
	}
	return s.Redis.Check(ctx)
}

// AwaitStart waits until the store has tried to connect to Redis, or until ctx is done.
func (s *Store) AwaitStart(ctx context.Context) {
	if s.Redis != nil {
		s.Redis.AwaitStart(ctx)
	}
}

// Away reports whether Redis is known to be away, because a circuit breaker is not closed. If there
// are several servers, the breaker of one of them is enough. An in-memory store is never away.
func (s *Store) Away() bool {
	return s.Redis != nil && s.Redis.Stats().Breaker != redisstore.BreakerClosed
}

// Problems returns the present problems of Redis, for operators.
func (s *Store) Problems() (all []string) {
	if s.Redis == nil {
		return nil
	}
	for _, server := range s.Redis.Servers() {
		if server.Breaker != redisstore.BreakerClosed {
			all = append(all, fmt.Sprintf("Redis at %s does not answer: on_error decides", server.Addr))
		}
	}
	return all
}

// Close returns unused leases and closes all layers. No request may use the store any more.
func (s *Store) Close() error { return s.close() }

func closeLeases(leases *leasestore.Store) error {
	ctx, cancel := context.WithTimeout(context.Background(), leaseReturnTime)
	defer cancel()
	return leases.Close(ctx)
}

// TakeNow answers a call at once if that is possible without calling Redis: from memory, from
// leased units or from a remembered denial. If Redis must be called, it returns false and charges
// nothing. TakeNow never waits.
func (s *Store) TakeNow(checks []counter.Check, results []counter.Result) bool {
	if s.now == nil {
		return s.Memory.Take(context.Background(), checks, results) == nil
	}
	return s.now(checks, results)
}
