// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// period is a calendar window: when it begins, when it ends, and when the next one ends.
type period struct{ begins, ends, after time.Time }

// periodOf computes the current period in a time zone. It does not use the code under test.
func periodOf(unit string, now time.Time, place *time.Location) period {
	year, month, day := now.In(place).Date()
	at := func(n int) time.Time {
		switch unit {
		case "day":
			return time.Date(year, month, day+n, 0, 0, 0, 0, place)
		case "week":
			monday := day - (int(now.In(place).Weekday())+6)%7
			return time.Date(year, month, monday+7*n, 0, 0, 0, 0, place)
		case "month":
			return time.Date(year, month+time.Month(n), 1, 0, 0, 0, 0, place)
		}
		return time.Date(year+n, time.January, 1, 0, 0, 0, 0, place)
	}
	return period{at(0), at(1), at(2)}
}

const calendar = shared + `:SITE {
	penstock {
		timezone ZONE
		rule daily 5/day {
			match path /day
		}
		rule weekly 5/week {
			match path /week
		}
		rule monthly 5/month {
			match path /month
		}
		rule yearly 5/year {
			match path /year
		}
	}
	respond "ok"
}
`

// TestCalendarWindows tests limits per day, week, month and year. They are enforced in the periods
// of the configured time zone, across two Caddys and a reload. Responses report when the next
// period begins, and Redis keeps the counter until the next period ends.
func TestCalendarWindows(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	// The offset of this zone is not a whole number of hours, and the zone has no summer time. So
	// midnight in the zone is never midnight in UTC.
	const zone = "Asia/Kolkata"
	place, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	config := strings.Replace(calendar, "ZONE", zone, 1)
	nodes := fleet(t, 2, redis, config)
	for _, unit := range []string{"day", "week", "month", "year"} {
		now := time.Now()
		want := periodOf(unit, now, place)
		if want.ends.Sub(now) < 30*time.Second {
			// The period might end during the test, so the test waits for the next one. This
			// happens at most once a day.
			eventually.Until(t, 40*time.Second, "the next period begins", func() bool { return time.Now().After(want.ends) })
			want = periodOf(unit, time.Now(), place)
		}
		for n := range 3 {
			a := nodes[n%2].get("/" + unit)
			if left := a.number("X-RateLimit-Remaining"); a.status != http.StatusOK || left != int64(4-n) {
				t.Errorf("%s, request %d: %d, %d left", unit, n, a.status, left)
			}
			checkPeriod(t, unit, a, want)
		}
		key := "rl1:who:" + map[string]string{"day": "daily", "week": "weekly", "month": "monthly", "year": "yearly"}[unit] +
			":{ip:127.0.0.1}:" + unit + ":fw"
		if got := readUsed(t, redis, "*"+unit+":fw"); len(got) != 1 || got[key] != 3 {
			t.Errorf("%s: counters %v, want 3 in %s", unit, got, key)
		}
		ends, err := redis.Client().PExpireTime(context.Background(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		if off := time.UnixMilli(ends.Milliseconds()).Sub(want.after); off < 0 || off > time.Second {
			t.Errorf("%s: Redis keeps the counter until %v, want %v", unit, time.UnixMilli(ends.Milliseconds()).In(place), want.after)
		}
	}
	if err := nodes[0].reload(); err != nil {
		t.Fatal(err)
	}
	for _, unit := range []string{"day", "week", "month", "year"} {
		for n := range 3 {
			most := int64(time.Until(periodOf(unit, time.Now(), place).ends).Seconds())
			a := nodes[n%2].get("/" + unit)
			if want := []int{200, 200, 429}[n]; a.status != want {
				t.Errorf("%s, request %d after a reload: %d, want %d", unit, n, a.status, want)
			}
			checkPeriod(t, unit, a, periodOf(unit, time.Now(), place))
			if n < 2 {
				continue
			}
			least := int64(time.Until(periodOf(unit, time.Now(), place).ends).Seconds())
			if wait := a.number("Retry-After"); wait < least || wait > most+2 {
				t.Errorf("%s: Retry-After %d with %d to %d s to go", unit, wait, least, most)
			}
		}
	}
}

// checkPeriod checks the limit headers of an answer against the period.
func checkPeriod(t *testing.T, unit string, a answer, want period) {
	t.Helper()
	if reset := a.number("X-RateLimit-Reset"); reset != want.ends.Unix() {
		t.Errorf("%s: reset %v, want %v", unit, time.Unix(reset, 0).UTC(), want.ends.UTC())
	}
	if limit := a.number("X-RateLimit-Limit"); limit != 5 {
		t.Errorf("%s: limit %d", unit, limit)
	}
}
