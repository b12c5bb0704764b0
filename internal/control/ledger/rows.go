// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
)

// Client is a client that has a record.
type Client struct {
	Client    string            `json:"client" doc:"KIND:ID"`
	Record    *directory.Record `json:"record"`
	Revision  int64             `json:"revision" doc:"the number of the latest change"`
	UpdatedAt time.Time         `json:"updated_at"`

	name policy.ClientName
}

// Name returns the name of the client.
func (c *Client) Name() policy.ClientName { return c.name }

// selectClients is the beginning of a query whose rows scanClient reads. The limits and the grants
// are NULL, or JSON as in a record.
const selectClients = `SELECT c.kind, c.id, coalesce(c.tier, ''), coalesce(c.tenant, ''), coalesce(c.note, ''), c.revision, c.updated_at,
	(SELECT json_object_agg(o.rule, json_build_object('limits', o.limits, 'until', o.until, 'reason', o.reason))
		FROM overrides o WHERE o.kind = c.kind AND o.id = c.id),
	(SELECT json_agg(json_build_object('rule', g.rule, 'units', g.units, 'window', g.window_label, 'at', g.at, 'reason', g.reason) ORDER BY g.position)
		FROM grants g WHERE g.kind = c.kind AND g.id = c.id),
	b.until, b.reason, e.until, e.reason
	FROM clients c
	LEFT JOIN blocks b ON b.kind = c.kind AND b.id = c.id
	LEFT JOIN exemptions e ON e.kind = c.kind AND e.id = c.id `

func scanClient(row pgx.CollectableRow) (c Client, err error) {
	r := new(directory.Record)
	var limits, grants []byte
	var block, exempt mark
	if err := row.Scan(&c.name.Kind, &c.name.ID, &r.Tier, &r.Tenant, &r.Note, &c.Revision, &c.UpdatedAt, &limits, &grants,
		&block.until, &block.reason, &exempt.until, &exempt.reason); err != nil {
		return c, err
	}
	for _, part := range []struct {
		text []byte
		into any
	}{{limits, &r.Limits}, {grants, &r.Grants}} {
		if part.text == nil {
			continue
		}
		if err := json.Unmarshal(part.text, part.into); err != nil {
			return c, fmt.Errorf("the rows of %q: %w", c.name, err)
		}
	}
	r.Block, r.Exempt = block.ofRecord(), exempt.ofRecord()
	normalize(r)
	c.Client, c.Record, c.UpdatedAt = c.name.String(), r, c.UpdatedAt.UTC()
	return c, nil
}

// mark is a row of blocks or exemptions. The reason is nil if there is no row.
type mark struct {
	until  *time.Time
	reason *string
}

func (m mark) ofRecord() *directory.Mark {
	if m.reason == nil {
		return nil
	}
	of := &directory.Mark{Reason: *m.reason}
	if m.until != nil {
		of.Until = *m.until
	}
	return of
}

// normalize changes the record to the form in which it is read back: instants in UTC, to the
// microsecond.
func normalize(r *directory.Record) {
	r.Version = 0
	for rule, own := range r.Limits {
		own.Until = instant(own.Until)
		r.Limits[rule] = own
	}
	for _, mark := range []*directory.Mark{r.Block, r.Exempt} {
		if mark != nil {
			mark.Until = instant(mark.Until)
		}
	}
	for i := range r.Grants {
		r.Grants[i].At = instant(r.Grants[i].At)
	}
	if len(r.Limits) == 0 {
		r.Limits = nil
	}
	if len(r.Grants) == 0 {
		r.Grants = nil
	}
}

// instant returns a time as it is read back from a row.
func instant(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC().Truncate(time.Microsecond)
}

// querier is a connection, a pool or a transaction.
type querier interface {
	Query(ctx context.Context, query string, args ...any) (pgx.Rows, error)
}

// clientsOf returns the clients that a query selects. The query is appended to selectClients.
func clientsOf(ctx context.Context, q querier, query string, args ...any) ([]Client, error) {
	rows, err := q.Query(ctx, selectClients+query, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanClient)
}

