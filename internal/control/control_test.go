// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock/penstock/internal/control/api"
	"github.com/penstock/penstock/internal/control/database"
	"github.com/penstock/penstock/internal/control/retain"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/pgtest"
	"github.com/penstock/penstock/internal/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

const patience = 60 * time.Second

// running is a process that runs in the test.
type running struct {
	address string
	tokens  atomic.Int64 // how many first tokens were shown
	token   atomic.Pointer[string]
	ended   chan error
	end     context.CancelFunc
	log     eventually.Journal
}

func run(t *testing.T, database, redis string) *running {
	t.Helper()
	store, err := redisstore.New(redisstore.Options{URL: redis, Timeout: redisstore.TimeoutMax})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &running{address: listener.Addr().String(), ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	r.end = cancel
	t.Cleanup(cancel)
	go func() {
		r.ended <- Run(ctx, Options{Database: database, Regions: []Region{{Redis: store}}, Listener: listener, Logger: slog.New(slog.NewTextHandler(&r.log, nil)),
			FirstToken: func(token string, _ time.Time) error { r.tokens.Add(1); r.token.Store(&token); return nil }})
	}()
	return r
}

func (r *running) status(path string) (status int, ready api.Readiness) {
	response, err := http.Get("http://" + r.address + path)
	if err != nil {
		return 0, ready
	}
	defer response.Body.Close()
	_ = json.NewDecoder(response.Body).Decode(&ready)
	return response.StatusCode, ready
}

// TestProcessesStartWithoutTheirServers tests that a process starts without PostgreSQL, reports the
// missing server without its address, and works as soon as PostgreSQL runs. It also tests that of
// two processes only one shows a first token.
func TestProcessesStartWithoutTheirServers(t *testing.T) {
	t.Parallel()
	postgres, redis := pgtest.Start(t), redistest.Start(t)
	postgres.Stop()
	first, second := run(t, postgres.URL(), redis.URL()), run(t, postgres.URL(), redis.URL())
	for _, r := range []*running{first, second} {
		eventually.Until(t, patience, "the process lives", func() bool { status, _ := r.status("/healthz"); return status == http.StatusOK })
		if status, ready := r.status("/readyz"); status != http.StatusServiceUnavailable || ready.Ready || ready.Database != "does not answer" {
			t.Errorf("without PostgreSQL: %d %+v", status, ready)
		}
	}
	postgres.Restart()
	for _, r := range []*running{first, second} {
		eventually.Until(t, patience, "the process is ready", func() bool { status, _ := r.status("/readyz"); return status == http.StatusOK })
	}
	if n := first.tokens.Load() + second.tokens.Load(); n != 1 {
		t.Errorf("%d first tokens were shown", n)
	}
	redis.Kill()
	eventually.Until(t, patience, "/readyz reports that Redis is away", func() bool {
		status, ready := first.status("/readyz")
		return status == http.StatusServiceUnavailable && ready.Database == "ok" && ready.Redis == "cannot be used; see the log"
	})
	if !strings.Contains(first.log.String(), redis.Addr) {
		t.Error("the log does not tell why Redis cannot be used")
	}
	pool, err := database.Open(t.Context(), postgres.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(t.Context(), "ALTER TABLE penstock.chain RENAME TO away"); err != nil {
		t.Fatal(err)
	}
	if _, ready := first.status("/readyz"); ready.Schema != "cannot be used; see the log" || ready.Ready {
		t.Errorf("without a table of the schema: %+v", ready)
	}
	if !strings.Contains(first.log.String(), `schema="cannot be used; see the log" redis="cannot be used; see the log" error=`) {
		t.Error("the log does not tell why the schema cannot be used")
	}
	for _, r := range []*running{first, second} {
		r.end()
		if err := <-r.ended; err != nil {
			t.Errorf("the process ends with %v", err)
		}
	}
}

// TestReadyOnlyWithPartitions starts a process on an empty database while another process holds the
// lock of the partitions. /readyz must answer 503 until the partitions exist: a batch that arrives
// before that is rejected.
func TestReadyOnlyWithPartitions(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	lock, err := c.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := retain.Lock(t.Context(), lock); err != nil {
		t.Fatal(err)
	}
	r := run(t, url, redistest.Start(t).URL())
	count := func(query string) (n int) {
		t.Helper()
		if err := lock.QueryRow(t.Context(), query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	eventually.Until(t, patience, "the process waits for the lock of the partitions", func() bool {
		return count("SELECT count(*) FROM pg_locks a JOIN pg_locks b USING (database, classid, objid) WHERE a.locktype = 'advisory' "+
			"AND a.pid = pg_backend_pid() AND NOT b.granted") > 0
	})
	if status, ready := r.status("/readyz"); status != http.StatusServiceUnavailable {
		t.Errorf("without partitions: %d %+v", status, ready)
	}
	if err := lock.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually.Until(t, patience, "the process is ready", func() bool { status, _ := r.status("/readyz"); return status == http.StatusOK })
	var partitions int
	if err := c.QueryRow(t.Context(), "SELECT count(*) FROM pg_inherits WHERE inhparent = 'penstock.rate_limit_events'::regclass").Scan(&partitions); err != nil || partitions == 0 {
		t.Errorf("%d partitions, %v", partitions, err)
	}
}

// TestASchemaOfALaterReleaseEndsTheProcess tests that the process ends with an error that names the
// remedy, instead of trying again for ever.
func TestASchemaOfALaterReleaseEndsTheProcess(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	if _, err := c.Exec(t.Context(), "CREATE SCHEMA penstock; CREATE TABLE penstock.schema_versions (version_id bigint); "+
		"INSERT INTO penstock.schema_versions VALUES (999)"); err != nil {
		t.Fatal(err)
	}
	r := run(t, url, redistest.Start(t).URL())
	select {
	case err := <-r.ended:
		if !errors.Is(err, database.ErrUnfit) || !strings.Contains(err.Error(), "has version 999") {
			t.Errorf("got %v", err)
		}
	case <-time.After(patience):
		t.Error("the process goes on")
	}
}
