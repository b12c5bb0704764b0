// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/racescale"
	"github.com/penstock/penstock/internal/test/redistest"
	"github.com/penstock/penstock/internal/test/storetest"
	"github.com/penstock/penstock/lua"
)

// bareStore is the simplest store over the script: each call is one command, without a deadline of
// its own.
type bareStore struct {
	client Client
	pinned atomic.Int64
}

// bareOn returns a store on a server that has loaded the script and has no counters.
func bareOn(t testing.TB, s *redistest.Server) *bareStore {
	t.Helper()
	ctx := context.Background()
	if err := s.Client().FlushAll(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	sha, err := s.Client().ScriptLoad(ctx, lua.Take).Result()
	if err != nil {
		t.Fatalf("the script does not load: %v", err)
	}
	if sha != lua.TakeSHA {
		t.Fatalf("Redis calls the script %s, we call it %s", sha, lua.TakeSHA)
	}
	return &bareStore{client: s.Client()}
}

func (b *bareStore) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	if err := counter.ValidateChecks(checks, results); err != nil {
		return err
	}
	cmd := newTake(ctx, counter.Micros(b.pinned.Load()), checks)
	_ = b.client.Process(ctx, cmd)
	switch err := cmd.results(checks, results); {
	case redis.HasErrorPrefix(err, "STALE"):
		return errStale
	case err != nil:
		return fmt.Errorf("%w: %w", counter.ErrUnavailable, err)
	}
	return nil
}

func (b *bareStore) subject() storetest.Subject {
	return storetest.Subject{
		Store:   b,
		Pin:     func(now counter.Micros) { b.pinned.Store(int64(now)) },
		Counter: b.counter,
		Penalty: b.penalty,
	}
}

// bareStore.counter reads the stored counter of a key.
func (b *bareStore) counter(t testing.TB, key []byte, l *counter.Limit) (counter.State, []counter.Mark) {
	t.Helper()
	ctx := context.Background()
	if l.Algorithm() != counter.SlidingLog {
		text, err := b.client.Get(ctx, string(key)).Result()
		if err == redis.Nil {
			return counter.State{}, nil
		}
		n := numbers(t, strings.Fields(text))
		dips := len(n) - 4
		if err != nil || len(n) < 3 || dips > 0 && (dips%2 != 0 || dips > 2*counter.DipsMax) {
			t.Fatalf("counter %q is %q (%v)", key, text, err)
		}
		state := counter.State{At: counter.Micros(n[0]), Used: n[1], Aux: n[2]}
		if len(n) >= 4 {
			state.Leased = counter.Micros(n[3])
		}
		for i := 0; 2*i < dips; i++ {
			state.Dips[i] = counter.Dip{At: counter.Micros(n[4+2*i]), Missing: n[5+2*i]}
		}
		return state, nil
	}
	members, err := b.client.ZRangeWithScores(ctx, string(key), 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	var marks []counter.Mark
	var units int64
	for _, z := range members {
		n := numbers(t, strings.Split(z.Member.(string), ":"))
		if len(n) != 2 || float64(n[0]) != z.Score {
			t.Fatalf("log %q: member %q has the score %.0f", key, z.Member, z.Score)
		}
		marks = append(marks, counter.Mark{At: counter.Micros(n[0]), Units: n[1]})
		units += n[1]
	}
	sum, err := b.client.Get(ctx, string(key)+sumSuffix).Int64()
	if err != nil && err != redis.Nil || sum != units {
		t.Fatalf("log %q: the sum is %d (%v), the members make %d", key, sum, err, units)
	}
	return counter.State{}, marks
}

// bareStore.penalty reads the stored violations of a client.
func (b *bareStore) penalty(t testing.TB, key []byte) (until counter.Micros, violations []counter.Violation) {
	t.Helper()
	ctx := context.Background()
	n, err := b.client.Get(ctx, string(key)+untilSuffix).Int64()
	if err != nil && err != redis.Nil {
		t.Fatal(err)
	}
	members, err := b.client.ZRangeWithScores(ctx, string(key), 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, z := range members {
		parts := numbers(t, strings.Split(z.Member.(string), "-"))
		if len(parts) != 3 || float64(parts[0]) != z.Score {
			t.Fatalf("record %q: member %q has the score %.0f", key, z.Member, z.Score)
		}
		violations = append(violations, counter.Violation{At: counter.Micros(parts[0]), Until: counter.Micros(parts[1]), ID: parts[2]})
	}
	return counter.Micros(n), violations
}

func numbers(t testing.TB, texts []string) (ns []int64) {
	t.Helper()
	for _, text := range texts {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ns = append(ns, n)
	}
	return ns
}

func TestScriptExam(t *testing.T) {
	s := redistest.Start(t)
	open := func(t testing.TB) storetest.Subject { return bareOn(t, s).subject() }
	t.Run("promises", func(t *testing.T) { storetest.RunPromises(t, open) })
	t.Run("vectors", func(t *testing.T) { storetest.RunVectors(t, open) })
	for i := range 2 { // the tests run in parallel, because each waits for its server for half of the time
		t.Run(fmt.Sprint("random ", i), func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			storetest.RunRandom(t, func(t testing.TB) storetest.Subject { return bareOn(t, s).subject() }, racescale.Long(scriptSteps))
		})
	}
}

// scriptSteps is the number of random calls that the script and package core must decide in the
// same way, in each of two runs with new seeds.
const scriptSteps = 25_000
