// SPDX-License-Identifier: Apache-2.0

package counter

import (
	"errors"
	"github.com/penstock/penstock/internal/test/seed"
	"math/rand/v2"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/internal/test/racescale"
)

func mustZone(t testing.TB, name string) *time.Location {
	t.Helper()
	zone, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return zone
}

// instant parses an RFC 3339 time.
func instant(t testing.TB, text string) Micros {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return Micros(at.UnixMicro())
}

// TestCalendarBounds states each boundary with its offset from UTC, so that days of 23 and 25 hours
// can be seen.
func TestCalendarBounds(t *testing.T) {
	for _, c := range []struct {
		name, zone, now string
		unit            CalendarUnit
		want            [4]string
	}{
		{name: "a day", zone: "UTC", now: "2023-11-15T12:00:00Z", unit: CalendarDay,
			want: [4]string{"2023-11-15T00:00:00Z", "2023-11-16T00:00:00Z", "2023-11-17T00:00:00Z", "2023-11-18T00:00:00Z"}},
		{name: "the first instant of a day", zone: "UTC", now: "2023-11-15T00:00:00Z", unit: CalendarDay,
			want: [4]string{"2023-11-15T00:00:00Z", "2023-11-16T00:00:00Z", "2023-11-17T00:00:00Z", "2023-11-18T00:00:00Z"}},
		{name: "the last instant of a day", zone: "UTC", now: "2023-11-15T23:59:59.999999Z", unit: CalendarDay,
			want: [4]string{"2023-11-15T00:00:00Z", "2023-11-16T00:00:00Z", "2023-11-17T00:00:00Z", "2023-11-18T00:00:00Z"}},
		{name: "a day of 23 hours", zone: "Europe/Berlin", now: "2024-03-31T12:00:00+02:00", unit: CalendarDay,
			want: [4]string{"2024-03-31T00:00:00+01:00", "2024-04-01T00:00:00+02:00", "2024-04-02T00:00:00+02:00", "2024-04-03T00:00:00+02:00"}},
		{name: "a day of 25 hours", zone: "Europe/Berlin", now: "2024-10-27T02:30:00+01:00", unit: CalendarDay,
			want: [4]string{"2024-10-27T00:00:00+02:00", "2024-10-28T00:00:00+01:00", "2024-10-29T00:00:00+01:00", "2024-10-30T00:00:00+01:00"}},
		{name: "a leap day", zone: "UTC", now: "2024-02-28T12:00:00Z", unit: CalendarDay,
			want: [4]string{"2024-02-28T00:00:00Z", "2024-02-29T00:00:00Z", "2024-03-01T00:00:00Z", "2024-03-02T00:00:00Z"}},
		{name: "midnight is skipped", zone: "America/Sao_Paulo", now: "2018-11-03T12:00:00-03:00", unit: CalendarDay,
			want: [4]string{"2018-11-03T00:00:00-03:00", "2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00", "2018-11-06T00:00:00-02:00"}},
		{name: "midnight is put back to eleven", zone: "America/Sao_Paulo", now: "2018-02-17T23:30:00-03:00", unit: CalendarDay,
			want: [4]string{"2018-02-17T00:00:00-02:00", "2018-02-18T00:00:00-03:00", "2018-02-19T00:00:00-03:00", "2018-02-20T00:00:00-03:00"}},
		{name: "midnight comes twice", zone: "America/Havana", now: "2023-11-05T00:30:00-05:00", unit: CalendarDay,
			want: [4]string{"2023-11-05T00:00:00-04:00", "2023-11-06T00:00:00-05:00", "2023-11-07T00:00:00-05:00", "2023-11-08T00:00:00-05:00"}},
		{name: "yesterday comes again for 59 minutes", zone: "America/St_Johns", now: "2006-10-28T23:30:00-03:30", unit: CalendarDay,
			want: [4]string{"2006-10-29T00:00:00-02:30", "2006-10-30T00:00:00-03:30", "2006-10-31T00:00:00-03:30", "2006-11-01T00:00:00-03:30"}},
		{name: "a date that never was", zone: "Pacific/Apia", now: "2011-12-29T12:00:00-10:00", unit: CalendarDay,
			want: [4]string{"2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00", "2012-01-02T00:00:00+14:00"}},
		{name: "a week across the new year", zone: "UTC", now: "2024-12-31T12:00:00Z", unit: CalendarWeek,
			want: [4]string{"2024-12-30T00:00:00Z", "2025-01-06T00:00:00Z", "2025-01-13T00:00:00Z", "2025-01-20T00:00:00Z"}},
		{name: "a Sunday is the last day of its week", zone: "UTC", now: "2025-01-05T23:59:59Z", unit: CalendarWeek,
			want: [4]string{"2024-12-30T00:00:00Z", "2025-01-06T00:00:00Z", "2025-01-13T00:00:00Z", "2025-01-20T00:00:00Z"}},
		{name: "a Monday is the first", zone: "Asia/Tokyo", now: "2025-01-06T00:00:00+09:00", unit: CalendarWeek,
			want: [4]string{"2025-01-06T00:00:00+09:00", "2025-01-13T00:00:00+09:00", "2025-01-20T00:00:00+09:00", "2025-01-27T00:00:00+09:00"}},
		{name: "months of 31, 29 and 31 days", zone: "UTC", now: "2024-01-31T12:00:00Z", unit: CalendarMonth,
			want: [4]string{"2024-01-01T00:00:00Z", "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z", "2024-04-01T00:00:00Z"}},
		{name: "months of 28, 31 and 30 days", zone: "Europe/Berlin", now: "2023-02-28T23:59:59+01:00", unit: CalendarMonth,
			want: [4]string{"2023-02-01T00:00:00+01:00", "2023-03-01T00:00:00+01:00", "2023-04-01T00:00:00+02:00", "2023-05-01T00:00:00+02:00"}},
		{name: "months across the new year", zone: "America/New_York", now: "2023-12-31T23:00:00-05:00", unit: CalendarMonth,
			want: [4]string{"2023-12-01T00:00:00-05:00", "2024-01-01T00:00:00-05:00", "2024-02-01T00:00:00-05:00", "2024-03-01T00:00:00-05:00"}},
		{name: "years, one of them leap", zone: "Asia/Kolkata", now: "2023-06-01T00:00:00+05:30", unit: CalendarYear,
			want: [4]string{"2023-01-01T00:00:00+05:30", "2024-01-01T00:00:00+05:30", "2025-01-01T00:00:00+05:30", "2026-01-01T00:00:00+05:30"}},
		{name: "a leap day in years", zone: "UTC", now: "2024-02-29T12:00:00Z", unit: CalendarYear,
			want: [4]string{"2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"}},
	} {
		var want Bounds
		for i := range want {
			want[i] = instant(t, c.want[i])
		}
		if got := c.unit.Bounds(instant(t, c.now), mustZone(t, c.zone)); got != want {
			t.Errorf("%s: %v", c.name, cmp.Diff(c.want, texts(got, mustZone(t, c.zone))))
		}
	}
	if CalendarDay.Bounds(noon, nil) != CalendarDay.Bounds(noon, time.UTC) {
		t.Error("no zone is not UTC")
	}
}

