// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/penstock/penstock/core/policy"
)

// Records returns the records of clients and API keys, as they are published. The name of an API
// key is its SHA-256. There is no record for a name without a row, or with a row that is not valid.
// Nor is there a record for a name that no row can have, such as one with a NUL, which PostgreSQL
// would not accept as an argument.
func (l *Ledger) Records(ctx context.Context, names []policy.ClientName) (map[policy.ClientName][]byte, error) {
	var hashes []string
	var clients []policy.ClientName
	for _, name := range names {
		if name.Kind == policy.KindKey {
			hashes = append(hashes, name.ID)
		} else if _, err := Name(name.String()); err == nil {
			clients = append(clients, name)
		}
	}
	texts := make(map[policy.ClientName][]byte, len(names))
	err := pgx.BeginTxFunc(ctx, l.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		found, err := ClientsOf(ctx, tx.Conn(), clients)
		if err != nil {
			return err
		}
		for name, client := range found {
			if client.Record.Check() == nil {
				texts[name] = client.Record.Text()
			}
		}
		keys, err := KeysOf(ctx, tx.Conn(), hashes)
		if err != nil {
			return err
		}
		for hash, key := range keys {
			if key.Record.Check() == nil {
				texts[policy.ClientName{Kind: policy.KindKey, ID: hash}] = key.Record.Text()
			}
		}
		return nil
	})
	return texts, err
}
