// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
)

// Tier is a tier that clients may have. The tier's limits are in the policies.
type Tier struct {
	Tier      string    `json:"tier"`
	Note      string    `json:"note,omitempty"`
	Revision  int64     `json:"revision" doc:"the number of the latest change"`
	UpdatedAt time.Time `json:"updated_at"`
}

// Tiers returns the next n tiers after the given one, sorted by name.
func (l *Ledger) Tiers(ctx context.Context, after string, n int) ([]Tier, error) {
	rows, err := l.Pool.Query(ctx, "SELECT tier, note, revision, updated_at FROM tiers WHERE tier > $1 ORDER BY tier LIMIT $2", after, n)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanTier)
}

func scanTier(row pgx.CollectableRow) (t Tier, err error) {
	err = row.Scan(&t.Tier, &t.Note, &t.Revision, &t.UpdatedAt)
	t.UpdatedAt = t.UpdatedAt.UTC()
	return t, err
}

// PutTier makes a tier, or changes its note.
func (l *Ledger) PutTier(ctx context.Context, actor Actor, tier Tier, reason string) (put Tier, err error) {
	if err := checkReason(reason); err != nil {
		return put, err
	}
	err = l.write(ctx, func(w *writeTx) error {
		if err := w.putTier(ctx, actor, tier, reason, false); err != nil {
			return err
		}
		present, err := w.tier(ctx, tier.Tier)
		if err == nil {
			put = *present
		}
		return err
	})
	return put, err
}

// tier returns a tier, or nil if there is none.
func (w *writeTx) tier(ctx context.Context, name string) (*Tier, error) {
	rows, err := w.tx.Query(ctx, "SELECT tier, note, revision, updated_at FROM tiers WHERE tier = $1", name)
	if err != nil {
		return nil, err
	}
	t, err := pgx.CollectExactlyOneRow(rows, scanTier)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return &t, err
}

// putTier writes a tier. If keep is true, an existing tier is not changed.
func (w *writeTx) putTier(ctx context.Context, actor Actor, tier Tier, reason string, keep bool) error {
	if err := checkTier(tier); err != nil {
		return err
	}
	present, err := w.tier(ctx, tier.Tier)
	if err != nil || keep && present != nil {
		return err
	}
	var before *string
	if present != nil {
		before = present.text()
	}
	if err := w.note(ctx, Change{Actor: actor.Name, Origin: actor.Origin, What: WhatTier, Subject: tier.Tier, Action: "put", Reason: reason,
		Before: before, After: tier.text()}); err != nil {
		return err
	}
	_, err = w.tx.Exec(ctx, "INSERT INTO tiers (tier, note, revision, updated_at) VALUES ($1, $2, $3, $4) "+
		"ON CONFLICT (tier) DO UPDATE SET note = excluded.note, revision = excluded.revision, updated_at = excluded.updated_at",
		tier.Tier, tier.Note, w.last, w.now)
	return err
}

// text returns the form of a tier in the audit trail.
func (t *Tier) text() *string {
	text, err := json.Marshal(struct {
		Note string `json:"note,omitempty"`
	}{t.Note})
	if err != nil { // a struct of strings can always be marshaled
		return nil
	}
	s := string(text)
	return &s
}

// checkTier returns a description of the error in a tier, or nil.
func checkTier(t Tier) error {
	for _, field := range []struct {
		place, value string
		least, most  int
	}{{"tier", t.Tier, 1, policy.ValueBytesMax}, {"note", t.Note, 0, directory.TextBytesMax}} {
		if len(field.value) < field.least || len(field.value) > field.most || !utf8.ValidString(field.value) ||
			strings.ContainsFunc(field.value, unicode.IsControl) {
			return &Invalid{Place: field.place, Value: field.value, Text: fmt.Sprintf("%s %q has a control character, or not between %d and %d bytes: "+
				"write a short text", field.place, field.value, field.least, field.most)}
		}
	}
	return nil
}

// DeleteTier removes a tier that no client has.
func (l *Ledger) DeleteTier(ctx context.Context, actor Actor, name, reason string) error {
	if err := checkReason(reason); err != nil {
		return err
	}
	return l.write(ctx, func(w *writeTx) error {
		if checkTier(Tier{Tier: name}) != nil {
			return ErrNone
		}
		present, err := w.tier(ctx, name)
		switch {
		case err != nil:
			return err
		case present == nil:
			return ErrNone
		}
		if err := w.note(ctx, Change{Actor: actor.Name, Origin: actor.Origin, What: WhatTier, Subject: name, Action: "delete", Reason: reason,
			Before: present.text()}); err != nil {
			return err
		}
		_, err = w.tx.Exec(ctx, "DELETE FROM tiers WHERE tier = $1", name)
		if code := (*pgconn.PgError)(nil); errors.As(err, &code) && code.Code == "23503" { // a foreign key
			return &Invalid{Place: "tier", Value: name, Text: fmt.Sprintf("clients have the tier %q, or keys: give them another first; GET /v1/clients?tier=%s and GET /v1/keys list them", name, name)}
		}
		return err
	})
}