func texts(b Bounds, zone *time.Location) (out [4]string) {
	for i, at := range b {
		out[i] = time.UnixMicro(int64(at)).In(zone).Format(time.RFC3339Nano)
	}
	return out
}

// TestCalendarBoundsGoOn checks the boundaries over 60 years in zones with an unusual history. Each
// instant belongs to exactly one period, and the last microsecond of a period still has the
// period's bounds.
func TestCalendarBoundsGoOn(t *testing.T) {
	rng := seed.Random(t)
	zones := []string{"Europe/Berlin", "UTC", "America/St_Johns", "America/Sao_Paulo", "America/Havana", "Pacific/Apia",
		"Pacific/Kwajalein", "Asia/Kathmandu", "Australia/Lord_Howe", "Africa/Cairo", "Asia/Tehran", "America/Caracas"}
	for _, name := range zones[:racescale.Fewer(len(zones))] {
		zone := mustZone(t, name)
		for unit := CalendarDay; unit <= CalendarYear; unit++ {
			b := unit.Bounds(instant(t, "1971-01-01T00:00:00Z"), zone)
			for b[0] < instant(t, "2031-01-01T00:00:00Z") {
				within := b[0] + Micros(rng.Int64N(int64(b[1]-b[0])))
				if !b.areAscending() || unit.Bounds(b[0], zone) != b || unit.Bounds(b[1]-1, zone) != b || unit.Bounds(within, zone) != b {
					t.Fatalf("%s in %s: %v is not what is told of %v", unit, name, texts(b, zone), time.UnixMicro(int64(within)).In(zone))
				}
				next := unit.Bounds(b[1], zone)
				if next[0] != b[1] || next[1] != b[2] || next[2] != b[3] {
					t.Fatalf("%s in %s: after %v comes %v", unit, name, texts(b, zone), texts(next, zone))
				}
				b = next
				if unit == CalendarDay && rng.IntN(4) > 0 { // a sample of the days is enough
					b = unit.Bounds(b[1]+Micros(rng.Int64N(int64(3*Day))), zone)
				}
			}
		}
	}
}

