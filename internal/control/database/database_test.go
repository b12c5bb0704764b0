// SPDX-License-Identifier: Apache-2.0

package database

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

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

// TestProcessesThatStartTogetherMigrateOnce tests that the schema is made once, whoever comes first.
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
	files, err := migrations.ReadDir("migrations")
	if err != nil {
		t.Fatal(err)
	}
	var rows int
	if err := pools[0].QueryRow(t.Context(), "SELECT count(*) FROM schema_versions WHERE version_id > 0").Scan(&rows); err != nil || rows != len(files) {
		t.Errorf("%d rows of versions, %v; want %d", rows, err, len(files))
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

// TestTheDatabaseKeepsItsRules tests that the constraints stand without the program.
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
