// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Ledger reads and writes the rows. A Ledger is safe for concurrent use, even by several processes.
type Ledger struct {
	Pool *pgxpool.Pool
	Now  func() time.Time // nil means time.Now
}

// Invalid is the error of an invalid write, which changes nothing.
type Invalid struct {
	Place string // the part of the write with the value: "tier", "limits"; "" for the whole write
	Value any
	Text  string // what is wrong, and what to write
}

func (e *Invalid) Error() string { return e.Text }

// Errors of the preconditions of a write.
var (
	// ErrNone means that what a call names does not exist, such as a client, a tier or a token.
	ErrNone = errors.New("there is none")
	// ErrChanged means that the row has changed since it was read.
	ErrChanged = errors.New("it has changed since it was read: read it again, and repeat the change if it still applies")
)

// Actor is the origin of a change: a name and an address.
type Actor struct{ Name, Origin string }

// If says under which condition a row is written. The zero If has no condition.
type If struct {
	Revision int64 // the row must have this revision; 0 means any
	Absent   bool  // there must be no row
}

// If.check returns [ErrChanged] unless the row meets the condition. The parameter present is the
// revision of the row, or 0 if there is no row.
func (i If) check(present int64) error {
	if i.Revision != 0 && i.Revision != present || i.Absent && present != 0 {
		return ErrChanged
	}
	return nil
}

// Instant returns the present instant, in the precision of rows.
func (l *Ledger) Instant() time.Time {
	now := time.Now
	if l.Now != nil {
		now = l.Now
	}
	return now().UTC().Truncate(time.Microsecond)
}

// Ledger.write calls do(...) in a transaction. No other transaction writes at the same time.
func (l *Ledger) write(ctx context.Context, do func(*writeTx) error) error {
	return pgx.BeginFunc(ctx, l.Pool, func(tx pgx.Tx) error {
		w := &writeTx{tx: tx, now: l.Instant()}
		// The setting says that the changes need no adoption: see AdoptEdits.
		if err := tx.QueryRow(ctx, "SELECT change, hash, set_config('penstock.writer', 'control', true) FROM chain FOR UPDATE").Scan(
			&w.last, &w.hash, nil); err != nil {
			return err
		}
		before := w.last
		if err := do(w); err != nil || w.last == before {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE chain SET change = $1, hash = $2", w.last, w.hash)
		return err
	})
}

// writeTx is a transaction that holds the lock of the last change.
type writeTx struct {
	tx   pgx.Tx
	now  time.Time
	last int64 // the number of the last change
	hash []byte
}

// writeTx.note appends a change to the audit trail, and sets the number, the instant and the hash
// of the change.
func (w *writeTx) note(ctx context.Context, c Change) error {
	c.Number, c.At = w.last+1, w.now
	c.hash = c.sum(w.hash)
	if _, err := w.tx.Exec(ctx, "INSERT INTO changes (change, at, actor, origin, what, subject, action, reason, before, after, hash) "+
		"VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
		c.Number, c.At, c.Actor, c.Origin, c.What, c.Subject, c.Action, c.Reason, c.Before, c.After, c.hash); err != nil {
		return fmt.Errorf("append a change to the audit trail: %w", err)
	}
	w.last, w.hash = c.Number, c.hash
	return nil
}
