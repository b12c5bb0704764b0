// SPDX-License-Identifier: Apache-2.0

package database

import (
	"context"
	"io/fs"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func open(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// TestStepsHaveNumbersOfTheirOwn tests that no two steps have the same number. Otherwise each start
// of the process would fail.
func TestStepsHaveNumbersOfTheirOwn(t *testing.T) {
	files, err := fs.ReadDir(migrations, "migrations")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, file := range files {
		number, _, _ := strings.Cut(file.Name(), "_")
		if other, ok := seen[number]; ok {
			t.Errorf("%s and %s have the same number: give one of them another", other, file.Name())
		}
		seen[number] = file.Name()
	}
}

// TestProcessesThatStartTogetherMigrateOnce tests that processes that start at the same time create
// the schema only once.
func TestProcessesThatStartTogetherMigrateOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pools := []*pgxpool.Pool{open(t, url), open(t, url), open(t, url), open(t, url)}
	if err := Check(t.Context(), pools[0]); err == nil || !strings.Contains(err.Error(), "has version 0") {
		t.Fatalf("an empty database: %v", err)
	}
	var group sync.WaitGroup
	for _, pool := range pools {
		group.Go(func() {
			if err := Migrate(context.Background(), pool); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if err := Check(t.Context(), pools[0]); err != nil {
		t.Fatal(err)
	}
	var rows int64
	steps, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	if err := pools[0].QueryRow(t.Context(), "SELECT count(*) FROM schema_versions WHERE version_id > 0").Scan(&rows); err != nil || rows != int64(len(steps)) {
		t.Errorf("%d rows of versions, %v; want %d", rows, err, len(steps))
	}
}

// TestANewerSchemaStaysAsItIs tests that an old program does not touch the schema of a new one.
func TestANewerSchemaStaysAsItIs(t *testing.T) {
	t.Parallel()
	pool := open(t, pgtest.Database(t))
	if err := Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), "INSERT INTO schema_versions (version_id, is_applied) VALUES (999, true)"); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{Migrate(t.Context(), pool), Check(t.Context(), pool)} {
		if err == nil || !strings.Contains(err.Error(), "the schema has version 999, and this program knows") {
			t.Errorf("got %v", err)
		}
	}
}

// TestAStepThatIsKilledIsRepeated ends the connection of each step but the first before its commit.
// It tests that the schema stays at the previous version, and that the step succeeds when it is
// tried again.
func TestAStepThatIsKilledIsRepeated(t *testing.T) {
	t.Parallel()
	pool := open(t, pgtest.Database(t))
	if _, err := pool.Exec(t.Context(), "CREATE SCHEMA penstock"); err != nil {
		t.Fatal(err)
	}
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	provider, err := newMigrations(db)
	if err != nil {
		t.Fatal(err)
	}
	all := provider.ListSources()
	for i, step := range all {
		if i > 0 { // the first one creates the table of versions
			killStep(t, pool, provider)
			if version, err := Version(t.Context(), pool); err != nil || version != all[i-1].Version {
				t.Fatalf("after step %d was killed, the version is %d, %v", step.Version, version, err)
			}
		}
		if _, err := provider.UpByOne(t.Context()); err != nil {
			t.Fatalf("step %d again: %v", step.Version, err)
		}
	}
	if err := Check(t.Context(), pool); err != nil {
		t.Error(err)
	}
}

// killStep begins a step, waits until it writes its version, and ends its connection.
func killStep(t *testing.T, pool *pgxpool.Pool, provider *goose.Provider) {
	t.Helper()
	lock, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Rollback(context.Background()) }()
	if _, err := lock.Exec(t.Context(), "LOCK TABLE schema_versions IN EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := provider.UpByOne(context.Background())
		ended <- err
	}()
	eventually.Until(t, 60*time.Second, "the step writes its version", func() bool {
		var killed int
		err := pool.QueryRow(t.Context(), "SELECT count(pg_terminate_backend(pid)) FROM pg_locks "+
			"WHERE relation = 'schema_versions'::regclass AND NOT granted").Scan(&killed)
		return err == nil && killed == 1
	})
	if err := <-ended; err == nil {
		t.Error("a step whose connection was ended reports success")
	}
}

// TestTheDatabaseKeepsItsRules tests that the database itself enforces the constraints.
func TestTheDatabaseKeepsItsRules(t *testing.T) {
	t.Parallel()
	pool := open(t, pgtest.Database(t))
	if err := Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	const entry = "INSERT INTO changes VALUES (1, now(), 'a', '', 'client', 'user:x', 'block', '', NULL, NULL, decode(repeat('00', 32), 'hex'))"
	if _, err := pool.Exec(t.Context(), entry); err != nil {
		t.Fatal(err)
	}
	for statement, want := range map[string]string{
		"UPDATE changes SET actor = 'b'": "append-only",
		"DELETE FROM changes":            "append-only",
		"TRUNCATE changes":               "append-only",
		"INSERT INTO clients VALUES ('user', '', NULL, NULL, NULL, 1, now())":             "clients_id_check",
		"INSERT INTO clients VALUES ('user', 'x', 'gold', NULL, NULL, 1, now())":          "clients_tier_fkey",
		"INSERT INTO blocks VALUES ('user', 'nobody', NULL, '')":                          "blocks_kind_id_fkey",
		"INSERT INTO chain VALUES (true, 1, decode(repeat('00', 32), 'hex'))":             "chain_pkey",
		"INSERT INTO tokens VALUES ('x', 'short', 'n', 'viewer', now(), 'a', now())":      "tokens",
		"INSERT INTO overrides VALUES ('user', 'nobody', 'api', '{}', NULL, '')":          "overrides_limits_check",
		"INSERT INTO clients VALUES ('user', 'x', NULL, NULL, repeat('n',501), 1, now())": "clients_note_check",
	} {
		if _, err := pool.Exec(t.Context(), statement); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", statement, err, want)
		}
	}
}
