// SPDX-License-Identifier: Apache-2.0

package region

import (
	"math"
	"math/rand/v2"

	"github.com/penstock/penstock/core/counter"
)

// shape is the distribution of requests over regions.
type shape uint8

const (
	even    shape = iota
	skewed        // nine tenths in one region
	moving        // all in one region, which changes every 5 seconds
	single        // all in one region
	pausing       // even, in every other span of three windows
	shapes
)

var shapeNames = [...]string{"even", "skewed", "moving", "single", "pausing"}

// The type traffic describes Poisson arrivals: their distribution, their rate in multiples of the
// limit, and the largest cost.
type traffic struct {
	shape  shape
	demand float64
	most   int64
}

const stay = 5 * counter.Second

// source returns the next request: its time since the scene began, its region and its cost.
type source func() (counter.Micros, int, int64)

func (tr traffic) start(limit counter.Limit, regions int, rng *rand.Rand) source {
	most := max(1, tr.most)
	rate := tr.demand * float64(limit.Count()) / float64(limit.Window()) * 2 / float64(1+most)
	favored := rng.IntN(regions)
	at := 0.0
	return func() (counter.Micros, int, int64) {
		at += rng.ExpFloat64() / rate
		if span := 3 * float64(limit.Window()); tr.shape == pausing && int(at/span)%2 == 1 {
			at = (math.Floor(at/span) + 1) * span
		}
		region := rng.IntN(regions)
		switch tr.shape {
		case skewed:
			if rng.IntN(10) > 0 {
				region = favored
			}
		case moving:
			region = (favored + int(counter.Micros(at)/stay)) % regions
		case single:
			region = favored
		}
		return counter.Micros(at), region, 1 + rng.Int64N(most)
	}
}