// clientOf returns a client, or nil if it has no row.
func clientOf(ctx context.Context, q querier, name policy.ClientName) (*Client, error) {
	found, err := clientsOf(ctx, q, "WHERE c.kind = $1 AND c.id = $2", name.Kind, name.ID)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// ClientsOf returns the clients among names that have rows. The connection may be in a transaction.
func ClientsOf(ctx context.Context, c *pgx.Conn, names []policy.ClientName) (map[policy.ClientName]*Client, error) {
	kinds, ids := make([]string, len(names)), make([]string, len(names))
	for i, name := range names {
		kinds[i], ids[i] = name.Kind, name.ID
	}
	found, err := clientsOf(ctx, c, "JOIN unnest($1::text[], $2::text[]) AS n (kind, id) ON c.kind = n.kind AND c.id = n.id", kinds, ids)
	if err != nil {
		return nil, err
	}
	clients := make(map[policy.ClientName]*Client, len(found))
	for i := range found {
		clients[found[i].name] = &found[i]
	}
	return clients, nil
}

// Strangers returns the names that have no rows.
func Strangers(ctx context.Context, c *pgx.Conn, names []policy.ClientName) ([]policy.ClientName, error) {
	kinds, ids := make([]string, len(names)), make([]string, len(names))
	for i, name := range names {
		kinds[i], ids[i] = name.Kind, name.ID
	}
	rows, err := c.Query(ctx, "SELECT n.kind, n.id FROM unnest($1::text[], $2::text[]) AS n (kind, id) "+
		"WHERE NOT EXISTS (SELECT FROM clients c WHERE c.kind = n.kind AND c.id = n.id)", kinds, ids)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[policy.ClientName])
}

// writeTx.put replaces the rows of a client. A nil record removes them.
func (w *writeTx) put(ctx context.Context, name policy.ClientName, r *directory.Record) error {
	batch := new(pgx.Batch)
	if r == nil {
		batch.Queue("DELETE FROM clients WHERE kind = $1 AND id = $2", name.Kind, name.ID)
	} else {
		batch.Queue("INSERT INTO clients (kind, id, tier, tenant, note, revision, updated_at) "+
			"VALUES ($1, $2, nullif($3, ''), nullif($4, ''), nullif($5, ''), $6, $7) ON CONFLICT (kind, id) DO UPDATE "+
			"SET tier = excluded.tier, tenant = excluded.tenant, note = excluded.note, revision = excluded.revision, updated_at = excluded.updated_at",
			name.Kind, name.ID, r.Tier, r.Tenant, r.Note, w.last, w.now)
		for _, table := range []string{"overrides", "grants", "blocks", "exemptions"} {
			batch.Queue("DELETE FROM "+table+" WHERE kind = $1 AND id = $2", name.Kind, name.ID)
		}
		for rule, own := range r.Limits {
			batch.Queue("INSERT INTO overrides (kind, id, rule, limits, until, reason) VALUES ($1, $2, $3, $4, $5, $6)",
				name.Kind, name.ID, rule, own.Limits, instantOrNull(own.Until), own.Reason)
		}
		for i, g := range r.Grants {
			batch.Queue("INSERT INTO grants (kind, id, position, rule, units, window_label, at, reason) VALUES ($1, $2, $3, $4, $5, nullif($6, ''), $7, $8)",
				name.Kind, name.ID, i, g.Rule, g.Units, g.Window, g.At, g.Reason)
		}
		for table, mark := range map[string]*directory.Mark{"blocks": r.Block, "exemptions": r.Exempt} {
			if mark != nil {
				batch.Queue("INSERT INTO "+table+" (kind, id, until, reason) VALUES ($1, $2, $3, $4)",
					name.Kind, name.ID, instantOrNull(mark.Until), mark.Reason)
			}
		}
	}
	return w.tx.SendBatch(ctx, batch).Close()
}

// instantOrNull returns nil for the zero time, which stands for no end.
func instantOrNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
