// SPDX-License-Identifier: Apache-2.0

package gossip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/store/regionstore"
	"github.com/penstock/penstock/internal/test/redistest"
	"github.com/penstock/penstock/lua"
)

// counts holds numbers of units by the start of their window.
type counts map[counter.Micros]int64

// place is a region, together with what an oracle knows about it: the units that the region has
// counted itself, and the greatest number that each other region has reported to it.
type place struct {
	name   string
	redis  *redistest.Server
	store  *redisstore.Store
	agent  *Agent
	offset counter.Micros // of its clock
	own    counts
	heard  map[string]counts
}

// world simulates several regions that share one counter.
type world struct {
	t      *testing.T
	rng    *rand.Rand
	now    counter.Micros
	limit  counter.Limit
	key    string
	places []*place
	late   []func() // messages under way
	faults bool     // messages are lost, repeated and late

	sent int
}

const namespace = "rl1:n:"

func newWorld(t *testing.T, rng *rand.Rand, limit string, regions int) *world {
	t.Helper()
	w := &world{t: t, rng: rng, now: 1_700_006_400 * counter.Second}
	var err error
	if w.limit, err = counter.ParseLimit(limit); err != nil {
		t.Fatal(err)
	}
	w.key = namespace + "api:{user:ann}" + counter.KeyTail(&w.limit)
	for i := range regions {
		p := &place{name: string(rune('a' + i)), redis: redistest.Start(t)}
		if p.store, err = redisstore.New(redisstore.Options{URL: p.redis.URL()}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.store.Close() })
		w.places = append(w.places, p)
	}
	w.reset()
	return w
}

// world.reset begins a new simulation, in which nothing has been counted.
func (w *world) reset() {
	w.late, w.sent = nil, 0
	for _, p := range w.places {
		w.flush(p)
		w.start(p)
	}
}

// world.flush deletes the data of a region's Redis.
func (w *world) flush(p *place) {
	w.t.Helper()
	p.own, p.heard = counts{}, map[string]counts{}
	for _, other := range w.places {
		p.heard[other.name] = counts{}
	}
	if err := p.redis.Client().FlushDB(w.t.Context()).Err(); err != nil {
		w.t.Fatal(err)
	}
}

// world.start starts the agent of a region. It first removes the lock of an earlier agent, as if
// that lock had expired.
func (w *world) start(p *place) {
	w.t.Helper()
	if err := p.redis.Client().Del(w.t.Context(), regionstore.TellerKey).Err(); err != nil {
		w.t.Fatal(err)
	}
	var peers []*Peer
	for _, other := range w.places {
		if other != p {
			peers = append(peers, &Peer{Name: other.name, close: func() {}, send: func(_ context.Context, text []byte) (answer, error) {
				return w.send(p, other, text)
			}})
		}
	}
	p.agent = New(Options{Region: p.name, Store: p.store, Peers: peers, Logger: slog.New(slog.DiscardHandler),
		Policy: func() Policy {
			return Policy{Namespace: namespace, Rules: map[string]bool{"api": true}, Interval: time.Second, Keep: time.Hour}
		}})
}

var errLost = errors.New("the message is lost")

// world.send delivers, loses, repeats or delays a message, as a network does.
func (w *world) send(from, to *place, text []byte) (answer, error) {
	w.sent++
	if !w.faults {
		return w.deliver(to, text)
	}
	switch w.rng.IntN(6) {
	case 0:
		return answer{}, errLost
	case 1: // the answer is lost
		_, _ = w.deliver(to, text)
		return answer{}, errLost
	case 2: // it arrives later, and its sender does not learn that
		w.late = append(w.late, func() { _, _ = w.deliver(to, slices.Clone(text)) })
		return answer{}, errLost
	case 3: // it arrives now and later
		w.late = append(w.late, func() { _, _ = w.deliver(to, slices.Clone(text)) })
	}
	return w.deliver(to, text)
}

