// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"container/heap"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/envoy-wasm/filter"
	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/test/seed"
)

// world is a simulation of workers of several Envoys and a bridge, in simulated time. Events run in
// order of time.
type world struct {
	*testBridge
	random  *rand.Rand
	events  schedule
	loss    float64          // the fraction of calls that are lost, in either direction
	late    bool             // whether some answers come after a request's deadline
	used    []counter.Micros // the instant of each admission
	refused int
	broken  int
	aside   int // the number of requests decided without a call
}

type event struct {
	at    time.Time
	order int
	do    func()
}

type schedule []event

func (e schedule) Len() int { return len(e) }
func (e schedule) Less(i, j int) bool {
	return e[i].at.Before(e[j].at) || e[i].at.Equal(e[j].at) && e[i].order < e[j].order
}
func (e schedule) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *schedule) Push(v any)   { *e = append(*e, v.(event)) }
func (e *schedule) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

var orders int

func (w *world) in(d time.Duration, do func()) {
	orders++
	heap.Push(&w.events, event{time.Now().Add(d), orders, do})
}

// world.run advances the simulated time.
func (w *world) run(d time.Duration) {
	end := time.Now().Add(d)
	for len(w.events) > 0 && !w.events[0].at.After(end) {
		next := heap.Pop(&w.events).(event)
		time.Sleep(time.Until(next.at))
		next.do()
	}
	time.Sleep(time.Until(end))
}

// worker is one worker with its own monotonic clock.
type worker struct {
	w       *world
	f       *filter.Filter
	started time.Time
	ticks   int // the current interval of ticks
	next    uint32
	asked   counter.Micros // when the bridge answered the call being processed; 0 if there is none
	dead    bool
	held    int64 // units held, as reported to Envoy
}

func (k *worker) Call(c filter.Call, answered func(filter.Reply)) error {
	w := k.w
	there, back := w.delay(), w.delay()
	timeout := time.Duration(c.TimeoutMillis) * time.Millisecond
	lost := func() { w.in(timeout, func() { k.receive(answered, filter.Reply{Status: 504}, 0) }) }
	if w.random.Float64() < w.loss/2 {
		lost()
		return nil
	}
	lossy := w.random.Float64() < w.loss/2
	body := slices.Clone(c.Body)
	w.in(there, func() {
		r := httptest.NewRequest(c.Method, c.Path, bytes.NewReader(body))
		for _, field := range c.Header {
			if field[0][0] != ':' {
				r.Header.Set(field[0], field[1])
			}
		}
		recorder, at := httptest.NewRecorder(), micros(time.Now())
		w.b.Handler().ServeHTTP(recorder, r)
		reply := filter.Reply{Status: recorder.Code, ETag: recorder.Header().Get("Etag"), Body: recorder.Body.Bytes(),
			Leases: recorder.Header().Get(wire.LeasingHeader)}
		if !lossy && there+back < timeout {
			w.in(back, func() { k.receive(answered, reply, at) })
		}
	})
	if lossy || there+back >= timeout {
		lost()
	}
	return nil
}

func (w *world) delay() time.Duration {
	if w.late && w.random.IntN(200) == 0 {
		return time.Duration(w.random.IntN(60_000)) * time.Microsecond
	}
	return time.Duration(100+w.random.IntN(900)) * time.Microsecond
}

// worker.receive delivers a reply of the bridge to a worker, if the worker still exists.
func (k *worker) receive(answered func(filter.Reply), r filter.Reply, at counter.Micros) {
	if k.dead {
		return
	}
	k.asked = at
	answered(r)
	k.asked = 0
}

func (k *worker) Wake() error {
	k.w.in(time.Microsecond, func() {
		if !k.dead {
			k.f.Flush()
		}
	})
	return nil
}

func (k *worker) TickEvery(millis uint32) error {
	k.ticks++
	k.tick(k.ticks, time.Duration(millis)*time.Millisecond)
	return nil
}

