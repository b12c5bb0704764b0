// SPDX-License-Identifier: Apache-2.0

package database

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

// Bounds of the connections of one process.
const (
	connectionsMax = 10
	connectTime    = 5 * time.Second
	// statementTime is the time after which a hanging statement is ended. statementTime is longer
	// than the time limit of an answer of the API.
	statementTime = 30 * time.Second
	// idleTime is the time after which an idle transaction is ended, because other processes wait
	// for its lock.
	idleTime = 10 * time.Second
	// serverVersionMin is the oldest supported version of PostgreSQL, in the form of
	// server_version_num.
	serverVersionMin = 140_000
)

// migrationLock is the key of the advisory lock that a process holds while it changes the schema.
const migrationLock = 0x70656e73_0001

// versionTable has a row for each migration that was applied.
const versionTable = "penstock.schema_versions"

//go:embed migrations/*.sql
var migrations embed.FS

// Config parses the address of a database. The connections use the schema penstock.
func Config(url string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		// The error of pgx contains the address without its password.
		return nil, fmt.Errorf("the database's address is not valid: %w; write postgres://user@host:5432/name", err)
	}
	config.MaxConns = connectionsMax
	config.ConnConfig.ConnectTimeout = connectTime
	parameters := config.ConnConfig.RuntimeParams
	parameters["application_name"] = "penstock control"
	parameters["search_path"] = "penstock"
	parameters["timezone"] = "UTC"
	parameters["statement_timeout"] = fmt.Sprint(statementTime.Milliseconds())
	parameters["idle_in_transaction_session_timeout"] = fmt.Sprint(idleTime.Milliseconds())
	return config, nil
}

// Open returns the connections to a database. Open does not connect yet.
func Open(ctx context.Context, url string) (*pgxpool.Pool, error) {
	config, err := Config(url)
	if err != nil {
		return nil, err
	}
	return pgxpool.NewWithConfig(ctx, config)
}

// Newest returns the version of the schema that this program needs: the greatest number of a step.
// The numbers of the steps may have gaps.
func Newest() (version int64) {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		panic(err) // the pattern is constant
	}
	for _, file := range files {
		number, err := goose.NumericComponent(file)
		if err != nil {
			panic(err) // the files are embedded
		}
		version = max(version, number)
	}
	return version
}

// Version returns the version of the schema, or 0 if there is none.
func Version(ctx context.Context, pool *pgxpool.Pool) (version int64, err error) {
	err = pool.QueryRow(ctx, "SELECT coalesce(max(version_id), 0) FROM "+versionTable).Scan(&version)
	if code := (*pgconn.PgError)(nil); errors.As(err, &code) && (code.Code == "42P01" || code.Code == "3F000") { // no such table
		return 0, nil
	}
	return version, err
}

// Check returns nil if the schema has the version of this program.
func Check(ctx context.Context, pool *pgxpool.Pool) error {
	switch version, err := Version(ctx, pool); {
	case err != nil:
		return err
	case version < Newest():
		return fmt.Errorf("the schema has version %d, and this program needs %d: start penstock control serve, which upgrades it", version, Newest())
	case version > Newest():
		return newer(version)
	}
	return nil
}

// ErrUnfit is wrapped by the error for a database that this program cannot use.
var ErrUnfit = errors.New("this program cannot use the database")

func newer(version int64) error {
	return fmt.Errorf("%w: the schema has version %d, and this program knows %d: use the release that made it, or a later one", ErrUnfit, version, Newest())
}

// Migrate brings the schema to the version of this program.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	lock, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer lock.Release()
	if err := serverVersion(ctx, lock.Conn()); err != nil {
		return err
	}
	if _, err := lock.Exec(ctx, "SELECT pg_advisory_lock($1)", int64(migrationLock)); err != nil {
		return err
	}
	defer func() {
		// If the lock cannot be released, the connection is closed, which releases the lock.
		if _, err := lock.Exec(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock($1)", int64(migrationLock)); err != nil {
			_ = lock.Conn().Close(context.WithoutCancel(ctx))
		}
	}()
	version, err := Version(ctx, pool)
	if err != nil {
		return err
	}
	if version > Newest() {
		return newer(version)
	}
	if _, err := lock.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS penstock"); err != nil {
		return err
	}
	return migrate(ctx, pool)
}

// newMigrations returns the steps from an empty database to the version of this program. Each step
// is one transaction.
func newMigrations(db *sql.DB) (*goose.Provider, error) {
	folder, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(goose.DialectPostgres, db, folder, goose.WithTableName(versionTable), goose.WithDisableGlobalRegistry(true))
}

// migrate applies the migrations that are missing.
func migrate(ctx context.Context, pool *pgxpool.Pool) error {
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	provider, err := newMigrations(db)
	if err != nil {
		return err
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("bring the schema to version %d: %w", Newest(), err)
	}
	return nil
}

// serverVersion returns an error if the server is too old.
func serverVersion(ctx context.Context, c *pgx.Conn) error {
	var number int
	if err := c.QueryRow(ctx, "SELECT current_setting('server_version_num')::int").Scan(&number); err != nil {
		return err
	}
	if number < serverVersionMin {
		return fmt.Errorf("%w: PostgreSQL %s is too old: use 14 or later", ErrUnfit, strings.TrimSpace(c.PgConn().ParameterStatus("server_version")))
	}
	return nil
}
