// SPDX-License-Identifier: Apache-2.0

package region

import (
	"fmt"
	"os"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/regiontest"
)

// row is one line of the printed table: the results of one way of counting in one scene.
type row struct {
	over     float64 // percent of the limit, in the worst window
	under    float64 // percent of what one counter without delay admits
	atOnce   float64 // percent of the requests that are decided without waiting for another region
	denials  float64 // percent of the denials that are decided without waiting; 100 if there are no denials
	messages float64 // between regions, per decision
}

func (r row) String() string {
	return fmt.Sprintf("over %6.2f %%, under %5.2f %%, at once %6.2f %%, "+
		"denials at once %6.2f %%, %.4f messages", r.over, r.under, r.atOnce, r.denials, r.messages)
}

func (f *figures) row(s scene, uses []use, exact int64) row {
	r := row{
		over:     100 * float64(max(0, over(s.limit, uses))) / float64(s.limit.Count()),
		under:    100 * float64(max(0, exact-f.admitted)) / float64(exact),
		atOnce:   100 * float64(f.atOnce) / float64(f.requests),
		denials:  100,
		messages: float64(f.messages) / float64(f.requests),
	}
	if f.denied > 0 {
		r.denials = 100 * float64(f.deniedAtOnce) / float64(f.denied)
	}
	return r
}

// exactly returns how many units a single counter that all regions reach without delay would admit.
func exactly(s scene, seed uint64) int64 {
	f, _ := atHome(s).simulate(s, seed)
	return f.admitted
}

// rows simulates a scene with moving shares and, if rivals is true, also with each rival. It
// returns the names of these ways of counting, and a row for each.
func rows(s scene, seed uint64, rivals bool) (names []string, all []row) {
	exact := exactly(s, seed)
	w := newWorld(s, seed)
	f := w.simulate(seed)
	names, all = append(names, "moving shares"), append(all, f.row(s, w.uses(), exact))
	if !rivals {
		return names, all
	}
	for _, r := range []rival{
		atHome(s), fixedShares(s), syncs(s, 10*counter.Second),
		gossips("gossip every 10 s", s, 10*counter.Second),
		gossips("gossip every second", s, counter.Second),
		randomDrops(s), globalBuckets(s),
	} {
		f, uses := r.simulate(s, seed)
		names, all = append(names, r.name), append(all, f.row(s, uses, exact))
	}
	return names, all
}

// TestFigures tests the promises about speed and accuracy for four regions 200 ms apart, and prints
// the measured figures. With PENSTOCK_RIVALS=1 it also prints the figures of the rivals.
func TestFigures(t *testing.T) {
	for _, tt := range []struct {
		traffic regiontest.Traffic
		atOnce  float64 // at least, percent
		denials float64
		under   float64 // at most, percent
	}{
		{regiontest.Traffic{Shape: regiontest.Even, Demand: 0.95}, 99.5, 0, 0.05},
		{regiontest.Traffic{Shape: regiontest.Skewed, Demand: 0.95}, 99.5, 0, 0.05},
		{regiontest.Traffic{Shape: regiontest.Moving, Demand: 0.95}, 95, 0, 0.1},
		{regiontest.Traffic{Shape: regiontest.Single, Demand: 0.95}, 99.5, 0, 0.05},
		{regiontest.Traffic{Shape: regiontest.Even, Demand: 2}, 99, 98, 0.5},
		{regiontest.Traffic{Shape: regiontest.Skewed, Demand: 2}, 99, 98, 0.5},
		{regiontest.Traffic{Shape: regiontest.Moving, Demand: 2}, 90, 90, 1},
		{regiontest.Traffic{Shape: regiontest.Single, Demand: 2}, 99, 99, 0.05},
		{regiontest.Traffic{Shape: regiontest.Even, Demand: 5}, 99, 98, 0.5},
	} {
		for _, algorithm := range []counter.Algorithm{counter.FixedWindow, counter.SlidingWindow} {
			name := fmt.Sprintf("%s %v %v", tt.traffic.Shape, tt.traffic.Demand, algorithm)
			t.Run(name, func(t *testing.T) {
				s := hot(t, algorithm, 4, tt.traffic)
				names, all := rows(s, 1, os.Getenv("PENSTOCK_RIVALS") != "")
				for i, r := range all {
					t.Logf("%-38s %v", names[i], r)
				}
				r := all[0]
				if r.over > 0 || r.under > tt.under || r.atOnce < tt.atOnce || r.denials < tt.denials {
					t.Errorf("want no unit over, under <= %.2f %%, at once >= %.1f %%, denials >= %.1f %%",
						tt.under, tt.atOnce, tt.denials)
				}
			})
		}
	}
}

