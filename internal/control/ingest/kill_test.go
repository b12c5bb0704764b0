// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/penstock/penstock/internal/control/database"
	"github.com/penstock/penstock/internal/events"
	"github.com/penstock/penstock/internal/feed"
)

// cutter closes the database connection just before one statement is sent, as if the process were
// killed at that moment.
type cutter struct {
	seen, at int // the statements so far, and the one before which to cut; 0 for none
}

func (c *cutter) next(ctx context.Context, conn *pgx.Conn) context.Context {
	if c.seen++; c.seen == c.at {
		_ = conn.PgConn().Conn().Close()
	}
	return ctx
}

func (c *cutter) TraceQueryStart(ctx context.Context, conn *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return c.next(ctx, conn)
}
func (c *cutter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (c *cutter) TraceCopyFromStart(ctx context.Context, conn *pgx.Conn, _ pgx.TraceCopyFromStartData) context.Context {
	return c.next(ctx, conn)
}
func (c *cutter) TraceCopyFromEnd(context.Context, *pgx.Conn, pgx.TraceCopyFromEndData) {}
func (c *cutter) TraceBatchStart(ctx context.Context, conn *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return c.next(ctx, conn)
}
func (c *cutter) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (c *cutter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// TestKilledAtEachStep tests that no table contains any part of a batch if the process ends before
// one of the batch's statements, the commit included. The batch must count once when the node sends
// it again, even if only the answer to the commit was lost.
func TestKilledAtEachStep(t *testing.T) {
	t.Parallel()
	url, now, cut := migrated(t), time.Now(), new(cutter)
	whole := open(t, url, now)
	config, err := database.Config(url)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.Tracer = cut
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	createKeys(t, whole, "a")
	i := &Ingester{Pool: pool}
	take := func(n int64) (repeated bool, err error) {
		lines := []feed.Line{{Time: now, Kind: events.KindDenied, Policy: "shop", Rule: "api", Client: "user:ann", Status: 429, Count: 3},
			{Time: now, Kind: feed.KindUsage, Policy: "shop", Rule: "api", Client: "user:ann", Region: "eu", Admitted: 2, Denied: 3, Units: 5},
			{Time: now, Kind: feed.KindUsage, Policy: "shop", Rule: "api", Endpoint: "/api/*", Latency: [][3]int64{{9, 2, 3}}}, used(now, "a")}
		return i.Take(t.Context(), &Batch{Feed: feedName(1), Number: n, Node: "n", Lines: lines})
	}
	holds := func(batches int64) {
		t.Helper()
		for query, of := range map[string]int64{"SELECT coalesce(sum(events), 0)::bigint FROM rate_limit_events": 3,
			"SELECT coalesce(sum(units), 0)::bigint FROM client_usage": 5, "SELECT coalesce(sum(units), 0)::bigint FROM client_usage_regions": 5,
			"SELECT coalesce(sum(denied), 0)::bigint FROM client_denials": 3, "SELECT coalesce(sum(units), 0)::bigint FROM rate_limit_metrics WHERE granularity = 'day'": 5,
			"SELECT coalesce(sum(denied), 0)::bigint FROM rate_limit_latencies WHERE granularity = 'day'": 3,
			"SELECT coalesce(sum(units), 0)::bigint FROM client_minutes":                                  5, "SELECT coalesce(sum(batches), 0)::bigint FROM feeds": 1} {
			if n := number(t, whole, query); n != of*batches {
				t.Errorf("after %d batches, %s: %d, want %d", batches, query, n, of*batches)
			}
		}
	}
	if _, err := take(1); err != nil {
		t.Fatal(err)
	}
	steps := cut.seen
	if steps < 4 {
		t.Fatalf("a batch has %d steps", steps)
	}
	holds(1)
	for step := range steps {
		n := int64(step + 2)
		cut.seen, cut.at = 0, step+1
		if _, err := take(n); err == nil {
			t.Errorf("a batch whose connection ended before the statement %d is taken", step+1)
		}
		holds(n - 1)
		cut.at = 0
		for _, again := range []bool{false, true} {
			if repeated, err := take(n); err != nil || repeated != again {
				t.Errorf("the batch that ended before the statement %d, again: repeated %v, %v", step+1, repeated, err)
			}
		}
		holds(n)
	}
}
