// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
)

// KindPolicy is the kind of policies in the table of what is not published.
const KindPolicy = "~policy"

// errNoRecord is wrapped by the reason why the rows of a client or a key are not a valid record.
var errNoRecord = errors.New("the rows are no valid record")

// Problem returns the reason why the rows of a client cannot be published, or "".
func (c *Client) Problem() string {
	_, problem := c.Text()
	return problem
}

// Text returns the text of the client's record, and the reason why it cannot be published, or "".
func (c *Client) Text() (text []byte, problem string) {
	text = c.Record.Text()
	return text, problemOf(c.Client, text, func() error {
		if name, err := Name(c.Client); err != nil || name != c.name {
			return errors.Join(err, fmt.Errorf("%w: the client is %s: write kind and id so", errNoRecord, name))
		}
		return c.Record.Check()
	})
}

// Problem returns the reason why the row of a key cannot be published, or "".
func (k *Key) Problem() string {
	return problemOf(k.Hash, k.Record.Text(), k.Record.Check)
}

func problemOf(name string, text []byte, check func() error) string {
	err := check()
	if err == nil && len(text) > directory.RecordBytesMax {
		err = fmt.Errorf("the record of %.40s has %d bytes, and may have %d", name, len(text), directory.RecordBytesMax)
	}
	if err == nil {
		return ""
	}
	return printableLine(err.Error())
}

// printableLine returns a text as one line, without control characters.
func printableLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "�"))
}

// Unpublished is a client, an API key or a policy whose rows are not valid.
type Unpublished struct {
	Kind    string    `json:"kind" doc:"the kind of a client; ~key for an API key, ~policy for a policy"`
	ID      string    `json:"id" doc:"the identifier of a client, the SHA-256 of a key, or the name of a policy"`
	Problem string    `json:"problem"`
	Since   time.Time `json:"since"`
}

// Unpublished returns the next n entries after a name. For each entry, Redis has the last valid
// state.
func (l *Ledger) Unpublished(ctx context.Context, after policy.ClientName, n int) ([]Unpublished, error) {
	rows, err := l.Pool.Query(ctx, "SELECT kind, id, problem, since FROM unpublished WHERE (kind, id) > ($1, $2) ORDER BY kind, id LIMIT $3", after.Kind, after.ID, n)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (u Unpublished, err error) {
		err = row.Scan(&u.Kind, &u.ID, &u.Problem, &u.Since)
		u.Since = u.Since.UTC()
		return u, err
	})
}

// UnpublishedNames returns the problems of all entries, by name.
func UnpublishedNames(ctx context.Context, c *pgx.Conn) (map[policy.ClientName]string, error) {
	rows, err := c.Query(ctx, "SELECT kind, id, problem FROM unpublished")
	if err != nil {
		return nil, err
	}
	all := map[policy.ClientName]string{}
	var name policy.ClientName
	var problem string
	_, err = pgx.ForEachRow(rows, []any{&name.Kind, &name.ID, &problem}, func() error {
		all[name] = problem
		return nil
	})
	return all, err
}

// SetPolicyProblem records why a policy is not published. An empty problem removes the entry.
func (l *Ledger) SetPolicyProblem(ctx context.Context, policyName, problem string) error {
	return pgx.BeginFunc(ctx, l.Pool, func(tx pgx.Tx) error {
		return SetUnpublished(ctx, tx.Conn(), policy.ClientName{Kind: KindPolicy, ID: policyName}, printableLine(problem))
	})
}

// SetUnpublished records why something is not published. An empty problem removes the entry.
func SetUnpublished(ctx context.Context, c *pgx.Conn, name policy.ClientName, problem string) error {
	if problem == "" {
		_, err := c.Exec(ctx, "DELETE FROM unpublished WHERE kind = $1 AND id = $2", name.Kind, name.ID)
		return err
	}
	_, err := c.Exec(ctx, "INSERT INTO unpublished (kind, id, problem) VALUES ($1, $2, $3) ON CONFLICT (kind, id) DO UPDATE SET problem = excluded.problem",
		name.Kind, name.ID, problem)
	return err
}

// touchedMax is how many clients and keys one call of AdoptEdits takes.
const touchedMax = 500

// takeTouched takes entries out of the table touched, which lists what was changed by SQL. Entries
// that an operator's transaction has locked stay for the next call: waiting for them would delay
// all writers, and could deadlock.
const takeTouched = `WITH o AS MATERIALIZED (SELECT DISTINCT kind, id FROM touched ORDER BY kind, id LIMIT $1),
	c AS MATERIALIZED (SELECT c.kind, c.id FROM clients c JOIN o USING (kind, id) FOR NO KEY UPDATE OF c SKIP LOCKED),
	h AS MATERIALIZED (SELECT decode(id, 'hex') AS hash, id FROM o WHERE kind = $2 AND id ~ '^([0-9a-f]{2})+$'),
	k AS MATERIALIZED (SELECT h.id FROM api_keys JOIN h USING (hash) FOR NO KEY UPDATE OF api_keys SKIP LOCKED),
	gone AS (DELETE FROM touched t USING o WHERE t.kind = o.kind AND t.id = o.id
		AND ((o.kind, o.id) IN (SELECT kind, id FROM c) OR (o.kind, o.id) NOT IN (SELECT kind, id FROM clients JOIN o USING (kind, id)))
		AND (o.kind <> $2 OR o.id IN (SELECT id FROM k) OR o.id NOT IN (SELECT id FROM h JOIN api_keys USING (hash)))
		RETURNING t.*)
	SELECT DISTINCT ON (kind, id) kind, id, by FROM gone ORDER BY kind, id, n DESC`

