// SPDX-License-Identifier: Apache-2.0

package region

import (
	"math/rand/v2"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/regiontest"
)

// begins is the true time at which every scene begins. It is midnight in UTC, when a window begins
// whose length divides a day.
const begins = 1_700_006_400 * counter.Second

// scene describes one simulated run: the limit, the regions, the traffic and the faults. Durations
// are in microseconds.
type scene struct {
	limit     counter.Limit
	regions   int
	roundTrip counter.Micros
	traffic   regiontest.Traffic
	lasts     counter.Micros

	lose      float64        // the fraction of messages that are lost
	double    float64        // the fraction of messages that arrive twice
	slow      float64        // the fraction of messages that take up to ten times as long
	cut       counter.Micros // interval at which another pair of regions is cut off from each other
	kill      counter.Micros // interval at which an agent is killed
	loseOne   bool           // one region is lost in the middle of the run
	clockWide counter.Micros // the greatest difference of a clock from true time
	sweep     counter.Micros // interval at which each region tries to forget the counter
	mistake   mistake
}

// world is the simulation of a scene: the regions that share one counter, and the network between
// them. The seed of its random numbers reproduces a run.
type world struct {
	scene
	rng     *rand.Rand // for messages and faults; the traffic has its own
	now     counter.Micros
	events  eventQueue
	serial  int
	arrives arrival // the next request of the traffic
	places  []*place
	cuts    [RegionsMax][RegionsMax]bool
	out     Output // of the present call of an agent
	waits   map[uint64]waits
	lastID  uint64
	figures figures
}

// place is a region in the simulation: its agent, its durable share and its clock.
type place struct {
	share   *Share
	agent   *Agent
	offset  counter.Micros // of its clock, from true time
	ticking bool
	lost    bool
	backup  Share
	uses    []use
}

type waits struct {
	region int
	cost   int64
}

// use is an admitted request: its units, and the time that the region's clock showed when it was
// admitted.
type use struct {
	at    counter.Micros
	units int64
}

type figures struct {
	requests, atOnce, deniedAtOnce, denied int64
	arrived, admitted, unanswered          int64 // units
	messages, forgotten                    int64
}

func newWorld(s scene, seed uint64) *world {
	w := &world{scene: s, now: begins, rng: rand.New(rand.NewPCG(seed, 1)), waits: map[uint64]waits{}}
	home := int(seed % uint64(s.regions))
	for i := range s.regions {
		share, err := NewShare(s.limit, i, home, Forgotten{})
		if err != nil {
			panic(err)
		}
		p := &place{share: &share, backup: share}
		if s.clockWide > 0 {
			p.offset = counter.Micros(w.rng.Int64N(int64(2*s.clockWide))) - s.clockWide
		}
		w.places = append(w.places, p)
		w.start(i, home)
	}
	return w
}

// world.start starts an agent that knows only the durable share of its region.
func (w *world) start(region, home int) {
	p := w.places[region]
	settings := Settings{Regions: w.regions, Self: region, Home: home, RoundTrip: w.roundTrip}
	p.agent = NewAgent(p.share, settings, w.now+p.offset)
}

func (w *world) after(d counter.Micros, do func()) {
	w.serial++
	w.events.push(event{moment: moment{at: w.now + d, order: w.serial}, do: do})
}

// world.simulate simulates the scene to its end and returns its figures.
func (w *world) simulate(seed uint64) *figures {
	w.arrives.next = w.traffic.Start(w.limit, w.regions, regiontest.Rand(seed))
	w.arrive()
	w.scheduleFaults()
	w.run()
	return &w.figures
}

// world.arrive schedules the arrival of the traffic's next request.
func (w *world) arrive() {
	a := &w.arrives
	var at counter.Micros
	if at, a.region, a.cost = a.next(); at >= w.lasts {
		a.next = nil
		return
	}
	w.serial++
	a.moment = moment{at: begins + at, order: w.serial}
}

// world.run executes the scheduled events until the scene is over and its waiting requests have had
// time to be decided.
func (w *world) run() {
	for w.now < begins+w.lasts+20*w.roundTrip {
		switch a := &w.arrives; {
		case a.next != nil && (len(w.events) == 0 || a.before(w.events[0].moment)):
			w.now = a.at
			w.request(a.region, a.cost)
			w.arrive()
		case len(w.events) > 0:
			e := w.events.pop()
			w.now = e.at
			e.do()
		default:
			return
		}
	}
}

func (w *world) request(region int, cost int64) {
	p := w.places[region]
	if p.lost {
		return
	}
	w.lastID++
	f := &w.figures
	f.requests++
	f.arrived += cost
	switch p.agent.Arrive(w.now+p.offset, w.lastID, cost, w.output()) {
	case Admit:
		f.atOnce++
		w.admit(p, cost)
	case Deny:
		f.atOnce++
		f.deniedAtOnce++
		f.denied++
	case Wait:
		w.waits[w.lastID] = waits{region: region, cost: cost}
	}
	w.carryOut(region)
}

func (w *world) admit(p *place, cost int64) {
	w.figures.admitted += cost
	p.uses = append(p.uses, use{at: p.share.clock, units: cost})
}