// checkDaily performs a check with a daily limit, at the given times of the caller's clock and of
// the store's clock.
func checkDaily(s *[1]Slot, op Op, cost int64, caller, store Micros) Result {
	l, _ := NewCalendarLimit(3, CalendarDay)
	b := CalendarDay.Bounds(caller, time.UTC)
	var r [1]Result
	Decide(store, []Check{{Limit: &l, Op: op, Cost: cost, Bounds: &b}}, s[:], r[:])
	return r[0]
}

// midnight is the start of the day that contains noon.
const midnight = noon - 12*Hour

func TestCalendarWindowIsChosenByTheStore(t *testing.T) {
	for late := range Micros(3) { // by how many days the caller's clock is behind
		var s [1]Slot
		now := midnight + late*Day + Hour
		r := checkDaily(&s, OpTake, 2, midnight, now)
		if r.Granted != 2 || r.Remaining != 1 || r.Receipt != midnight+late*Day || r.Reset != 23*Hour || r.Next != r.Reset {
			t.Errorf("%d days behind: %+v", late, r)
		}
		if r := checkDaily(&s, OpTake, 2, midnight, now); !r.Denied || r.Wait != 23*Hour {
			t.Errorf("%d days behind, over the limit: %+v", late, r)
		}
		l, _ := NewCalendarLimit(3, CalendarDay)
		if fresh := l.Fresh(&s[0]); fresh != midnight+(late+1)*Day {
			t.Errorf("%d days behind: fresh from %d", late, fresh)
		}
	}
}

// TestZonesGrantNoFurtherAllowance: up to three nodes with different zones use a counter in random
// order for 60 days. Each period of a zone grants the limit at most once.
func TestZonesGrantNoFurtherAllowance(t *testing.T) {
	rng := seed.Random(t)
	zones := []string{"UTC", "Pacific/Honolulu", "Asia/Tokyo", "Pacific/Auckland", "America/Los_Angeles", "Etc/GMT+12", "Europe/Berlin"}
	limit, _ := NewCalendarLimit(3, CalendarDay)
	for range 40 {
		rng.Shuffle(len(zones), func(i, j int) { zones[i], zones[j] = zones[j], zones[i] })
		nodes := 1 + rng.IntN(3)
		var s [1]Slot
		admitted, resets := 0, map[Micros]bool{}
		now := midnight
		for now < midnight+60*Day {
			now += Micros(rng.Int64N(int64(20 * Minute)))
			b := CalendarDay.Bounds(now, mustZone(t, zones[rng.IntN(nodes)]))
			resets[b[0]] = true
			var r [1]Result
			Decide(now, []Check{{Limit: &limit, Cost: 1, Bounds: &b}}, s[:], r[:])
			admitted += int(r[0].Granted)
		}
		if admitted > 3*len(resets) {
			t.Errorf("%v admit %d in %d periods", zones[:nodes], admitted, len(resets))
		}
		if admitted < 3*59 {
			t.Errorf("%v admit only %d in 60 days", zones[:nodes], admitted)
		}
	}
}

