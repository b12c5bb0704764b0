// SPDX-License-Identifier: Apache-2.0

package region

import (
	"math/rand/v2"

	"github.com/penstock/penstock/core/counter"
)

// demandEvery is the interval at which limiters estimate the rate of arriving requests.
// demandWeight is the weight of the last interval in that estimate. With these values, an estimate
// follows the true rate within half a second.
const (
	demandEvery  = 50 * counter.Millisecond
	demandWeight = 0.1
)

// demands holds the rates at which units arrive in each region. Each region estimates its own rate
// and sends it to all other regions, as in "Cloud Control with Distributed Rate Limiting" (Raghavan
// et al., SIGCOMM 2007).
type demands struct {
	arrived []int64 // since the last estimate
	own     []float64
	known   [RegionsMax][RegionsMax]float64 // the rates of all regions that each region knows, in units per microsecond
}

func (d *demands) exchange() (messages int64, arrive func()) {
	told := make([]float64, len(d.own))
	for i := range d.own {
		d.own[i] += demandWeight * (float64(d.arrived[i])/float64(demandEvery) - d.own[i])
		d.arrived[i], told[i], d.known[i][i] = 0, d.own[i], d.own[i]
	}
	return int64(len(told) * (len(told) - 1)), func() {
		for i := range told {
			for from, rate := range told {
				if from != i {
					d.known[i][from] = rate
				}
			}
		}
	}
}

// byDemand returns a rival whose regions decide by the estimated rates of arrivals in all regions.
func byDemand(name string, s scene, decide func(d *demands, now counter.Micros, region int, cost int64) bool) rival {
	d := &demands{arrived: make([]int64, s.regions), own: make([]float64, s.regions)}
	return rival{name: name, every: demandEvery, exchange: d.exchange,
		decide: func(now counter.Micros, region int, cost int64) (bool, bool) {
			d.arrived[region] += cost
			return decide(d, now, region, cost), false
		}}
}

// randomDrops denies each request with the same probability: the fraction by which the arrivals in
// all regions exceed the limit. The paper that the comment of demands cites calls this global
// random drop.
func randomDrops(s scene) rival {
	rng := rand.New(rand.NewPCG(1, 3))
	rate := float64(s.limit.Count()) / float64(s.limit.Window())
	return byDemand("global random drop", s, func(d *demands, _ counter.Micros, region int, _ int64) bool {
		sum := 0.0
		for _, demand := range d.known[region] {
			sum += demand
		}
		return sum <= rate || rng.Float64() < rate/sum
	})
}

// globalBuckets gives each region a token bucket with the rate of the whole limit. The bucket holds
// at most what it refills in a tenth of a second. The estimated arrivals in the other regions also
// take tokens from it, at random moments.
func globalBuckets(s scene) rival {
	rng := rand.New(rand.NewPCG(1, 4))
	rate := float64(s.limit.Count()) / float64(s.limit.Window())
	size := rate * float64(counter.Second/10)
	type bucket struct {
		units float64
		at    float64
	}
	all := make([]bucket, s.regions)
	for i := range all {
		all[i] = bucket{size, float64(counter.Micros(begins))}
	}
	fill := func(b *bucket, at float64) {
		b.units, b.at = min(size, b.units+rate*(at-b.at)), at
	}
	return byDemand("global token bucket", s, func(d *demands, now counter.Micros, region int, cost int64) bool {
		b, others := &all[region], -d.known[region][region]
		for _, demand := range d.known[region] {
			others += demand
		}
		for others > 0 {
			at := b.at + rng.ExpFloat64()/others
			if at >= float64(now) {
				break
			}
			if fill(b, at); b.units >= 1 {
				b.units--
			}
		}
		if fill(b, float64(now)); b.units < float64(cost) {
			return false
		}
		b.units -= float64(cost)
		return true
	})
}
