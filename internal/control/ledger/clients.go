// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
)

// Name parses the name of a client, KIND:ID. The error is an [Invalid].
func Name(text string) (policy.ClientName, error) {
	name, err := directory.ParseName(text)
	switch {
	case err != nil:
		return name, &Invalid{Place: "client", Value: text, Text: err.Error()}
	case !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl):
		return name, &Invalid{Place: "client", Value: strings.ToValidUTF8(text, "�"),
			Text: fmt.Sprintf("client %q has a control character, or is not UTF-8: no such client can be named here", text)}
	}
	return name, nil
}

// Client returns a client's record. The error is [ErrNone] if the client has no record.
func (l *Ledger) Client(ctx context.Context, client string) (*Client, error) {
	name, err := Name(client)
	if err != nil {
		return nil, err
	}
	found, err := clientOf(ctx, l.Pool, name)
	if err == nil && found == nil {
		err = ErrNone
	}
	return found, err
}

// Filter selects clients. The zero Filter selects all.
type Filter struct {
	Kind, Tier string
	Blocked    bool // only clients that are blocked now
	Exempt     bool // only clients that are exempt now
}

// Clients returns the next n clients after the given one, sorted by name.
func (l *Ledger) Clients(ctx context.Context, f Filter, after policy.ClientName, n int) ([]Client, error) {
	where, args := []string{"(c.kind, c.id) > ($1, $2)"}, []any{after.Kind, after.ID, n}
	add := func(condition string, value any) {
		args = append(args, value)
		where = append(where, fmt.Sprintf(condition, len(args)))
	}
	if f.Kind != "" {
		add("c.kind = $%d", f.Kind)
	}
	if f.Tier != "" {
		add("c.tier = $%d", f.Tier)
	}
	const marked = "EXISTS (SELECT FROM %s m WHERE m.kind = c.kind AND m.id = c.id AND (m.until IS NULL OR m.until > $%%d))"
	if f.Blocked {
		add(fmt.Sprintf(marked, "blocks"), l.Instant())
	}
	if f.Exempt {
		add(fmt.Sprintf(marked, "exemptions"), l.Instant())
	}
	return clientsOf(ctx, l.Pool, "WHERE "+strings.Join(where, " AND ")+" ORDER BY c.kind, c.id LIMIT $3", args...)
}

// Changed is the result of a write to a client.
type Changed struct {
	Client   string            `json:"client"`
	Before   *directory.Record `json:"before,omitempty" doc:"the record before the change; absent if there was none"`
	After    *directory.Record `json:"after,omitempty" doc:"the record after the change; absent if there is none"`
	Revision int64             `json:"revision" doc:"the number of this change"`
	// Keys is how many API keys were removed with the client.
	Keys int `json:"keys_removed,omitempty" doc:"how many API keys of the client were removed, by forget"`
}

// Edit makes an edit of a client. Edit.Actor is the actor's name. Forgetting a client also removes
// its API keys.
func (l *Ledger) Edit(ctx context.Context, actor Actor, edit directory.Edit, require If) (*Changed, error) {
	edit.Actor = actor.Name
	now := l.Instant()
	return l.change(ctx, actor, edit.Client, edit.String(), edit.Reason, require, func(before *directory.Record) (*directory.Record, error) {
		after, err := edit.After(before, now)
		if err != nil {
			return nil, &Invalid{Value: edit.String(), Text: err.Error()}
		}
		return after, nil
	})
}

// Replace replaces the whole record of a client. A nil record, or one without settings, removes it.
func (l *Ledger) Replace(ctx context.Context, actor Actor, client string, record *directory.Record, reason string, require If) (*Changed, error) {
	now := l.Instant()
	return l.change(ctx, actor, client, "replace", reason, require, func(before *directory.Record) (*directory.Record, error) {
		if record == nil {
			return nil, nil
		}
		if err := record.CheckReplacement(before, now); err != nil {
			return nil, invalidRecord(record, err)
		}
		return record, nil
	})
}

// Part holds the parts of a record that are texts. A nil part is not changed, and an empty one is
// removed.
type Part struct{ Tier, Tenant, Note *string }

// Patch replaces parts of a client's record.
func (l *Ledger) Patch(ctx context.Context, actor Actor, client string, part Part, reason string, require If) (*Changed, error) {
	action := []string{"patch"}
	for _, field := range []struct {
		name  string
		value *string
	}{{"tier", part.Tier}, {"tenant", part.Tenant}, {"note", part.Note}} {
		if field.value != nil {
			action = append(action, field.name)
		}
	}
	if len(action) == 1 {
		return nil, &Invalid{Text: "the change names nothing to change: give tier, tenant or note"}
	}
	now := l.Instant()
	return l.change(ctx, actor, client, strings.Join(action, " "), reason, require, func(before *directory.Record) (*directory.Record, error) {
		after := new(directory.Record)
		if before != nil {
			*after = *before
		}
		for _, field := range []struct{ from, into *string }{{part.Tier, &after.Tier}, {part.Tenant, &after.Tenant}, {part.Note, &after.Note}} {
			if field.from != nil {
				*field.into = *field.from
			}
		}
		if err := after.CheckReplacement(before, now); err != nil {
			return nil, invalidRecord(after, err)
		}
		return after, nil
	})
}

