// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/control/database"
	"github.com/penstock/penstock/internal/control/ledger"
)

// databaseVariable may hold the address of the database, which may contain a password.
const databaseVariable = "PENSTOCK_DATABASE"

func (f *controlFlags) registerDatabase(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.database, "database", "", "the address of the database: postgres://user:{env.NAME}@host:5432/name ($"+databaseVariable+")")
}

// databaseAddress returns the address from the flag or the environment.
func (f *controlFlags) databaseAddress() (string, error) {
	address := f.database
	if address == "" {
		address = os.Getenv(databaseVariable)
	}
	if address == "" {
		return "", fmt.Errorf("no database is named: write --database postgres://user@host:5432/name, set %s, or try penstock control dev",
			databaseVariable)
	}
	address, err := fillIn(address)
	if err != nil {
		return "", fmt.Errorf("--database: %w", err)
	}
	return address, nil
}

// withDatabase calls do(...) with the database that the flags name. The schema of the database must
// be the one that this program knows.
func (f *controlFlags) withDatabase(ctx context.Context, do func(*pgxpool.Pool) error) error {
	address, err := f.databaseAddress()
	if err != nil {
		return err
	}
	pool, err := database.Open(ctx, address)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := database.Check(ctx, pool); err != nil {
		return err
	}
	return do(pool)
}

// withLedger calls do(...) with the ledger of the database that the flags name.
func (f *controlFlags) withLedger(ctx context.Context, do func(*ledger.Ledger) error) error {
	return f.withDatabase(ctx, func(pool *pgxpool.Pool) error { return do(&ledger.Ledger{Pool: pool}) })
}
