// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
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
	Tier string `json:"tier"`
	Note string `json:"note,omitempty"`
	Sold
	Revision  int64     `json:"revision" doc:"the number of the latest change"`
	UpdatedAt time.Time `json:"updated_at"`
}

// Sold says how a tier is sold. The limits of the tier do not depend on it.
type Sold struct {
	DisplayName string `json:"display_name,omitempty" doc:"a name for people"`
	PriceCents  int64  `json:"price_cents" required:"false" minimum:"0" doc:"a month, in hundredths of the currency"`
	Currency    string `json:"currency,omitempty" pattern:"^[A-Z]{3}$" doc:"the currency of the price, such as USD"`
}

// tierColumns are the columns that scanTier reads.
const tierColumns = "tier, note, display_name, price_cents, currency, revision, updated_at"

// Tiers returns the next n tiers after the given one, sorted by name.
func (l *Ledger) Tiers(ctx context.Context, after string, n int) ([]Tier, error) {
	rows, err := l.Pool.Query(ctx, "SELECT "+tierColumns+" FROM tiers WHERE tier > $1 ORDER BY tier LIMIT $2", after, n)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanTier)
}

func scanTier(row pgx.CollectableRow) (t Tier, err error) {
	err = row.Scan(&t.Tier, &t.Note, &t.DisplayName, &t.PriceCents, &t.Currency, &t.Revision, &t.UpdatedAt)
	t.UpdatedAt = t.UpdatedAt.UTC()
	return t, err
}

// PutTier makes a tier, or replaces the note and the [Sold] of one.
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

// writeTx.tier returns a tier, or nil if there is none.
func (w *writeTx) tier(ctx context.Context, name string) (*Tier, error) {
	rows, err := w.tx.Query(ctx, "SELECT "+tierColumns+" FROM tiers WHERE tier = $1", name)
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
	_, err = w.tx.Exec(ctx, "INSERT INTO tiers ("+tierColumns+") VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (tier) DO UPDATE SET note = excluded.note, "+
		"display_name = excluded.display_name, price_cents = excluded.price_cents, currency = excluded.currency, revision = excluded.revision, updated_at = excluded.updated_at",
		tier.Tier, tier.Note, tier.DisplayName, tier.PriceCents, tier.Currency, w.last, w.now)
	return err
}

// Tier.text returns the form of a tier in the audit trail.
func (t *Tier) text() *string {
	text, err := json.Marshal(struct {
		Note string `json:"note,omitempty"`
		Sold
	}{t.Note, t.Sold})
	if err != nil { // a struct of strings can always be marshaled
		return nil
	}
	s := string(text)
	return &s
}

// currency is the pattern of a currency, which a tier without a price may lack.
var currency = regexp.MustCompile(`^([A-Z]{3})?$`)

// checkTier returns an [Invalid] if a tier is not valid.
func checkTier(t Tier) error {
	for _, field := range []struct {
		place, value string
		least, most  int
	}{{"tier", t.Tier, 1, policy.ValueBytesMax}, {"note", t.Note, 0, directory.TextBytesMax}, {"display_name", t.DisplayName, 0, policy.ValueBytesMax}} {
		if len(field.value) < field.least || len(field.value) > field.most || !utf8.ValidString(field.value) ||
			strings.ContainsFunc(field.value, unicode.IsControl) {
			return &Invalid{Place: field.place, Value: field.value, Text: fmt.Sprintf("%s %q has a control character, or not between %d and %d bytes: "+
				"write a short text", field.place, field.value, field.least, field.most)}
		}
	}
	switch {
	case t.PriceCents < 0:
		return &Invalid{Place: "price_cents", Value: t.PriceCents, Text: fmt.Sprintf("price_cents %d is negative: write 0 or more", t.PriceCents)}
	case !currency.MatchString(t.Currency) || t.PriceCents > 0 && t.Currency == "":
		return &Invalid{Place: "currency", Value: t.Currency, Text: fmt.Sprintf("currency %q is no currency: write three capitals, such as USD", t.Currency)}
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
