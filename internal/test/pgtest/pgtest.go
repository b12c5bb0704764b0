// SPDX-License-Identifier: Apache-2.0

// Package pgtest starts a real PostgreSQL for tests, on a Unix socket in its own folder, and stops
// it when the tests end. The server does not wait for the disk.
//
// A server starts in about a second, and each further database on it takes 0.1 seconds. A database
// with the schema takes no longer, because the schema is copied from another database. On a machine
// without PostgreSQL the test fails, because no substitute behaves like PostgreSQL.
package pgtest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/penstock/penstock/internal/control/localpg"
)

// missing is the message on a machine without PostgreSQL.
const missing = "these tests need PostgreSQL: run make setup"

// Server is a running PostgreSQL of one test. Its methods fail the test on an error.
type Server struct {
	t      testing.TB
	folder string
	server *localpg.Server
}

// Start starts a server and stops it when the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	server, folder, err := start()
	if err != nil {
		t.Fatalf("%s: %v", missing, err)
	}
	s := &Server{t: t, server: server, folder: folder}
	t.Cleanup(func() {
		_ = s.server.Kill()
		_ = os.RemoveAll(s.folder)
	})
	return s
}

// start starts a server in a new folder. It does not use the test's own folder, because the path of
// a socket may have at most 107 bytes.
func start() (server *localpg.Server, folder string, err error) {
	if folder, err = os.MkdirTemp("", "pg"); err != nil {
		return nil, "", err
	}
	if server, err = localpg.Start(context.Background(), localpg.Options{Folder: folder, Volatile: true}); err != nil {
		_ = os.RemoveAll(folder)
	}
	return server, folder, err
}

// URL returns the address of the server's database.
func (s *Server) URL() string { return s.server.URL() }

// Stop stops the server in an orderly way.
func (s *Server) Stop() { s.must(s.server.Stop()) }

// Kill ends the server like a crash.
func (s *Server) Kill() { s.must(s.server.Kill()) }

// Restart starts the server again after Stop or Kill. The server has all data that was committed.
func (s *Server) Restart() { s.must(s.server.Run(context.Background())) }

func (s *Server) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// shared holds the server that the tests of a package share if its TestMain calls [Main].
var shared struct {
	once     sync.Once
	server   *localpg.Server
	folder   string
	err      error
	migrate  sync.Once // creates the database migrated
	migrated error
	last     atomic.Int64 // number of the last database
}

// The database named migrated has the schema and no rows. Migrated copies it.
const migrated = "migrated"

// Main runs the tests of a package, and then stops the server that [Database] has started. TestMain
// must pass the result to os.Exit.
func Main(m *testing.M) int {
	if _, err := localpg.Programs(); err != nil {
		fmt.Fprintln(os.Stderr, missing)
		return 1
	}
	defer func() {
		if shared.server != nil {
			_ = shared.server.Kill()
		}
		_ = os.RemoveAll(shared.folder)
	}()
	return m.Run()
}

// Database returns the address of a new, empty database on the package's server. The package's
// TestMain must call [Main].
func Database(t testing.TB) (url string) {
	t.Helper()
	return create(t, "template0")
}

// Migrated returns the address of a new database with the schema of the control plane on the
// package's server. The arguments are the functions of package database, which pgtest does not
// import, because the tests of that package import pgtest. TestMain must call [Main].
func Migrated(t testing.TB, open func(context.Context, string) (*pgxpool.Pool, error), migrate func(context.Context, *pgxpool.Pool) error) (url string) {
	t.Helper()
	shared.migrate.Do(func() { shared.migrated = migrateOne(Database(t), open, migrate) })
	if shared.migrated != nil {
		t.Fatal(shared.migrated)
	}
	return create(t, migrated)
}

// migrateOne applies the schema to an empty database, and renames the database to migrated.
func migrateOne(url string, open func(context.Context, string) (*pgxpool.Pool, error), migrate func(context.Context, *pgxpool.Pool) error) error {
	ctx := context.Background()
	pool, err := open(ctx, url)
	if err != nil {
		return err
	}
	err = migrate(ctx, pool)
	pool.Close() // a database with connections cannot be renamed
	if err != nil {
		return err
	}
	return execute(ctx, "ALTER DATABASE "+pool.Config().ConnConfig.Database+" RENAME TO "+migrated)
}

// create copies a database of the package's server, and returns the address of the copy.
func create(t testing.TB, template string) (url string) {
	t.Helper()
	shared.once.Do(func() { shared.server, shared.folder, shared.err = start() })
	if shared.err != nil {
		t.Fatalf("%s: %v", missing, shared.err)
	}
	name := fmt.Sprintf("test_%d", shared.last.Add(1))
	if err := execute(context.Background(), "CREATE DATABASE "+name+" TEMPLATE "+template); err != nil {
		t.Fatal(err)
	}
	return shared.server.Database(name)
}

// execute executes a statement on the package's server.
func execute(ctx context.Context, statement string) error {
	connection, err := pgx.Connect(ctx, shared.server.URL())
	if err != nil {
		return err
	}
	defer connection.Close(ctx)
	_, err = connection.Exec(ctx, statement)
	return err
}
