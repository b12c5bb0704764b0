// SPDX-License-Identifier: Apache-2.0

package retain

import (
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/penstock/penstock/internal/control/database"
	"github.com/penstock/penstock/internal/test/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// open returns a new database with the schema.
func open(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := database.Open(t.Context(), pgtest.Migrated(t, database.Open, database.Migrate))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// TestPartitionsComeAndGo simulates a year and a half in which several processes work at once. In
// each month, there must be partitions from 30 days ago to three months ahead, and partitions whose
// retention time is over must be dropped.
func TestPartitionsComeAndGo(t *testing.T) {
	t.Parallel()
	pool := open(t)
	k := &Keeper{Pool: pool, Logger: slog.New(slog.DiscardHandler)}
	for now := time.Date(2026, 1, 31, 23, 59, 0, 0, time.UTC); now.Year() < 2027 || now.Month() < 8; now = now.AddDate(0, 0, 29) {
		var rounds sync.WaitGroup
		for range 2 {
			rounds.Go(func() {
				if err := k.Round(t.Context(), now); err != nil {
					t.Error(now, err)
				}
			})
		}
		rounds.Wait()
		for _, at := range []time.Time{now.AddDate(0, 0, -30), now, now.AddDate(0, 0, 89)} {
			if _, err := pool.Exec(t.Context(), "INSERT INTO client_usage VALUES ($1, $2, '', '', '', 1, 0, 1) ON CONFLICT DO NOTHING", at, at.String()); err != nil {
				t.Fatalf("on %v for %v: %v", now, at, err)
			}
			if _, err := pool.Exec(t.Context(), "INSERT INTO client_denials VALUES ($1, '', '', $2, 1) ON CONFLICT DO NOTHING", at, at.String()); err != nil {
				t.Fatalf("on %v for %v: %v", now, at, err)
			}
		}
		if _, err := pool.Exec(t.Context(), "INSERT INTO rate_limit_metrics VALUES ('minute', $1, '', '', '', 1, 0, 1), ('hour', $1, '', '', '', 1, 0, 1), "+
			"('day', $1, '', '', '', 1, 0, 1)", now); err != nil {
			t.Fatal(err)
		}
	}
	for query, want := range map[string]int{
		"SELECT count(*) FROM client_usage WHERE day < '2026-02-02'":                                             3, // usage is kept for 7 years
		"SELECT count(*) FROM client_denials WHERE at < '2026-06-01'":                                            0, // denials for 13 months
		"SELECT count(*) FROM rate_limit_metrics WHERE granularity = 'minute' AND at < '2027-07-01'":             0,
		"SELECT count(*) FROM rate_limit_metrics WHERE granularity = 'hour' AND at < '2026-06-01'":               0,
		"SELECT count(*) FROM rate_limit_metrics WHERE granularity = 'day' AND at < '2026-06-01'":                5,
		"SELECT count(*) FROM pg_class WHERE relname IN ('rate_limit_events_2026_01', 'client_denials_2026_01')": 0,
	} {
		var n int
		if err := pool.QueryRow(t.Context(), query).Scan(&n); err != nil || n != want {
			t.Errorf("%s: %d, %v; want %d", query, n, err, want)
		}
	}
}

// TestGrowCreatesOnlyWhatIsMissing tests that Grow creates the partitions of a new database, and
// those of later months, and that it waits for no other process if none is missing.
func TestGrowCreatesOnlyWhatIsMissing(t *testing.T) {
	t.Parallel()
	pool := open(t)
	k := &Keeper{Pool: pool, Logger: slog.New(slog.DiscardHandler)}
	now := time.Date(2026, 12, 31, 23, 59, 0, 0, time.UTC)
	grow := func(now time.Time, want int) {
		t.Helper()
		if err := k.Grow(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		if partitions, err := Partitions(t.Context(), pool, "rate_limit_events"); err != nil || len(partitions) != want {
			t.Errorf("the partitions are %v, %v; want %d", partitions, err, want)
		}
	}
	var grows sync.WaitGroup
	for range 4 {
		grows.Go(func() {
			if err := k.Grow(t.Context(), now); err != nil {
				t.Error(err)
			}
		})
	}
	grows.Wait()
	other, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := Lock(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	grow(now, behind+1+Ahead)
	if err := other.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	grow(now.Add(time.Minute), behind+1+Ahead+1)
	if _, err := pool.Exec(t.Context(), "DROP TABLE rate_limit_events_2027_01"); err != nil {
		t.Fatal(err)
	}
	grow(now.Add(time.Minute), behind+1+Ahead+1)
}

// TestHoursOutliveShortUsage tests that hourly sums are kept for their full time if usage and daily
// sums are kept for less. Hourly and daily sums share a table.
func TestHoursOutliveShortUsage(t *testing.T) {
	t.Parallel()
	pool := open(t)
	k := &Keeper{Pool: pool, Keep: Keep{Days: 31 * day}, Logger: slog.New(slog.DiscardHandler)}
	now := time.Date(2026, 6, 15, 12, 0, 0, 0, time.UTC)
	old := now.Add(-60 * day)
	if err := k.Round(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), "INSERT INTO rate_limit_metrics VALUES ('minute', $1, '', '', '', 1, 0, 1), ('hour', $1, '', '', '', 1, 0, 1), "+
		"('day', $1, '', '', '', 1, 0, 1), ('day', $2, '', '', '', 1, 0, 1)", old, now.Add(-31*day)); err != nil {
		t.Fatal(err)
	}
	if err := k.Round(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	const want = "day 2026-05-15, hour 2026-04-16"
	var left string
	if err := pool.QueryRow(t.Context(), "SELECT coalesce(string_agg(granularity || ' ' || at::date, ', ' ORDER BY granularity), '') FROM rate_limit_metrics").
		Scan(&left); err != nil || left != want {
		t.Errorf("the sums are those of %q, %v; want %q", left, err, want)
	}
}
