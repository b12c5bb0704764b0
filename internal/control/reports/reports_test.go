// SPDX-License-Identifier: Apache-2.0

package reports

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/penstock/penstock/internal/control/database"
	"github.com/penstock/penstock/internal/control/retain"
	"github.com/penstock/penstock/internal/test/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// openOne returns a database with the tables and the partitions, over one connection. PostgreSQL
// plans queries for all values of their parameters, as it does for a query that was sent often.
func openOne(t *testing.T) *pgxpool.Pool {
	t.Helper()
	url := pgtest.Migrated(t, database.Open, database.Migrate)
	config, err := database.Config(url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns, config.ConnConfig.RuntimeParams["plan_cache_mode"] = 1, "force_generic_plan"
	pool, err := database.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	keeper := retain.Keeper{Pool: pool, Logger: slog.New(slog.DiscardHandler)}
	if err := keeper.Round(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	one, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(one.Close)
	return one
}

// rowsRead returns how many rows of a table and its partitions were read so far.
func rowsRead(t *testing.T, pool *pgxpool.Pool, table string) (rows int64) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), "SELECT pg_stat_force_next_flush()"); err != nil {
		t.Fatal(err)
	}
	if err := pool.QueryRow(t.Context(), "SELECT sum(seq_tup_read + idx_tup_fetch)::bigint FROM pg_stat_user_tables WHERE relname LIKE $1 || '%'", table).Scan(&rows); err != nil {
		t.Fatal(err)
	}
	return rows
}

// TestEventsReadTheirRowsOnly tests that the query for a page of events reads about as many rows as
// the page has. One page has the events of a client under a rule that few of the client's events
// have, and another one the events of a rare kind.
func TestEventsReadTheirRowsOnly(t *testing.T) {
	t.Parallel()
	pool := openOne(t)
	now := time.Now().UTC().Truncate(time.Second)
	for _, statement := range []string{
		"INSERT INTO rate_limit_events (at, kind, policy, version, rule, limited, decision, status, client, tier, method, path, state, reason, node, seconds, share, events) " +
			"SELECT now() - i * interval '10 ms', CASE WHEN i % 500 = 0 THEN 'degraded' ELSE 'denied' END, 'shop', '', 'r' || i / 100 % 4, '', 'denied', 429, " +
			"'user:' || i % 100, '', '', '', '', '', '', 0, 1, 1 FROM generate_series(1, 20000) i",
		"ANALYZE rate_limit_events",
	} {
		if _, err := pool.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	const page = 30
	for _, q := range []EventQuery{{Client: "user:1", Rule: "r3"}, {Client: "user:1", Rule: "r3", Before: &EventKey{At: now.Add(-time.Minute)}},
		{Kind: "degraded"}, {Kind: "degraded", Client: "user:0"}, {Kind: "denied"}} {
		q.From, q.To, q.Limit = now.Add(-time.Hour), now.Add(time.Hour), page
		before := rowsRead(t, pool, "rate_limit_events")
		events, err := (&Reports{pool}).Events(t.Context(), q)
		if err != nil || len(events) != page {
			t.Fatalf("%+v: %d events, %v", q, len(events), err)
		}
		for i, e := range events {
			if q.Client != "" && e.Client != q.Client || q.Rule != "" && e.Rule != q.Rule || q.Kind != "" && e.Kind != q.Kind || i > 0 && e.At.After(events[i-1].At) {
				t.Fatalf("%+v has %+v", q, e)
			}
		}
		if n := rowsRead(t, pool, "rate_limit_events") - before; n > 3*page {
			t.Errorf("%+v: a page of %d rows reads %d", q, page, n)
		}
	}
}

// TestUsageOfAClientReadsItsRowsOnly tests that the usage of one client is found by an index,
// whatever other filters the query has, even when PostgreSQL no longer plans the query for the
// values of its parameters.
func TestUsageOfAClientReadsItsRowsOnly(t *testing.T) {
	t.Parallel()
	pool := openOne(t)
	const clients, calls = 20_000, 10
	for _, statement := range []string{
		"INSERT INTO client_usage (day, client, policy, rule, tier, admitted, denied, units) " +
			"SELECT date_trunc('month', now()), 'user:' || i, 'shop', 'api', '', i, 0, i FROM generate_series(1, 20000) i",
		"INSERT INTO client_usage_regions (day, client, policy, rule, tier, region, admitted, denied, units) " +
			"SELECT date_trunc('month', now()), 'user:' || i, 'shop', 'api', '', 'eu', i, 0, i FROM generate_series(1, 20000) i",
		"ANALYZE client_usage, client_usage_regions",
	} {
		if _, err := pool.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	read := func() int64 { return rowsRead(t, pool, "client_usage") }
	now := time.Now().UTC()
	month := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	for _, q := range []UsageQuery{{}, {Policy: "shop", Rule: "api"}, {ByRegion: true}, {Region: "eu"}, {After: &UsageKey{Client: "user:5", Policy: "shop"}}} {
		q.From, q.To, q.Client, q.Limit = month, month.AddDate(0, 1, 0), "user:500", 100
		before := read()
		for range calls {
			if rows, err := (&Reports{pool}).Usage(t.Context(), q); err != nil || len(rows) != 1 || rows[0].Units != 500 {
				t.Fatalf("%+v: %+v, %v", q, rows, err)
			}
		}
		if n := read() - before; n > clients/2 {
			t.Errorf("%+v: %d calls read %d rows", q, calls, n)
		}
	}
}