func (k *worker) tick(pace int, every time.Duration) {
	k.w.in(every, func() {
		if k.ticks == pace && !k.dead {
			k.f.Tick()
			if k.ticks == pace {
				k.tick(pace, every)
			}
		}
	})
}

// Resume admits a request. The admission counts at the instant of the bridge's decision, as without
// leases.
func (k *worker) Resume(uint32) { k.admit(k.asked) }

func (k *worker) admit(at counter.Micros) {
	if at == 0 {
		at = micros(time.Now())
	}
	k.w.used = append(k.w.used, at)
}

func (k *worker) Respond(_ uint32, r filter.Response) {
	if r.Status == 503 {
		k.w.broken++
		return
	}
	k.w.refused++
}

func (k *worker) Now() counter.Micros { return micros(time.Now()) }
func (k *worker) Elapsed() counter.Micros {
	return 1 + counter.Micros(time.Since(k.started)/time.Microsecond)
}
func (k *worker) Property(path ...string) (string, bool) {
	return "192.0.2.1:4711", path[0] == "source"
}
func (k *worker) Count(c filter.Counter) {
	if c == filter.CounterLeased || c == filter.CounterRemembered {
		k.w.aside++
	}
}
func (k *worker) Held(change int64) { k.held += change }
func (k *worker) Warn(line string)  { k.w.t.Error(line) }

func (k *worker) Shared(uint32) ([]byte, uint32)    { return nil, 0 }
func (k *worker) Share(uint32, []byte, uint32) bool { return true }

// newWorker starts a worker, which asks for the policy.
func (w *world) newWorker() *worker {
	w.t.Helper()
	k := &worker{w: w, started: time.Now().Add(-time.Duration(w.random.IntN(1e9)))}
	var err error
	if k.f, err = filter.New(k, []byte("on_error: deny")); err != nil {
		w.t.Fatal(err)
	}
	if err = errors.Join(k.f.Start()); err != nil {
		w.t.Fatal(err)
	}
	return k
}

// world.runLoad sends requests to a worker for a while, at a varying rate.
func (w *world) runLoad(k *worker, most int, span time.Duration) {
	end := time.Now().Add(span)
	var send func()
	rate, until := 0, time.Now()
	send = func() {
		if now := time.Now(); now.After(end) || k.dead {
			return
		} else if !now.Before(until) {
			rate, until = w.random.IntN(most)+1, now.Add(time.Duration(w.random.IntN(400))*time.Millisecond)
			if w.random.IntN(4) == 0 {
				rate = 3
			}
		}
		k.next++
		s := k.f.NewStream(k.next)
		if s.RequestHeaders([][2]string{{":method", "GET"}, {":path", "/hot"}, {":authority", "shop.example"}}) == filter.Continue {
			k.admit(0)
		}
		w.in(time.Duration(w.random.ExpFloat64()*float64(time.Second)/float64(rate)), send)
	}
	w.in(0, send)
}

// story runs a simulation of several workers and a bridge under one limit.
func story(t *testing.T, limit string, seed uint64, tell func(*world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
		text := fmt.Sprintf("name: shop\non_error: deny\nlease: auto\nrules: [{name: hot, limit: %s}]\n", limit)
		d, err := policyfile.Decode("shop", policyfile.YAML, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		tell(&world{testBridge: open(t, text, func(o *Options) { o.PolicyFile, o.Policy = "", d }), random: rand.New(rand.NewPCG(seed, 1))})
	})
}

