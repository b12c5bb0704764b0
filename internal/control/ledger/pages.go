// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
)

// ClientsAfter returns the next n clients whose names come after the given one, sorted by name. All
// rows are of one instant. The rows of each table are read as one range of names, which takes a
// fraction of the time of a look-up for each client.
func ClientsAfter(ctx context.Context, c *pgx.Conn, after policy.ClientName, n int) (clients []Client, err error) {
	err = pgx.BeginTxFunc(ctx, c, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if clients, err = clientsOnly(ctx, tx, after, n); err != nil || len(clients) == 0 {
			return err
		}
		return addParts(ctx, tx, after, clients)
	})
	return clients, err
}

// clientsOnly returns the next clients without the rows of other tables.
func clientsOnly(ctx context.Context, tx pgx.Tx, after policy.ClientName, n int) (clients []Client, err error) {
	batch := new(pgx.Batch)
	// The planner estimates how many rows a range has. If it expected the range to be a great part
	// of the table, it would read the whole table for each page.
	batch.Queue("SET LOCAL enable_seqscan = off")
	batch.Queue("SELECT kind, id, coalesce(tier, ''), coalesce(tenant, ''), coalesce(note, ''), revision, updated_at FROM clients "+
		"WHERE (kind, id) > ($1, $2) ORDER BY kind, id LIMIT $3", after.Kind, after.ID, n).Query(func(rows pgx.Rows) error {
		clients, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Client, err error) {
			r := new(directory.Record)
			err = row.Scan(&c.name.Kind, &c.name.ID, &r.Tier, &r.Tenant, &r.Note, &c.Revision, &c.UpdatedAt)
			c.Client, c.Record, c.UpdatedAt = c.name.String(), r, c.UpdatedAt.UTC()
			return c, err
		})
		return err
	})
	return clients, tx.SendBatch(ctx, batch).Close()
}

// addParts completes clients with what the other tables have about them. No client may be missing
// between the name in the parameter after and the last of clients.
func addParts(ctx context.Context, tx pgx.Tx, after policy.ClientName, clients []Client) error {
	batch := new(pgx.Batch)
	for from := 0; from < len(clients); {
		kind, to := clients[from].name.Kind, from+1
		for to < len(clients) && clients[to].name.Kind == kind {
			to++
		}
		if kind != after.Kind {
			after = policy.ClientName{Kind: kind}
		}
		queueParts(batch, after, clients[from:to])
		from = to
	}
	err := tx.SendBatch(ctx, batch).Close()
	for i := range clients {
		normalize(clients[i].Record)
	}
	return err
}

// queueParts adds queries for the rows that the other tables have of some clients, all of one kind.
// The kind is a condition of its own, because PostgreSQL would read an index to the end of the kind
// if the last name were given as (kind, id) <= ($3, $4). Among 30,000 rows, that took 6.9 ms
// instead of 0.1 ms.
func queueParts(batch *pgx.Batch, after policy.ClientName, clients []Client) {
	last := clients[len(clients)-1].name
	for _, part := range []struct {
		columns, order string
		add            func(pgx.Rows, *cursor) error
	}{
		{"rule, limits, until, reason FROM overrides", "", addLimits},
		{"rule, units, coalesce(window_label, ''), at, reason FROM grants", ", position", addGrants},
		{"until, reason FROM blocks", "", addMarks(func(r *directory.Record, m *directory.Mark) { r.Block = m })},
		{"until, reason FROM exemptions", "", addMarks(func(r *directory.Record, m *directory.Mark) { r.Exempt = m })},
	} {
		batch.Queue("SELECT kind, id, "+part.columns+" WHERE kind = $1 AND id > $2 AND id <= $3 ORDER BY id"+part.order,
			last.Kind, after.ID, last.ID).Query(func(rows pgx.Rows) error { return part.add(rows, &cursor{clients: clients}) })
	}
}

// cursor finds the client of each row. Both the rows and the clients are sorted by name.
type cursor struct {
	clients []Client
	name    policy.ClientName // of the present row
}

// cursor.record returns the record of the client of the present row.
func (c *cursor) record() (*directory.Record, error) {
	for len(c.clients) > 0 && c.clients[0].name != c.name {
		c.clients = c.clients[1:]
	}
	if len(c.clients) == 0 {
		return nil, fmt.Errorf("client %q has rows, and is not in the table of clients", c.name)
	}
	return c.clients[0].Record, nil
}

func addLimits(rows pgx.Rows, c *cursor) error {
	var rule, reason string
	var limits []string
	var until *time.Time
	_, err := pgx.ForEachRow(rows, []any{&c.name.Kind, &c.name.ID, &rule, &limits, &until, &reason}, func() error {
		r, err := c.record()
		if err != nil {
			return err
		}
		if r.Limits == nil {
			r.Limits = map[string]directory.Limits{}
		}
		r.Limits[rule] = directory.Limits{Limits: slices.Clone(limits), Until: instantOf(until), Reason: reason}
		return nil
	})
	return err
}

func addGrants(rows pgx.Rows, c *cursor) error {
	var g directory.Grant
	_, err := pgx.ForEachRow(rows, []any{&c.name.Kind, &c.name.ID, &g.Rule, &g.Units, &g.Window, &g.At, &g.Reason}, func() error {
		r, err := c.record()
		if err == nil {
			r.Grants = append(r.Grants, g)
		}
		return err
	})
	return err
}

// addMarks returns a function that adds blocks or exemptions.
func addMarks(set func(*directory.Record, *directory.Mark)) func(pgx.Rows, *cursor) error {
	return func(rows pgx.Rows, c *cursor) error {
		var m mark
		_, err := pgx.ForEachRow(rows, []any{&c.name.Kind, &c.name.ID, &m.until, &m.reason}, func() error {
			r, err := c.record()
			if err == nil {
				set(r, m.ofRecord())
			}
			return err
		})
		return err
	}
}