// Ledger.change replaces the record of a client by the result of alter(record).
func (l *Ledger) change(ctx context.Context, actor Actor, client, action, reason string, require If,
	alter func(*directory.Record) (*directory.Record, error)) (changed *Changed, err error) {
	name, err := Name(client)
	if err != nil {
		return nil, err
	}
	if err := checkReason(reason); err != nil {
		return nil, err
	}
	err = l.write(ctx, func(w *writeTx) error {
		present, err := clientOf(ctx, w.tx, name)
		if err != nil {
			return err
		}
		changed = &Changed{Client: name.String()}
		revision := int64(0)
		if present != nil {
			changed.Before, revision = present.Record, present.Revision
		}
		if err := require.check(revision); err != nil {
			return err
		}
		after, err := alter(changed.Before)
		if err != nil {
			return err
		}
		if changed.After, err = w.checked(ctx, after); err != nil {
			return err
		}
		if present == nil && changed.After != nil {
			if err := w.hasRoom(ctx, name); err != nil {
				return err
			}
		}
		if err := w.checkLength(ctx, name, changed.After); err != nil {
			return err
		}
		return w.wrote(ctx, actor, name, action, reason, changed)
	})
	if err != nil {
		return nil, err
	}
	return changed, nil
}

// writeTx.wrote adds the change of a client to the audit trail, and replaces the client's rows.
func (w *writeTx) wrote(ctx context.Context, actor Actor, name policy.ClientName, action, reason string, changed *Changed) error {
	if err := w.note(ctx, Change{Actor: actor.Name, Origin: actor.Origin, What: WhatClient, Subject: changed.Client, Action: action,
		Reason: reason, Before: textOf(changed.Before), After: textOf(changed.After)}); err != nil {
		return err
	}
	changed.Revision = w.last
	if err := w.put(ctx, name, changed.After); err != nil || action != string(directory.ActionForget) {
		return err
	}
	removed, err := w.dropKeys(ctx, actor, name, action, reason)
	changed.Keys = removed
	return err
}

// textOf returns the text of a record, or nil if there is none.
func textOf(r *directory.Record) *string {
	if text := r.Text(); r != nil && text != nil {
		s := string(text)
		return &s
	}
	return nil
}

// checkReason returns an [Invalid] if a reason is not valid.
func checkReason(reason string) error {
	switch {
	case reason == "":
		return &Invalid{Place: "reason", Value: reason, Text: "a reason is missing: say why, for those who look at the history later"}
	case len(reason) > directory.TextBytesMax || !utf8.ValidString(reason) || strings.ContainsFunc(reason, unicode.IsControl):
		return &Invalid{Place: "reason", Value: reason,
			Text: fmt.Sprintf("the reason has a control character, or more than %d bytes: write one short line", directory.TextBytesMax)}
	}
	return nil
}

// windowBytesMax bounds the text of a grant's window.
const windowBytesMax = 100

// writeTx.checked returns the record in its normal form, or nil if it has no settings. The error is
// an [Invalid] if the record is invalid.
func (w *writeTx) checked(ctx context.Context, r *directory.Record) (*directory.Record, error) {
	if r == nil {
		return nil, nil
	}
	if err := r.Check(); err != nil {
		return nil, invalidRecord(r, err)
	}
	for rule, own := range r.Limits {
		if _, err := policy.ParseLimitSet(own.Limits); err != nil { // Check ignores ended limits
			return nil, invalidRecord(r, fmt.Errorf("limits for rule %q: %q: %w", rule, own.Limits, err))
		}
	}
	for i := range r.Grants {
		if g := &r.Grants[i]; len(g.Window) > windowBytesMax {
			return nil, &Invalid{Place: "record.grants", Value: g.Window,
				Text: fmt.Sprintf("the window of a grant has %d bytes, and may have %d: write 1h, 1d or month", len(g.Window), windowBytesMax)}
		}
	}
	normalize(r)
	text := r.Text()
	if len(text) > directory.RecordBytesMax {
		return nil, &Invalid{Place: "record", Value: len(text),
			Text: fmt.Sprintf("the record has %d bytes, and may have %d: give limits to fewer rules, or a tier", len(text), directory.RecordBytesMax)}
	}
	if text == nil {
		return nil, nil
	}
	if r.Tier != "" {
		return r, w.hasTier(ctx, r.Tier)
	}
	return r, nil
}

