// SPDX-License-Identifier: Apache-2.0

package region

import (
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/regiontest"
)

// rival is another way to count a limit in several regions, with which the package's own way is
// compared. It is modeled from its published description, without faults.
type rival struct {
	name string
	// decide decides a request in a region, and reports whether the request would have to wait for
	// another region.
	decide func(now counter.Micros, region int, cost int64) (admitted, waited bool)
	// exchange is called once in each interval of length every, or never if every is 0. It returns
	// the number of messages that the regions send, and a function to call when these messages
	// arrive, half a round trip later.
	every    counter.Micros
	exchange func() (messages int64, arrive func())
}

// atHome returns a rival that counts the requests of all regions in one region.
func atHome(s scene) rival {
	share := mustShare(s.limit, 0)
	decide := func(now counter.Micros, region int, cost int64) (bool, bool) {
		return !share.Take(now, cost).Denied, region != 0
	}
	return rival{name: "one region counts", decide: decide}
}

// fixedShares returns a rival that gives each region an equal part of the limit.
func fixedShares(s scene) rival {
	shares := make([]Share, s.regions)
	for i := range shares {
		part := s.limit.Count() / int64(s.regions)
		if int64(i) < s.limit.Count()%int64(s.regions) {
			part++
		}
		shares[i] = mustShare(s.limit, i)
		shares[i].resize(part)
	}
	decide := func(now counter.Micros, region int, cost int64) (bool, bool) {
		return !shares[region].Take(now, cost).Denied, false
	}
	return rival{name: "fixed shares", decide: decide}
}

// gossips returns a rival in which each region reports its count to all other regions at an
// interval, as Unkey does every 10 seconds.
func gossips(name string, s scene, every counter.Micros) rival {
	all := make([]Gossip, s.regions)
	for i := range all {
		g, err := NewGossip(s.limit, i)
		if err != nil {
			panic(err)
		}
		all[i] = g
	}
	return rival{name: name, every: every,
		decide: func(now counter.Micros, region int, cost int64) (bool, bool) {
			return all[region].Take(now, cost), false
		},
		exchange: func() (int64, func()) {
			reports := make([]Count, s.regions)
			for i := range all {
				reports[i] = all[i].Report()
			}
			return int64(s.regions * (s.regions - 1)), func() {
				for i := range all {
					for from, report := range reports {
						all[i].Hear(from, report)
					}
				}
			}
		}}
}

// syncs returns a rival in which each region counts by itself and exchanges its count with a
// central store at an interval, as Kong does with sync_rate.
func syncs(s scene, every counter.Micros) rival {
	r := gossips("sync with a central store every 10 s", s, every)
	exchange := r.exchange
	r.exchange = func() (int64, func()) {
		_, arrive := exchange()
		return int64(2 * s.regions), arrive
	}
	return r
}

func mustShare(limit counter.Limit, self int) Share {
	share, err := NewShare(limit, self, self, Forgotten{})
	if err != nil {
		panic(err)
	}
	return share
}

// rival.simulate generates the traffic that the scene describes, lets the rival decide each
// request, and returns the measured figures and the admitted requests. A request that would wait
// for another region is decided at once, so the simulation measures how many requests wait, but not
// how long.
func (r rival) simulate(s scene, seed uint64) (figures, []use) {
	next := s.traffic.Start(s.limit, s.regions, regiontest.Rand(seed))
	var f figures
	var uses []use
	exchanged := counter.Micros(0)
	type message struct {
		at counter.Micros
		do func()
	}
	var arrivals []message // of messages, in their order
	for {
		at, region, cost := next()
		if at >= s.lasts {
			return f, uses
		}
		for r.every > 0 {
			next := exchanged + r.every
			if len(arrivals) > 0 && arrivals[0].at <= min(at, next) {
				arrivals[0].do()
				arrivals = arrivals[1:]
				continue
			}
			if next > at {
				break
			}
			messages, arrive := r.exchange()
			arrivals = append(arrivals, message{next + s.roundTrip/2, arrive})
			exchanged, f.messages = next, f.messages+messages
		}
		admitted, waited := r.decide(begins+at, region, cost)
		f.count(cost, admitted, waited)
		if admitted {
			uses = append(uses, use{at: begins + at, units: cost})
		}
		if waited {
			f.messages += 2
		}
	}
}

func (f *figures) count(cost int64, admitted, waited bool) {
	f.requests++
	f.arrived += cost
	if admitted {
		f.admitted += cost
	} else {
		f.denied++
	}
	if !waited {
		f.atOnce++
		if !admitted {
			f.deniedAtOnce++
		}
	}
}