// world.deliver passes a message to the agent and to the oracle of the receiving region.
func (w *world) deliver(to *place, text []byte) (answer, error) {
	w.t.Helper()
	m, err := decode(text)
	if err != nil {
		w.t.Fatal(err)
	}
	to.agent.instant = w.now + to.offset
	said, err := to.agent.hear(w.t.Context(), &m)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, told := range m.counters {
		w.learn(to, m.from, told)
	}
	return said, nil
}

// world.learn adds the numbers in a message to what the oracle knows.
func (w *world) learn(to *place, from string, t Told) {
	window := w.limit.Window()
	current := to.agent.instant - to.agent.instant%window
	sliding := w.limit.Algorithm() == counter.SlidingWindow
	heard := to.heard[from]
	note := func(start counter.Micros, units int64) {
		if start == current || sliding && start == current-window {
			heard[start] = max(heard[start], min(units, w.limit.Count()))
		}
	}
	note(t.Start, t.Used)
	if sliding && t.Start <= current+window {
		note(t.Start-window, t.Before)
	}
}

// place.used returns how many units of a window count in a region according to the oracle.
func (p *place) used(start counter.Micros) int64 {
	sum := p.own[start]
	for _, heard := range p.heard {
		sum += heard[start]
	}
	return sum
}

// world.take decides a request in a region as a front does, and compares the decision with that of
// the oracle.
func (w *world) take(p *place, cost int64) {
	w.t.Helper()
	now := w.now + p.offset
	window := w.limit.Window()
	start := now - now%window
	used := p.used(start)
	if w.limit.Algorithm() == counter.SlidingWindow {
		used += p.used(start-window) * int64(window-(now-start)) / int64(window)
	}
	want := used+cost <= w.limit.Count()
	client := p.redis.Client()
	checks, slots, results := []counter.Check{{Key: []byte(w.key), Limit: &w.limit, Cost: cost}}, make([]counter.Slot, 1), make([]counter.Result, 1)
	if text := client.Get(w.t.Context(), w.key).Val(); text != "" {
		s := &slots[0].State
		if _, err := fmt.Sscanf(text, "%d %d %d", &s.At, &s.Used, &s.Aux); err != nil {
			w.t.Fatal(err)
		}
	}
	counter.Decide(now, checks, slots, results)
	if got := !results[0].Denied; got != want {
		w.t.Fatalf("region %s at %d: a request of %d units is admitted: %t, want %t with %d of %d used: %+v, %+v", p.name, now-w.start0(), cost, got, want,
			used, w.limit.Count(), slots[0].State, *p)
	}
	if !want {
		return
	}
	s := slots[0].State
	if err := client.Set(w.t.Context(), w.key, fmt.Sprintf("%d %d %d", s.At, s.Used, s.Aux), time.Hour).Err(); err != nil {
		w.t.Fatal(err)
	}
	p.own[start] += cost
	changed := regionstore.Changed{Key: w.key, Limit: w.limit}
	w.mark(p, changed.String())
}

func (w *world) start0() counter.Micros { return 1_700_006_400 * counter.Second }

func (w *world) mark(p *place, names ...string) {
	w.t.Helper()
	keys, args := regionstore.MarkCall(names, regionstore.UntoldMax)
	if _, err := p.store.Eval(w.t.Context(), lua.GossipMark, redisstore.ScriptCall{Keys: keys, Args: args}); err != nil {
		w.t.Fatal(err)
	}
}

// world.tell makes the agent of a region report its changed counters once to each other region. A
// lost message is not an error.
func (w *world) tell(p *place) {
	w.t.Helper()
	p.agent.instant = w.now + p.offset
	for _, peer := range p.agent.o.Peers {
		if err := p.agent.tell(w.t.Context(), peer); err != nil && !errors.Is(err, errLost) {
			w.t.Fatal(err)
		}
	}
}