// hasRoom returns an [Invalid] if the client is a network and the maximum number of networks
// already have a record.
func (w *writeTx) hasRoom(ctx context.Context, name policy.ClientName) error {
	if name.Kind != directory.KindNetwork {
		return nil
	}
	var present int
	if err := w.tx.QueryRow(ctx, "SELECT count(*) FROM clients WHERE kind = $1", name.Kind).Scan(&present); err != nil {
		return err
	}
	if present >= directory.NetworksMax {
		return &Invalid{Place: "client", Value: name.String(), Text: fmt.Sprintf("%d addresses and networks have records, and no more can: "+
			"forget some, or use longer prefixes", present)}
	}
	return nil
}

// checkLength returns an [Invalid] if the client is a network and the records of all networks
// together would be longer than a directory can read. Imported records fit, because they were read
// from a directory.
func (w *writeTx) checkLength(ctx context.Context, name policy.ClientName, after *directory.Record) error {
	if name.Kind != directory.KindNetwork || after == nil {
		return nil
	}
	others, err := clientsOf(ctx, w.tx, "WHERE c.kind = $1 AND c.id <> $2", name.Kind, name.ID)
	if err != nil {
		return err
	}
	total := 1 + directory.NetworkBytes(name.ID, after.Text())
	for _, other := range others {
		total += directory.NetworkBytes(other.name.ID, other.Record.Text())
	}
	if total > directory.NetworksBytesMax {
		return &Invalid{Place: "client", Value: name.String(), Text: fmt.Sprintf("the records of all addresses and networks would have %d bytes, "+
			"and may have %d: forget some, use longer prefixes, or write shorter reasons", total, directory.NetworksBytesMax)}
	}
	return nil
}

// invalidRecord returns an [Invalid] that names the part of the record that err is about.
func invalidRecord(r *directory.Record, err error) error {
	for _, place := range []string{"tier", "tenant", "note", "block", "exempt", "limits", "grant"} {
		if strings.HasPrefix(err.Error(), place) {
			if place == "grant" {
				place = "grants"
			}
			return &Invalid{Place: "record." + place, Value: r, Text: err.Error()}
		}
	}
	return &Invalid{Place: "record", Value: r, Text: err.Error()}
}

// tiersShown is the maximum number of tiers that an error names.
const tiersShown = 20

// hasTier returns an [Invalid] if there is no such tier.
func (w *writeTx) hasTier(ctx context.Context, tier string) error {
	rows, err := w.tx.Query(ctx, "SELECT tier FROM tiers ORDER BY tier = $1 DESC, tier LIMIT $2", tier, tiersShown)
	if err != nil {
		return err
	}
	known, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || slices.Contains(known, tier) {
		return err
	}
	return &Invalid{Place: "tier", Value: tier, Text: fmt.Sprintf("there is no tier %q; there are: %q; a new one is made by PUT /v1/tiers/NAME", tier, known)}
}

// Import writes records that are not in the tables yet, with the tiers that they name. Import
// leaves out invalid records and returns their names.
func (l *Ledger) Import(ctx context.Context, actor Actor, records map[policy.ClientName]*directory.Record) (bad []policy.ClientName, err error) {
	err = l.write(ctx, func(w *writeTx) error {
		bad = bad[:0]
		for name, r := range records {
			if _, err := Name(name.String()); err != nil || r == nil {
				bad = append(bad, name)
				continue
			}
			if err := w.importOne(ctx, actor, name, r); err != nil {
				if invalid := (*Invalid)(nil); errors.As(err, &invalid) {
					bad = append(bad, name)
					continue
				}
				return err
			}
		}
		return nil
	})
	return bad, err
}

func (w *writeTx) importOne(ctx context.Context, actor Actor, name policy.ClientName, r *directory.Record) error {
	present, err := clientOf(ctx, w.tx, name)
	if err != nil || present != nil {
		return err
	}
	if r.Tier != "" {
		if err := w.putTier(ctx, actor, Tier{Tier: r.Tier}, "a record in Redis has it", true); err != nil {
			return err
		}
	}
	if r, err = w.checked(ctx, r); err != nil || r == nil {
		return err
	}
	if err := w.hasRoom(ctx, name); err != nil {
		return err
	}
	if err := w.note(ctx, Change{Actor: actor.Name, Origin: actor.Origin, What: WhatClient, Subject: name.String(), Action: "import",
		Reason: importReason, After: textOf(r)}); err != nil {
		return err
	}
	return w.put(ctx, name, r)
}

// importReason is the reason of each change by an import.
const importReason = "was in Redis before the control plane"