// TestFiltersAreNeverOver: workers of several Envoys run under varying loads with one bridge. Calls
// are slow or get lost, and workers die. No window admits more requests than its limit, and no span
// of time admits more than a token bucket allows.
func TestFiltersAreNeverOver(t *testing.T) {
	const limit = 300
	seed := seed.First(t)
	for _, algorithm := range []string{"fixed_window", "sliding_window", "token_bucket"} {
		for _, loss := range []float64{0, 0.1} {
			t.Run(fmt.Sprint(algorithm, " ", loss), func(t *testing.T) {
				story(t, fmt.Sprint(limit, "/1s ", algorithm), seed, func(w *world) {
					w.loss, w.late = loss, true
					for range 4 {
						k := w.newWorker()
						w.run(5 * time.Millisecond)
						w.runLoad(k, 400, 8*time.Second)
						if loss > 0 {
							w.in(time.Duration(1+w.random.IntN(8))*time.Second, func() { k.dead = true })
						}
					}
					w.run(9 * time.Second)
					t.Logf("%d admitted, %d refused, %d by on_error; %d without a call", len(w.used), w.refused, w.broken, w.aside)
					if algorithm == "token_bucket" {
						w.checkSpans(limit)
					} else {
						w.inEveryWindow(limit)
					}
					if loss == 0 && (w.aside*3 < len(w.used)+w.refused || len(w.used) < 4*limit) {
						t.Errorf("too little was decided without a call, or admitted at all")
					}
				})
			})
		}
	}
}

func (w *world) inEveryWindow(limit int) {
	windows := map[counter.Micros]int{}
	for _, at := range w.used {
		if windows[at/counter.Second]++; windows[at/counter.Second] == limit+1 {
			w.t.Errorf("the window from %d has more than %d", at/counter.Second, limit)
		}
	}
}

func (w *world) checkSpans(limit int) {
	slices.Sort(w.used)
	// These are the units left in a bucket, in millionths, if requests count at their admission.
	tokens, before := limit*1e6, counter.Micros(0)
	for i, at := range w.used {
		if i > 0 {
			tokens = min(limit*1e6, tokens+int(at-before)*limit)
		}
		if before, tokens = at, tokens-1e6; tokens < -1e6 {
			w.t.Fatalf("request %d is %d millionths of a unit over", i, -tokens)
		}
	}
}

// TestUnitsOfFiltersComeBack: when the load ends, all unused units of a long window are refunded.
// So the used units equal the admitted requests.
func TestUnitsOfFiltersComeBack(t *testing.T) {
	story(t, "5000/1h fixed_window", seed.First(t), func(w *world) {
		for range 3 {
			k := w.newWorker()
			w.run(5 * time.Millisecond)
			w.runLoad(k, 600, 3*time.Second)
		}
		w.run(5 * time.Second)
		if used := w.testBridge.readUsed("/hot", "192.0.2.1"); used != int64(len(w.used)) || w.aside*2 < len(w.used) {
			t.Errorf("%d units are used, and %d requests were admitted, %d without a call", used, len(w.used), w.aside)
		}
	})
}

// TestUnitsOfFiltersAreInherited: when Envoy replaces a filter, the units that the old filter holds
// are refunded by calls of the new filter, and Envoy knows the number of these units.
func TestUnitsOfFiltersAreInherited(t *testing.T) {
	story(t, "5000/1h fixed_window", seed.First(t), func(w *world) {
		inherited := 0
		k := w.newWorker()
		for range 12 {
			w.run(5 * time.Millisecond)
			w.runLoad(k, 600, 300*time.Millisecond)
			w.run(330 * time.Millisecond) // at this point the last calls have been answered
			next, held := w.newWorker(), k.held
			k.f.End()
			k.dead = true
			if !next.f.Inherit(k.f) {
				t.Fatal("they ask one bridge")
			}
			if held > 0 {
				inherited++
			}
			if k.held != 0 {
				t.Errorf("%d units are in the hand of one that has ended", k.held)
			}
			k = next
		}
		w.run(5 * time.Second)
		if used := w.testBridge.readUsed("/hot", "192.0.2.1"); used != int64(len(w.used)) || inherited < 3 || k.held != 0 {
			t.Errorf("%d units are used, and %d requests were admitted; %d times something was inherited, %d are still in hand", used, len(w.used), inherited, k.held)
		}
	})
}
