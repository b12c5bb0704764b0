// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"math"
	"math/rand/v2"

	"github.com/penstock/penstock/core/counter"
)

// shape is the distribution of requests over time and nodes.
type shape uint8

const (
	poisson   shape = iota
	constant        // requests at equal intervals, the nodes in turn
	bursty          // five times the rate for 100 ms of every 500 ms
	flash           // a tenth of the rate, then suddenly the full rate
	skewed          // most requests to one node
	ramp            // from nothing to twice the rate
	boundary        // all requests around the ends of windows
	hopping         // all requests to one node, which changes every 50 ms
	idleBurst       // like hopping, with pauses of 50 ms in between
	handoff         // one node uses nearly all of the limit and stops; then the other nodes start
	shapes
)

var shapeNames = [...]string{"poisson", "constant", "bursty", "flash", "skewed", "ramp", "boundary", "hopping", "idleBurst", "handoff"}

// traffic describes a stream of requests: its shape, its demand in multiples of the limit,
// and the largest cost.
type traffic struct {
	shape  shape
	demand float64
	most   int64
}

const hop = 50 * counter.Millisecond

// traffic.start returns a function that returns the next request of the traffic: its time since the
// scene began, its node and its cost.
func (tr traffic) start(s *scene, rng *rand.Rand) func() (counter.Micros, int, int64) {
	window := float64(s.limit.Window())
	if s.period > 0 {
		window = float64(s.period)
	}
	rate := tr.demand * float64(s.limit.Count()) / window * 2 / float64(1+max(1, tr.most))
	peak := map[shape]float64{bursty: 5, ramp: 2, boundary: 10}[tr.shape]
	peak = max(peak, 1)
	at, turn := 0.0, 0
	return func() (counter.Micros, int, int64) {
		for {
			cost := int64(1)
			if tr.most > 1 {
				cost += rng.Int64N(tr.most)
			}
			if tr.shape == constant {
				at += 1 / rate
				turn++
				return counter.Micros(at), turn % s.nodes, cost
			}
			at += rng.ExpFloat64() / (rate * peak)
			if at > float64(s.lasts) || rng.Float64()*peak <= tr.strength(at, window, float64(s.lasts)) {
				return counter.Micros(at), tr.node(s, rng, at, window), cost
			}
		}
	}
}

// traffic.strength returns the factor by which the rate is multiplied at an instant.
func (tr traffic) strength(at, window, lasts float64) float64 {
	switch part := math.Mod(at, window) / window; tr.shape {
	case bursty:
		if math.Mod(at, 500e3) >= 100e3 {
			return 0
		}
		return 5
	case flash:
		if at < 0.4*lasts {
			return 0.1
		}
	case ramp:
		return 2 * at / lasts
	case boundary:
		if part > 0.05 && part < 0.95 {
			return 0
		}
		return 10
	case idleBurst:
		if int64(at)/int64(hop)%2 == 1 {
			return 0
		}
	}
	return 1
}

func (tr traffic) node(s *scene, rng *rand.Rand, at, window float64) int {
	switch tr.shape {
	case skewed:
		return min(s.nodes-1, int(rng.ExpFloat64()*0.7))
	case hopping:
		return int(int64(at)/int64(hop)) % s.nodes
	case idleBurst:
		return int(int64(at)/int64(hop)/2) % s.nodes
	case handoff:
		if s.nodes > 1 && math.Mod(at, window) > 0.97*window/tr.demand {
			return 1 + rng.IntN(s.nodes-1)
		}
		return 0
	}
	return rng.IntN(s.nodes)
}