// TestTable prints the figures of moving shares, and tests that the limit is never exceeded,
// whatever the traffic. If PENSTOCK_RIVALS is set, it does so for several numbers of regions and
// several round trips.
func TestTable(t *testing.T) {
	regions, roundTrips := []int{4}, []counter.Micros{80 * counter.Millisecond}
	if os.Getenv("PENSTOCK_RIVALS") != "" {
		regions = []int{2, 4, 8}
		roundTrips = []counter.Micros{30_000, 80_000, 200_000}
	}
	for _, n := range regions {
		for _, roundTrip := range roundTrips {
			for shape := range regiontest.Shapes {
				for _, demand := range []float64{0.02, 0.95, 2} {
					s := hot(t, counter.SlidingWindow, n, regiontest.Traffic{Shape: shape, Demand: demand})
					s.roundTrip, s.lasts = roundTrip, 70*counter.Second
					_, all := rows(s, 1, false)
					t.Logf("%d regions, %3d ms, %-7v %4.2f: %v",
						n, roundTrip/1000, shape, demand, all[0])
					if all[0].over > 0 {
						t.Errorf("%.2f %% over", all[0].over)
					}
				}
			}
		}
	}
}

// hot returns a scene with two minutes of the given traffic under a limit of 120,000 per minute.
func hot(t *testing.T, algorithm counter.Algorithm, regions int, tr regiontest.Traffic) scene {
	t.Helper()
	limit, err := counter.NewLimit(algorithm, 120_000, counter.Minute, 0)
	if err != nil {
		t.Fatal(err)
	}
	return scene{limit: limit, regions: regions, roundTrip: 200 * counter.Millisecond,
		traffic: tr, lasts: 2 * counter.Minute}
}

// TestTheWholeLimitIsUsable tests a limit of 100 an hour in three regions. The regions must admit
// their first 50, 30 and 20 requests, and none of the next 300 requests.
func TestTheWholeLimitIsUsable(t *testing.T) {
	limit, err := counter.NewLimit(counter.FixedWindow, 100, counter.Hour, 0)
	if err != nil {
		t.Fatal(err)
	}
	for home := range uint64(3) {
		w := newWorld(scene{limit: limit, regions: 3, roundTrip: 200 * counter.Millisecond}, home)
		for i := range 400 {
			region := 0
			if i%10 >= 5 {
				region = 1 + (i%10-5)/3
			}
			w.after(counter.Micros(i)*5*counter.Second, func() { w.request(region, 1) })
		}
		w.lasts = counter.Hour
		w.run()
		f := w.figures
		t.Logf("home %d: %d admitted, %d denied, %d of %d decided at once, %d messages",
			home, f.admitted, f.denied, f.atOnce, f.requests, f.messages)
		if f.admitted != 100 || f.denied != 300 {
			t.Errorf("home %d: %d admitted and %d denied, want 100 and 300", home, f.admitted, f.denied)
		}
		if f.deniedAtOnce < 270 {
			t.Errorf("home %d: %d of 300 denials at once, want at least 270", home, f.deniedAtOnce)
		}
	}
}

// TestOneRegionNeedsOneMessage tests that if only one region uses a counter, it decides exactly,
// and its requests wait only in the first two round trips.
func TestOneRegionNeedsOneMessage(t *testing.T) {
	for seed := range uint64(3) {
		s := hot(t, counter.FixedWindow, 3, regiontest.Traffic{Shape: regiontest.Single, Demand: 2})
		w := newWorld(s, seed)
		f := w.simulate(seed)
		waited := f.requests - f.atOnce
		atFirst := int64(2 * 4000 * s.roundTrip / counter.Second) // twice the requests of one round trip
		if waited > atFirst || f.admitted != exactly(s, seed) {
			t.Errorf("seed %d: %d requests waited, of at most %d; %d units admitted, want %d",
				seed, waited, atFirst, f.admitted, exactly(s, seed))
		}
	}
}