// AdoptEdits adds changes that were made by SQL to the audit trail, so that they are published. It
// reports whether more such changes may be left.
func (l *Ledger) AdoptEdits(ctx context.Context) (more bool, err error) {
	var some bool
	if err := l.Pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM touched)").Scan(&some); err != nil || !some {
		return false, err
	}
	err = l.write(ctx, func(w *writeTx) error {
		rows, err := w.tx.Query(ctx, takeTouched, touchedMax, policy.KindKey)
		if err != nil {
			return err
		}
		type touched struct{ Kind, ID, By string }
		all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[touched])
		if err != nil {
			return err
		}
		more = len(all) == touchedMax
		for _, one := range all {
			by := Actor{Name: one.By, Origin: "sql"}
			if one.Kind == policy.KindKey {
				err = w.adoptKey(ctx, by, one.ID)
			} else {
				err = w.adoptClient(ctx, by, policy.ClientName{Kind: one.Kind, ID: one.ID})
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	return more, err
}

// The action and the reason of a change by SQL.
const (
	byHand       = "edit by SQL"
	byHandReason = "its rows were changed by SQL"
)

// adoptClient adds a change for a client whose rows were changed by SQL. A client or key that
// cannot be named gets no change, because it is never published.
func (w *writeTx) adoptClient(ctx context.Context, by Actor, name policy.ClientName) error {
	subject := name.String()
	if parsed, err := Name(subject); err != nil || parsed != name {
		return w.markUnnamed(ctx, name)
	}
	present, err := clientOf(ctx, w.tx, name)
	if err != nil {
		return err
	}
	var after *string
	if present != nil {
		after = textOf(present.Record)
	}
	before, err := w.lastText(ctx, "what = $1 AND subject = $2", WhatClient, subject)
	if err != nil {
		return err
	}
	if err := w.note(ctx, Change{Actor: by.Name, Origin: by.Origin, What: WhatClient, Subject: subject, Action: byHand, Reason: byHandReason,
		Before: before, After: after}); err != nil {
		return err
	}
	_, err = w.tx.Exec(ctx, "UPDATE clients SET revision = $3, updated_at = $4 WHERE kind = $1 AND id = $2", name.Kind, name.ID, w.last, w.now)
	return err
}

// markUnnamed records a client whose name is not in the form in which the program writes names.
func (w *writeTx) markUnnamed(ctx context.Context, name policy.ClientName) error {
	var present bool
	if err := w.tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM clients WHERE kind = $1 AND id = $2)", name.Kind, name.ID).Scan(&present); err != nil {
		return err
	}
	if !present {
		_, err := w.tx.Exec(ctx, "DELETE FROM unpublished WHERE kind = $1 AND id = $2", name.Kind, name.ID)
		return err
	}
	_, err := w.tx.Exec(ctx, "INSERT INTO unpublished (kind, id, problem) VALUES ($1, $2, $3) ON CONFLICT (kind, id) DO UPDATE SET problem = excluded.problem",
		name.Kind, name.ID, (&Client{Client: name.String(), name: name, Record: new(directory.Record)}).Problem())
	return err
}

// adoptKey adds a change for a key whose row was changed by SQL.
func (w *writeTx) adoptKey(ctx context.Context, by Actor, hash string) error {
	found, err := keysOf(ctx, w.tx, "WHERE hash = $1", sumOf(hash))
	if err != nil {
		return err
	}
	c := Change{Actor: by.Name, Origin: by.Origin, What: WhatKey, Action: byHand, Reason: byHandReason}
	if len(found) > 0 {
		c.Subject, c.After = found[0].Record.Name, keyText(hash, found[0].Record)
	}
	const of = "what = $1 AND coalesce(after, before) LIKE $2"
	if c.Before, err = w.lastText(ctx, of, WhatKey, `{"hash":"`+hash+`"%`); err != nil {
		return err
	}
	if c.Subject == "" {
		if err := w.tx.QueryRow(ctx, "SELECT coalesce((SELECT subject FROM changes WHERE "+of+" ORDER BY change DESC LIMIT 1), '')", WhatKey,
			`{"hash":"`+hash+`"%`).Scan(&c.Subject); err != nil || c.Subject == "" {
			return err // it was never published
		}
	}
	if c.After == nil && c.Before == nil {
		return nil
	}
	if err := w.note(ctx, c); err != nil {
		return err
	}
	_, err = w.tx.Exec(ctx, "UPDATE api_keys SET revision = $2, updated_at = $3 WHERE hash = $1", sumOf(hash), w.last, w.now)
	return err
}

// lastText returns the text that a record had after the latest change that a condition selects, or
// nil.
func (w *writeTx) lastText(ctx context.Context, condition string, args ...any) (text *string, err error) {
	err = w.tx.QueryRow(ctx, "SELECT after FROM changes WHERE "+condition+" ORDER BY change DESC LIMIT 1", args...).Scan(&text)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return text, err
}