// world.output empties the output that calls of agents write to and carryOut reads, and returns it.
func (w *world) output() *Output {
	o := &w.out
	o.Messages, o.Admitted, o.Denied, o.Unanswered = o.Messages[:0], o.Admitted[:0], o.Denied[:0], o.Unanswered[:0]
	return o
}

// carryOut sends the messages that an agent has written to the output, and decides the requests
// that waited for them.
func (w *world) carryOut(region int) {
	p, out := w.places[region], &w.out
	for _, id := range out.Admitted {
		w.admit(p, w.waits[id].cost)
		delete(w.waits, id)
	}
	for _, id := range out.Denied {
		w.figures.denied++
		delete(w.waits, id)
	}
	for _, id := range out.Unanswered {
		w.figures.unanswered += w.waits[id].cost
		delete(w.waits, id)
	}
	for _, m := range out.Messages {
		w.send(region, m)
	}
	if p.agent.Busy() && !p.ticking {
		p.ticking = true
		w.after(w.roundTrip/2, func() { w.tick(region) })
	}
}

func (w *world) tick(region int) {
	p := w.places[region]
	p.ticking = false
	if p.lost {
		return
	}
	p.agent.Tick(w.now+p.offset, w.output())
	w.carryOut(region)
}

// world.send delivers a message after half a round trip, which varies by a tenth, unless a fault
// loses, delays or repeats the message.
func (w *world) send(from int, m Message) {
	w.figures.messages++
	for copies := 1; copies > 0; copies-- {
		if w.cuts[from][m.To] || w.rng.Float64() < w.lose {
			continue
		}
		if w.rng.Float64() < w.double {
			copies++
		}
		delay := float64(w.roundTrip) / 2 * (0.9 + 0.2*w.rng.Float64())
		if w.rng.Float64() < w.slow {
			delay *= 10 * w.rng.Float64()
		}
		w.after(counter.Micros(delay), func() { w.deliver(m) })
	}
}

func (w *world) deliver(m Message) {
	p := w.places[m.To]
	if p.lost {
		return
	}
	w.mistake.beforeReceive(p, &m)
	p.agent.Receive(w.now+p.offset, m, w.output())
	w.carryOut(m.To)
}

// scheduleFaults schedules the faults that the scene describes.
func (w *world) scheduleFaults() {
	if w.cut > 0 {
		w.after(w.cut, w.cutPair)
	}
	if w.kill > 0 {
		w.after(w.kill, w.killAgent)
	}
	if w.sweep > 0 {
		w.after(w.sweep, w.sweepAll)
	}
	if w.loseOne {
		w.after(w.lasts/2, func() { w.places[w.rng.IntN(w.regions)].lost = true })
	}
}

// sweepAll makes each region forget the counter if the region is allowed to.
func (w *world) sweepAll() {
	for region, p := range w.places {
		if p.lost {
			continue
		}
		home := p.agent.Home
		forgotten, ok := p.agent.Sweep(w.now+p.offset, w.output())
		w.carryOut(region)
		if !ok && !w.mistake.forgetsEarly(p) {
			continue
		}
		if !ok {
			forgotten = p.share.forgotten
		}
		share, err := NewShare(w.limit, region, home, forgotten)
		if err != nil {
			panic(err)
		}
		*p.share = share
		w.start(region, home)
		w.figures.forgotten++
	}
	if w.now < begins+w.lasts {
		w.after(w.sweep, w.sweepAll)
	}
}

// cutPair ends the previous interruption, and then interrupts messages between two random regions,
// in one direction or both.
func (w *world) cutPair() {
	w.cuts = [RegionsMax][RegionsMax]bool{}
	a, b := w.rng.IntN(w.regions), w.rng.IntN(w.regions)
	w.cuts[a][b] = true
	w.cuts[b][a] = w.rng.IntN(2) == 0
	if w.now < begins+w.lasts {
		w.after(w.cut, w.cutPair)
	}
}

// killAgent replaces the agent of a random region by a new one that knows only the durable share.
// Requests that waited at the old agent are lost.
func (w *world) killAgent() {
	region := w.rng.IntN(w.regions)
	p := w.places[region]
	for id, waiting := range w.waits {
		if waiting.region == region {
			w.figures.unanswered += waiting.cost
			delete(w.waits, id)
		}
	}
	w.mistake.beforeStart(p)
	w.start(region, p.agent.Home)
	if w.now < begins+w.lasts {
		w.after(w.kill, w.killAgent)
	}
}

// world.units returns the sum of the units in all shares and in all transfers that the receiving
// region has not applied yet.
func (w *world) units() (units int64) {
	for _, p := range w.places {
		units += p.share.units
		for from := range w.places {
			units += p.share.early[from].Units
			t := w.places[from].share.sent[p.agent.Self]
			applied := t.Serial > p.share.forgotten[from] && t.Serial <= p.share.applied[from]
			if t.Units > 0 && !applied {
				units += t.Units
			}
		}
	}
	return units
}

// world.uses returns the admitted requests of all regions, sorted by the times that the regions'
// clocks showed.
func (w *world) uses() (all []use) {
	for _, p := range w.places {
		all = mergeUses(all, p.uses)
	}
	return all
}
