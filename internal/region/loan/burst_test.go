// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/region/writeoff"
	"github.com/penstock/penstock/internal/store/leasestore"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/store/regionstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// farTrip is the time that a message to another region and its answer take together.
const farTrip = 200 * time.Millisecond

// patience is far longer than anything takes on a slow machine.
const patience = 30 * time.Second

// farNames are the names of the regions, sorted.
var farNames = [3]string{"a", "b", "c"}

// exchangeWith returns the function with which an agent exchanges the state of the regions with the
// other agent.
func exchangeWith(other *Agent) func(ctx context.Context, m message) (message, error) {
	return func(ctx context.Context, m message) (message, error) {
		text, err := json.Marshal(m)
		if err != nil {
			return message{}, err
		}
		return other.answerTold(text)
	}
}

// far is a region with a Redis, an agent, and a process that decides requests.
type far struct {
	agent *Agent
	front *leasestore.Store
	loans *regionstore.Store
	part  counter.Limit
	redis *redisstore.Store
	own   *redistest.Server
}

// startFar starts three regions with the shares 50, 30 and 20. Each request may wait for a long
// time.
func startFar(t *testing.T, limit *counter.Limit) (regions []*far) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	for i := range 3 {
		d := policy.Division{Shares: [policy.RegionsMax]uint16{50, 30, 20}, Self: uint8(i)}
		server := redistest.Start(t, "--appendonly", "no") // not shared, because one is killed
		redis, err := redisstore.New(redisstore.Options{URL: server.URL(), Timeout: redisstore.TimeoutMax})
		if err != nil {
			t.Fatal(err)
		}
		publish := func(ctx context.Context, channel string, message []byte) (int64, error) {
			reply, err := redis.DoFor(ctx, regionstore.ChannelKey, "PUBLISH", channel, message)
			n, _ := reply.(int64)
			return n, err
		}
		f := &far{redis: redis, own: server}
		f.part, _ = d.Limit(limit)
		f.loans = regionstore.New(redis, regionstore.Agency{WaitMax: patience,
			Writeoffs: func(ctx context.Context) ([]byte, error) { return writeoff.Read(ctx, redis) },
			Publish: func(ctx context.Context, message []byte) (int64, error) {
				return publish(ctx, regionstore.Channel, message)
			},
			Listen: func(ctx context.Context, begun func(), received func(string)) error {
				return redis.Listen(ctx, regionstore.ChannelKey, regionstore.AnswerChannel, begun, received)
			}}, nil)
		if f.front, err = leasestore.New(f.loans, leasestore.Options{Timeout: redisstore.TimeoutMax}); err != nil {
			t.Fatal(err)
		}
		f.loans.ForgetWith(f.front.Forget)
		f.agent = New(Options{Name: farNames[i], Writeoffs: redis, Store: redis,
			Policy: func() Policy { return Policy{Namespace: "rl1:n:", Here: d, Names: farNames[:]} },
			Logger: slog.New(slog.DiscardHandler),
			Publish: func(ctx context.Context, message []byte) error {
				_, err := publish(ctx, regionstore.AnswerChannel, message)
				return err
			},
			Listen: func(ctx context.Context, begun func(), received func(string)) error {
				return redis.Listen(ctx, regionstore.ChannelKey, regionstore.Channel, begun, received)
			}})
		f.agent.holdMax, f.agent.idleMax = patience, patience/4
		regions = append(regions, f)
		t.Cleanup(func() {
			cancel()
			running.Wait()
			_ = f.front.Close(context.Background())
			f.loans.Close()
			_ = redis.Close()
		})
	}
	for _, f := range regions {
		for j, other := range regions {
			if other != f {
				f.agent.o.Peers = append(f.agent.o.Peers, &Peer{Name: farNames[j], send: delayed(other.agent), tell: exchangeWith(other.agent)})
			}
		}
		running.Go(func() { f.agent.Run(ctx) })
	}
	for _, f := range regions {
		eventually.Until(t, patience, "the agents listen, and have read the state of the regions", func() bool {
			_, read := f.agent.entry("")
			return f.agent.listening.Load() && !read.IsZero()
		})
	}
	return regions
}

// delayed returns a function that sends messages to the other agent, over a slow network.
func delayed(other *Agent) func(ctx context.Context, path string, message any) (Loan, error) {
	return func(ctx context.Context, _ string, message any) (l Loan, err error) {
		<-time.After(farTrip / 2)
		switch m := message.(type) {
		case *Question:
			l, err = other.lend(context.WithoutCancel(ctx), m)
		case *returned:
			l, err = other.takeBack(context.WithoutCancel(ctx), m)
		}
		<-time.After(farTrip / 2)
		return l, err
	}
}

// far.request decides a request, which may wait for a loan.
func (f *far) request(ctx context.Context, key []byte, whole *counter.Limit) (admitted bool, end regionstore.End, err error) {
	checks := []counter.Check{{Key: key, Limit: &f.part, WholeLimit: whole, Cost: 1}}
	results := make([]counter.Result, 1)
	take := func() error { return f.front.Take(context.Background(), checks, results) }
	behind := f.loans.Behind(checks)
	if !behind {
		if err := take(); err != nil || !regionstore.Lacks(checks, results) {
			return err == nil && !results[0].Denied, end, err
		}
	}
	end, err = f.loans.Await(ctx, time.Time{}, checks, results, !behind, take)
	return err == nil && end != regionstore.EndGone && !results[0].Denied, end, err
}

// far.burst sends requests at once, and returns how many of them were admitted.
func (f *far) burst(t *testing.T, key []byte, whole *counter.Limit, requests int) int64 {
	t.Helper()
	var admitted atomic.Int64
	var asking sync.WaitGroup
	for range requests {
		asking.Go(func() {
			ok, end, err := f.request(context.Background(), key, whole)
			if err != nil || end == regionstore.EndLate {
				t.Errorf("a request ended %q with the error %v", end, err)
			}
			if ok {
				admitted.Add(1)
			}
		})
	}
	asking.Wait()
	return admitted.Load()
}

// TestABurstGetsTheWholeLimit: a client that only another region knows sends a burst to a region
// that holds nothing of the client's limit. The requests wait until all units of the other regions
// have arrived, and all regions together admit exactly the limit.
func TestABurstGetsTheWholeLimit(t *testing.T) {
	whole, err := counter.ParseLimit("100/31d fixed_window")
	if err != nil {
		t.Fatal(err)
	}
	regions := startFar(t, &whole)
	for round, elsewhere := range []int{0, 10, 45} {
		key := fmt.Appendf(nil, "rl1:n:r:{client %d}%s", round, counter.KeyTail(&whole))
		for range elsewhere {
			if ok, _, err := regions[1].request(t.Context(), key, &whole); !ok || err != nil {
				t.Fatalf("a request in the other region was not admitted: %v", err)
			}
		}
		if n := regions[2].burst(t, key, &whole, 200); n != int64(100-elsewhere) {
			t.Errorf("%d were admitted elsewhere, and %d of a burst of 200, want %d", elsewhere, n, 100-elsewhere)
		}
	}
}
