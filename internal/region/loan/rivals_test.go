// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/store/regionstore"
	"github.com/penstock/penstock/internal/test/racescale"
	"github.com/penstock/penstock/internal/test/regiontest"
)

// scene describes a simulated run: traffic under a limit, in four regions with equal shares.
type scene struct {
	limit   string
	traffic regiontest.Traffic
	lasts   counter.Micros
}

// outcome is the result of a simulated scene. A request counts as waiting if it was decided later
// than it arrived.
type outcome struct {
	mu                                               sync.Mutex
	requests, waited, admitted, denied, deniedAtOnce int
	alone                                            int // what one counter without regions admits
	questions, messages                              int64
	windows                                          map[counter.Micros]int64 // admitted in each aligned window
}

// outcome.note adds the decision of a request.
func (o *outcome) note(r *counter.Result, waited bool, window counter.Micros) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.requests++
	if waited {
		o.waited++
	}
	if !r.Denied {
		o.admitted++
		o.windows[r.At-r.At%window]++
		return
	}
	if o.denied++; !waited {
		o.deniedAtOnce++
	}
}

// four simulates four regions with equal shares. A message from one of them to another and its
// answer take 200 ms together.
type four struct {
	limit  counter.Limit
	key    []byte
	agents [figureRegions]*Agent
	fronts [figureRegions]*regionstore.Store
	parts  [figureRegions]counter.Limit
	sent   figures
}

