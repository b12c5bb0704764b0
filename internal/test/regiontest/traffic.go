// SPDX-License-Identifier: Apache-2.0

// Package regiontest generates the traffic of clients in several regions, so that all simulations
// of regions use the same requests.
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
	Skewed        // nine tenths of the requests in one region
	Moving        // all in one region, which changes every 5 seconds
	Single        // all in one region
	Pausing       // like Even, but without requests in every second span of three windows
	Shapes
)

var shapeNames = [...]string{"even", "skewed", "moving", "single", "pausing"}

func (s Shape) String() string { return shapeNames[s] }

// Traffic describes requests that arrive as a Poisson process.
type Traffic struct {
	Shape  Shape
	Demand float64 // the rate, in multiples of the limit
	Most   int64   // the largest cost; 0 means 1
}

const stay = 5 * counter.Second

// Source returns the next request. The results are the time since the beginning of the traffic, the
// number of the region in which the request arrives, and the cost of the request.
type Source func() (counter.Micros, int, int64)

// Rand returns the source of random numbers for the traffic with the given seed.
func Rand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 2)) }

// Start returns a source of requests. Their rate depends on the limit and on tr.Demand.
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
