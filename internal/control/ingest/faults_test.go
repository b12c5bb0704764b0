// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/pgtest"
)

// TestADatabaseThatDoesNotWrite tests that each batch is counted exactly once although PostgreSQL
// fails while batches are sent. One after the other, PostgreSQL is read-only, hangs, has a full
// disk (simulated by a trigger), ends its connections, and is killed.
func TestADatabaseThatDoesNotWrite(t *testing.T) {
	t.Parallel()
	server, now := pgtest.Start(t), time.Now()
	i := &Ingester{Pool: open(t, server.URL(), now)}
	n := &sender{i: i, now: now, stop: make(chan struct{}), ended: make(chan struct{})}
	go n.run()
	exec := func(statements ...string) {
		t.Helper()
		c, err := pgx.Connect(t.Context(), server.URL())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(t.Context())
		for _, statement := range statements {
			eventually.Until(t, 60*time.Second, statement, func() bool {
				_, err := c.Exec(t.Context(), statement)
				if other, ok := errors.AsType[*pgconn.PgError](err); ok && other.Code == "40P01" {
					return false // a deadlock with a batch
				}
				if err != nil {
					t.Fatal(statement, err)
				}
				return true
			})
		}
	}
	fails := func(what string) {
		t.Helper()
		before := n.failures.Load()
		eventually.Until(t, 60*time.Second, what+": batches are not taken", func() bool { return n.failures.Load() > before })
	}
	goesOn := func(what string) {
		t.Helper()
		before := n.last.Load()
		eventually.Until(t, 60*time.Second, what+": batches are taken again", func() bool { return n.last.Load() > before+1 })
	}
	goesOn("at first")
	exec("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
	fails("read-only")
	exec("SET default_transaction_read_only = off", "ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()")
	goesOn("after it was read-only")
	hang(t, server.URL(), fails)
	goesOn("after it hung")
	exec("CREATE FUNCTION penstock.no_room() RETURNS trigger LANGUAGE plpgsql AS "+
		"'BEGIN RAISE disk_full; END'", "CREATE TRIGGER no_room BEFORE INSERT ON penstock.rate_limit_metrics FOR EACH ROW EXECUTE FUNCTION penstock.no_room()")
	fails("its disk is full")
	exec("DROP TRIGGER no_room ON penstock.rate_limit_metrics")
	goesOn("after its disk was full")
	exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'")
	goesOn("after it ended its connections")
	server.Kill()
	fails("killed")
	server.Restart()
	goesOn("after it was killed")
	close(n.stop)
	<-n.ended
	if got := number(t, i.Pool, "SELECT sum(units) FROM client_usage"); got != n.units.Load() {
		t.Errorf("%d units are in the table, and %d were sent", got, n.units.Load())
	}
	if got := number(t, i.Pool, "SELECT batches FROM feeds"); got != n.last.Load() {
		t.Errorf("%d batches are in the table, and %d were sent", got, n.last.Load())
	}
}

// sender sends the batches of one feed in turn, each until the ingester has stored it.
type sender struct {
	i                     *Ingester
	now                   time.Time
	units, last, failures atomic.Int64
	stop, ended           chan struct{}
}

func (s *sender) run() {
	defer close(s.ended)
	random := rand.New(rand.NewPCG(1, uint64(s.now.UnixNano())))
	for n := int64(1); ; n++ {
		lines, _, u, _ := someLines(random, s.now)
		for done := false; !done; {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			b := Batch{Feed: feedName(1), Number: n, Node: "n", Lines: append(lines[:0:0], lines...)}
			_, err := s.i.Take(ctx, &b)
			cancel()
			if done = err == nil; !done {
				s.failures.Add(1)
			}
		}
		s.units.Add(u)
		s.last.Store(n)
		select {
		case <-s.stop:
			return
		default:
		}
	}
}

// hang locks a table that every batch writes to, until batches fail.
func hang(t *testing.T, url string, fails func(string)) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	if _, err := c.Exec(t.Context(), "BEGIN; LOCK TABLE penstock.feeds IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	fails("hanging")
}
