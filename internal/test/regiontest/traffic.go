// SPDX-License-Identifier: Apache-2.0

// Package regiontest has the traffic of clients in several regions, so that each simulation of
// regions plays the same requests.
package regiontest

import (
	"math"
	"math/rand/v2"

	"github.com/penstock/penstock/core/counter"
)

// Shape is the distribution of requests over regions.
type Shape uint8

// The shapes.
const (
	Even    Shape = iota
	Skewed        // nine tenths in one region
	Moving        // all in one region, which changes every 5 seconds
	Single        // all in one region
	Pausing       // even, in every other span of three windows
	Shapes
)

var shapeNames = [...]string{"even", "skewed", "moving", "single", "pausing"}

func (s Shape) String() string { return shapeNames[s] }

// Traffic describes Poisson arrivals.
type Traffic struct {
	Shape  Shape
	Demand float64 // the rate, in multiples of the limit
	Most   int64   // the largest cost, or 0 for 1
}

const stay = 5 * counter.Second

// Source returns the next request. The results are the time since the first instant of the traffic,
// the number of the region in which the request arrives, and the cost.
type Source func() (counter.Micros, int, int64)

// Rand returns the random numbers of the traffic with a seed.
func Rand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 2)) }

// Start returns a source of requests. The limit determines their rate, together with tr.Demand.
func (tr Traffic) Start(limit counter.Limit, regions int, rng *rand.Rand) Source {
	most := max(1, tr.Most)
	rate := tr.Demand * float64(limit.Count()) / float64(limit.Window()) * 2 / float64(1+most)
	favored := rng.IntN(regions)
	at := 0.0
	return func() (counter.Micros, int, int64) {
		at += rng.ExpFloat64() / rate
		if span := 3 * float64(limit.Window()); tr.Shape == Pausing && int(at/span)%2 == 1 {
			at = (math.Floor(at/span) + 1) * span
		}
		region := rng.IntN(regions)
		switch tr.Shape {
		case Skewed:
			if rng.IntN(10) > 0 {
				region = favored
			}
		case Moving:
			region = (favored + int(counter.Micros(at)/stay)) % regions
		case Single:
			region = favored
		}
		return counter.Micros(at), region, 1 + rng.Int64N(most)
	}
}