func TestCalendarWindowAheadOfTheClock(t *testing.T) {
	for ahead := Micros(1); ahead <= 3; ahead++ {
		s := [1]Slot{{State: State{At: midnight + ahead*Day, Used: 2}}}
		r := checkDaily(&s, OpTake, 2, midnight, noon)
		if !r.Denied || r.Wait != 12*Hour+ahead*Day || s[0].Write || s[0].State.At != midnight+ahead*Day {
			t.Errorf("%d days ahead: %+v, %+v; want it kept", ahead, r, s[0])
		}
	}
	for _, at := range []Micros{midnight + 4*Day, midnight + Day + 1, noon + 1, noon - Hour, midnight + 1, midnight - 1,
		midnight - 12*Hour + 1} {
		s := [1]Slot{{State: State{At: at, Used: 2}}}
		r := checkDaily(&s, OpLook, 2, midnight, noon)
		want := State{At: midnight, Used: 2}
		if at > midnight && at <= noon { // another zone may move the counter forward again
			want.Aux = int64(at)
		}
		if r.Remaining != 1 || r.Reset != 12*Hour || !s[0].Write || s[0].State != want {
			t.Errorf("begun at %d: %+v, %+v; want it moved to today with its count", at-midnight, r, s[0])
		}
	}
	for _, at := range []Micros{midnight - 12*Hour, midnight - Day} {
		s := [1]Slot{{State: State{At: at, Used: 2}}}
		if r := checkDaily(&s, OpTake, 3, midnight, noon); r.Granted != 3 {
			t.Errorf("begun at %d: %+v, want a new day", at-midnight, r)
		}
	}
}

func TestCalendarGiveBackGoesToItsWindow(t *testing.T) {
	l, _ := NewCalendarLimit(3, CalendarDay)
	var s [1]Slot
	receipt := checkDaily(&s, OpTake, 3, midnight, noon).Receipt
	back := func(now Micros) int64 {
		b, r := CalendarDay.Bounds(now, time.UTC), [1]Result{}
		Decide(now, []Check{{Limit: &l, Op: OpRefund, Cost: 2, Receipt: receipt, Bounds: &b}}, s[:], r[:])
		return r[0].Granted
	}
	if n := back(noon + Hour); n != 2 {
		t.Errorf("%d given back on the same day, want 2", n)
	}
	if n := back(noon + Day); n != 0 {
		t.Errorf("%d given back a day later, want 0", n)
	}
}