func clockStore(t *testing.T) *memstore.Store {
	t.Helper()
	store, err := memstore.New(memstore.Options{Now: func() counter.Micros { return counter.Micros(time.Now().UnixMicro()) }})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// four.start starts the agent and the store of region i. They receive each other's messages until
// ctx is done.
func (w *four) start(ctx context.Context, t *testing.T, i int) (end func()) {
	t.Helper()
	d := policy.Division{Shares: [policy.RegionsMax]uint16{1, 1, 1, 1}, Self: uint8(i)}
	w.parts[i], _ = d.Limit(&w.limit)
	store, receivers := clockStore(t), make(chan func(string), 1)
	w.agents[i] = New(Options{Store: store, Policy: func() Policy { return Policy{Namespace: "rl1:n:", Here: d} }, Logger: slog.New(slog.DiscardHandler),
		Publish: func(_ context.Context, message []byte) error {
			received := <-receivers
			receivers <- received
			received(string(message))
			return nil
		}})
	w.fronts[i] = regionstore.New(batching{store}, regionstore.Agency{
		Publish: func(_ context.Context, message []byte) (int64, error) {
			w.agents[i].hear(ctx, string(message))
			return 1, nil
		},
		Listen: func(ctx context.Context, begun func(), received func(string)) error {
			receivers <- received
			begun()
			<-ctx.Done()
			return ctx.Err()
		}}, nil)
	return func() {
		w.fronts[i].Close()
		w.agents[i].running.Wait()
		_ = store.Close()
	}
}

// scene.simulate simulates the scene with real agents and simulated time. The requests are the same
// as those with which internal/region simulates the other ways to count. Requests wait for loans,
// as in Caddy.
func (s scene) simulate(t *testing.T) *outcome {
	t.Helper()
	limit, err := counter.ParseLimit(s.limit)
	if err != nil {
		t.Fatal(err)
	}
	w := &four{limit: limit, key: []byte("rl1:n:r:{c}" + counter.KeyTail(&limit))}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o, one := &outcome{windows: map[counter.Micros]int64{}}, clockStore(t)
	defer one.Close()
	var ends []func()
	for i := range w.agents {
		ends = append(ends, w.start(ctx, t, i))
	}
	for _, a := range w.agents {
		for j, other := range w.agents {
			if other != a {
				a.o.Peers = append(a.o.Peers, &Peer{Name: fmt.Sprint(j), send: over(other, &w.sent)})
			}
		}
	}
	next, begin := s.traffic.Start(limit, figureRegions, regiontest.Rand(1)), time.Now()
	var waiting sync.WaitGroup
	for at, region, _ := next(); at < s.lasts; at, region, _ = next() {
		time.Sleep(time.Until(begin.Add(time.Duration(at) * time.Microsecond)))
		o.alone += taken(t, one, counter.Check{Key: w.key, Limit: &limit, Cost: 1})
		w.request(ctx, t, region, o, &waiting)
	}
	waiting.Wait()
	for i, end := range ends {
		end()
		o.questions += int64(w.agents[i].counts.questions.Load())
	}
	o.messages = w.sent.messages.Load()
	return o
}

// four.request decides a request. A request that waits is decided in the background.
func (w *four) request(ctx context.Context, t *testing.T, region int, o *outcome, waiting *sync.WaitGroup) {
	t.Helper()
	front, results := w.fronts[region], make([]counter.Result, 1)
	checks := []counter.Check{{Key: w.key, Limit: &w.parts[region], WholeLimit: &w.limit, Cost: 1}}
	take := func() error { return front.Take(ctx, checks, results) }
	behind := front.Behind(checks)
	if !behind {
		if err := take(); err != nil {
			t.Fatal(err)
		}
		if !regionstore.Lacks(checks, results) {
			o.note(&results[0], false, w.limit.Window())
			return
		}
	}
	waiting.Go(func() {
		arrived := time.Now()
		if _, err := front.Await(ctx, time.Time{}, checks, results, !behind, take); err != nil {
			t.Error(err)
		}
		o.note(&results[0], time.Since(arrived) > 0, w.limit.Window())
	})
}

// outcome.over returns by how many units the admitted requests exceeded the limit in an aligned
// window.
func (o *outcome) over(limit *counter.Limit) (units int64) {
	for _, n := range o.windows {
		units = max(units, n-limit.Count())
	}
	return units
}

// TestLoansBesideRivals tests and prints the rows of loans for the table in docs/explanation: by
// how much the limit is exceeded, how much of it is not used, and how many decisions and denials do
// not wait. With PENSTOCK_RIVALS=1, the scenes are those of internal/region.
func TestLoansBesideRivals(t *testing.T) {
	limit, lasts := "12000/1m", 61*counter.Second
	if os.Getenv("PENSTOCK_RIVALS") != "" {
		limit, lasts = "120000/1m", 2*counter.Minute
	}
	cases := []struct {
		traffic         regiontest.Traffic
		atOnce, denials float64 // at least, percent
		under           float64 // at most, percent
	}{
		{regiontest.Traffic{Shape: regiontest.Even, Demand: 0.95}, 98, 0, 1},
		{regiontest.Traffic{Shape: regiontest.Skewed, Demand: 0.95}, 98, 0, 1},
		{regiontest.Traffic{Shape: regiontest.Moving, Demand: 0.95}, 90, 0, 1},
		{regiontest.Traffic{Shape: regiontest.Single, Demand: 0.2}, 100, 0, 0.01},
		{regiontest.Traffic{Shape: regiontest.Single, Demand: 0.95}, 98, 0, 1},
		{regiontest.Traffic{Shape: regiontest.Even, Demand: 2}, 90, 90, 1},
		{regiontest.Traffic{Shape: regiontest.Single, Demand: 2}, 90, 90, 2}, // the second window has just begun
		{regiontest.Traffic{Shape: regiontest.Moving, Demand: 2}, 80, 80, 2},
		{regiontest.Traffic{Shape: regiontest.Even, Demand: 5}, 90, 90, 1},
	}
	for _, c := range cases[:racescale.Fewer(len(cases))] {
		name := fmt.Sprint(c.traffic.Shape, " ", c.traffic.Demand)
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := scene{limit: limit, traffic: c.traffic, lasts: lasts}
				o := s.simulate(t)
				parsed, err := counter.ParseLimit(limit)
				if err != nil {
					t.Fatal(err)
				}
				percent := func(n, of int) float64 { return 100 * float64(n) / float64(max(1, of)) }
				over, under := o.over(&parsed), percent(o.alone-o.admitted, o.alone)
				atOnce, denials := percent(o.requests-o.waited, o.requests), percent(o.deniedAtOnce, o.denied)
				t.Logf("%v %v: over %d, under %.2f %%, at once %.2f %%, denials at once %.2f %% of %d, %.4f messages, %d questions",
					c.traffic.Shape, c.traffic.Demand, over, under, atOnce, denials, o.denied, float64(o.messages)/float64(o.requests), o.questions)
				if over > 0 || under > c.under || atOnce < c.atOnce || o.denied > 100 && denials < c.denials {
					t.Errorf("want nothing over, under at most %.2f %%, at once %.0f %%, denials %.0f %%", c.under, c.atOnce, c.denials)
				}
				if c.traffic.Shape == regiontest.Single && c.traffic.Demand < 1 && o.questions > 6 {
					t.Errorf("%d questions about a client that is seen in one region, want one or two in a window", o.questions)
				}
			})
		})
	}
}
