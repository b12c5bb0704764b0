// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"math/rand/v2"
	"testing"
	"time"

	corecounter "github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/racescale"
	"github.com/penstock/penstock/internal/test/seed"
)

// TestBoundariesAreWhereTheDateChanges compares the boundaries that package core computes with
// those that the exam finds by searching for the change of the date.
func TestBoundariesAreWhereTheDateChanges(t *testing.T) {
	rng := rand.New(rand.NewPCG(seed.First(t), 0))
	// In some of these zones, a day had no midnight or two, and some zones have crossed the date
	// line.
	names := append([]string{"America/Sao_Paulo", "America/Asuncion", "America/Havana", "Asia/Beirut", "Asia/Gaza",
		"Pacific/Apia", "Pacific/Kwajalein", "America/Scoresbysund", "Atlantic/Azores", "Asia/Tehran", "Africa/Casablanca",
		"Antarctica/Troll", "Asia/Pyongyang", "Europe/Lisbon", "Pacific/Chatham", "Etc/GMT+12"}, zones...)
	units := map[string]corecounter.CalendarUnit{"day": corecounter.CalendarDay, "week": corecounter.CalendarWeek, "month": corecounter.CalendarMonth,
		"year": corecounter.CalendarYear}
	for _, name := range names[:racescale.Fewer(len(names))] {
		for _, unit := range calendarUnits {
			c := newZoned(unit, name)
			for i := range 300 {
				at := instantUTC(1972, 1, 1, 0) + corecounter.Micros(rng.Int64N(int64(100*365*corecounter.Day)))
				_, change := time.UnixMicro(int64(at)).In(c.zone).ZoneBounds()
				if rng.IntN(2) == 0 && !change.IsZero() { // near a change of the clocks
					at = corecounter.Micros(change.UnixMicro()) + corecounter.Micros(rng.Int64N(int64(3*corecounter.Day))) - 36*corecounter.Hour
				}
				if rng.IntN(3) == 0 {
					at = c.boundary(at, 1) + corecounter.Micros(rng.IntN(3)-1)
				}
				if i < 60 { // the last day of a leap year, for which package time is wrong
					at = instantUTC(2024+4*(i%15), 12, 31, 0) + corecounter.Micros(i/15-1)*corecounter.Day/2
				}
				want, got := *c.bounds(at), units[unit].Bounds(at, c.zone)
				if want != got {
					t.Errorf("%s in %s at %s: boundaries %d, want %d", unit, name, time.UnixMicro(int64(at)).UTC(), got, want)
				}
			}
		}
	}
}