func TestStale(t *testing.T) {
	l := mustParse(t, "1/day")
	other := mustParse(t, "1/1d")
	b := CalendarDay.Bounds(noon, time.UTC)
	checks := []Check{{Limit: &other}, {Limit: &l, Bounds: &b}}
	for _, now := range []Micros{b[0], b[3] - 1} {
		if err := Stale(now, checks); err != nil {
			t.Errorf("%d: %v", now-b[0], err)
		}
	}
	for _, now := range []Micros{b[0] - 1, b[3]} {
		if err := Stale(now, checks); !errors.Is(err, ErrStale) || !errors.Is(err, ErrUnavailable) {
			t.Errorf("%d: %v", now-b[0], err)
		}
	}
	if n := testing.AllocsPerRun(100, func() { _ = Stale(b[3], checks) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestResetForgets: a counter that was reset decides like one that was never used.
func TestResetForgets(t *testing.T) {
	rng := seed.Random(t)
	for _, text := range []string{"10/1m fw", "10/1m sw", "10/1m sl", "10/1m burst 20", "10/day", "7/month"} {
		l := mustParse(t, text)
		for range 200 {
			var b *Bounds
			if l.calendar != 0 {
				bounds := l.calendar.Bounds(noon, time.UTC)
				b = &bounds
			}
			slot, now, held := [1]Slot{}, noon, int64(0)
			for range 1 + rng.IntN(4) {
				var r [1]Result
				Decide(now, []Check{{Limit: &l, Op: OpForce, Cost: rng.Int64N(12), Bounds: b}}, slot[:], r[:])
				held += r[0].Granted
			}
			now -= Micros(rng.Int64N(int64(Second)))
			checkReset(t, &l, b, now, slot, held)
		}
	}
}

func checkReset(t *testing.T, l *Limit, b *Bounds, now Micros, slot [1]Slot, held int64) {
	t.Helper()
	var r, fresh [1]Result
	Decide(now, []Check{{Limit: l, Op: OpReset, Bounds: b}}, slot[:], r[:])
	if diff := cmp.Diff(Slot{Write: true}, slot[0], cmp.AllowUnexported(Slot{})); diff != "" {
		t.Fatalf("%s: what is left (-want +got):\n%s", l, diff)
	}
	none := [1]Slot{}
	Decide(now, []Check{{Limit: l, Op: OpReset, Bounds: b}}, none[:], fresh[:])
	if r[0].Granted != held || fresh[0].Granted != 0 {
		t.Fatalf("%s: %d units forgotten, %d of none, want %d and 0", l, r[0].Granted, fresh[0].Granted, held)
	}
	r[0].Granted = 0
	if r[0] != fresh[0] || r[0].Remaining != l.burst || r[0].Denied || r[0].Wait != 0 {
		t.Fatalf("%s: %+v, of one never used %+v", l, r[0], fresh[0])
	}
}

// TestCalendarUnit tests that each unit's name is parsed back to the unit.
func TestCalendarUnit(t *testing.T) {
	for unit, want := range map[CalendarUnit]string{0: "none", CalendarDay: "day", CalendarWeek: "week", CalendarMonth: "month",
		CalendarYear: "year", 9: "CalendarUnit(9)"} {
		if unit.String() != want {
			t.Errorf("%d is called %q, want %q", unit, unit, want)
		}
	}
	for _, unit := range []CalendarUnit{0, 9} {
		if _, err := NewCalendarLimit(1, unit); err == nil {
			t.Errorf("unit %d is taken", unit)
		}
	}
	l := mustParse(t, "5/week")
	if l.Calendar() != CalendarWeek || l.WindowLabel() != "week" {
		t.Errorf("%s: %s, %q", l, l.Calendar(), l.WindowLabel())
	}
	if d := mustParse(t, "5/1d fw"); d.Calendar() != 0 || d.WindowLabel() != "86400s" {
		t.Errorf("%s: %s, %q", d, d.Calendar(), d.WindowLabel())
	}
}

func BenchmarkCalendarBounds(b *testing.B) {
	zone := mustZone(b, "Europe/Berlin")
	rng := rand.New(rand.NewPCG(1, 1))
	for b.Loop() {
		_ = CalendarMonth.Bounds(noon+Micros(rng.Int64N(int64(365*Day))), zone)
	}
}

// TestCalendarCounterAheadIsNotFreshEarly: after a clock has gone back, a counter can belong to a
// period later than those that the caller sent. If March were estimated to be as long as February,
// it would end too early.
func TestCalendarCounterAheadIsNotFreshEarly(t *testing.T) {
	at := func(month time.Month, day int) Micros {
		return Micros(time.Date(2026, month, day, 0, 0, 0, 0, time.UTC).UnixMicro())
	}
	limit, err := NewCalendarLimit(10, CalendarMonth)
	if err != nil {
		t.Fatal(err)
	}
	slots, results := make([]Slot, 1), make([]Result, 1)
	take := func(caller, now Micros) {
		t.Helper()
		b := CalendarMonth.Bounds(caller, time.UTC)
		checks := []Check{{Limit: &limit, Bounds: &b, Cost: 4}}
		slots[0] = Slot{State: slots[0].State}
		if err := Stale(now, checks); err != nil {
			t.Fatal(err)
		}
		Decide(now, checks, slots, results)
	}
	take(at(3, 1), at(3, 2))
	take(at(12, 1)-365*Day, at(2, 20)) // a caller whose clock is still in December
	if fresh := limit.Fresh(&slots[0]); slots[0].State.Used != 8 || slots[0].State.At != at(3, 1) || fresh < at(4, 1) {
		t.Errorf("%+v is as good as fresh from %s, want April or later", slots[0].State, time.UnixMicro(int64(fresh)).UTC())
	}
}
