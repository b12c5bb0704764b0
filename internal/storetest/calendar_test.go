// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/underrace"
)

// The boundaries that policies send are those that the exam finds by looking for the instant at which the date changes.
func TestBoundariesAreWhereTheDateChanges(t *testing.T) {
	rng := rand.New(rand.NewPCG(Seed(t), 0))
	// Midnight is skipped in some of these, struck twice in others, and some were once moved over the date line.
	names := append([]string{"America/Sao_Paulo", "America/Asuncion", "America/Havana", "Asia/Beirut", "Asia/Gaza",
		"Pacific/Apia", "Pacific/Kwajalein", "America/Scoresbysund", "Atlantic/Azores", "Asia/Tehran", "Africa/Casablanca",
		"Antarctica/Troll", "Asia/Pyongyang", "Europe/Lisbon", "Pacific/Chatham", "Etc/GMT+12"}, zones...)
	units := map[string]core.CalendarUnit{"day": core.CalendarDay, "week": core.CalendarWeek, "month": core.CalendarMonth,
		"year": core.CalendarYear}
	for _, name := range names[:underrace.Fewer(len(names))] {
		for _, unit := range calendarUnits {
			c := zoned(unit, name)
			for i := range 300 {
				at := on(1972, 1, 1, 0) + core.Micros(rng.Int64N(int64(100*365*core.Day)))
				_, change := time.UnixMicro(int64(at)).In(c.zone).ZoneBounds()
				if rng.IntN(2) == 0 && !change.IsZero() { // near where the clocks change
					at = core.Micros(change.UnixMicro()) + core.Micros(rng.Int64N(int64(3*core.Day))) - 36*core.Hour
				}
				if rng.IntN(3) == 0 {
					at = c.boundary(at, 1) + core.Micros(rng.IntN(3)-1)
				}
				if i < 60 { // the last day of a leap year, about which package time is wrong
					at = on(2024+4*(i%15), 12, 31, 0) + core.Micros(i/15-1)*core.Day/2
				}
				want, got := *c.bounds(at), units[unit].Bounds(at, c.zone)
				if want != got {
					t.Errorf("%s in %s at %s: boundaries %d, want %d", unit, name, time.UnixMicro(int64(at)).UTC(), got, want)
				}
			}
		}
	}
}
