// SPDX-License-Identifier: Apache-2.0

package region

import (
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/regiontest"
)

// A rival is another way to count a limit in several regions, modeled from its published
// description, without faults.
type rival struct {
	name string
	// decide decides a request, and reports whether it waited for another region.
	decide func(now counter.Micros, region int, cost int64) (admitted, waited bool)
	// The field every is the interval of exchange, 0 for none. The function named exchange is
	// called once per interval. It returns the number of messages, and the function to call when
	// they arrive, half a round trip later.
	every    counter.Micros
	exchange func() (messages int64, arrive func())
}

// atHome counts all requests in one region.
func atHome(s scene) rival {
	share := mustShare(s.limit, 0)
	decide := func(now counter.Micros, region int, cost int64) (bool, bool) {
		return !share.Take(now, cost).Denied, region != 0
	}
	return rival{name: "one region counts", decide: decide}
}

// fixedShares gives each region an equal part of the limit.
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

// The function named gossips reports each region's count to all others at an interval, as Unkey
// does every 10 seconds.
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

// The function named syncs lets each region count by itself and exchange its count with a central
// store at an interval, as Kong does with sync_rate.
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

// rival.play decides each request of a scene, and returns the figures and the admitted requests.
// Here, a request that would wait is decided at once, so only the fraction of such requests is
// measured.
func (r rival) play(s scene, seed uint64) (figures, []use) {
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
