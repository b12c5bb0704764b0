// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/penstock/penstock/internal/control/retain"
)

// Archiver.write writes the missing objects of a month.
func (a *Archiver) write(ctx context.Context, m *month, s *status) error {
	var last []string
	total := new(Totals)
	for _, o := range s.objects {
		last = o.Last
		total.addRows(o.Totals.Rows, o.Totals.Sums...)
	}
	for number := len(s.objects) + 1; ; number++ {
		a.at("object")
		o, err := a.writeObject(ctx, m, number, last)
		if err != nil {
			return err
		}
		if o == nil {
			break
		}
		a.at("record")
		if err := a.record(ctx, a.Pool, m, s.attempt, o); err != nil {
			return err
		}
		last = o.Last
		total.addRows(o.Totals.Rows, o.Totals.Sums...)
		a.Logger.Info("an object of the archive is written", "key", o.Key, "rows", o.Totals.Rows, "bytes", o.Bytes)
	}
	a.at("written")
	return a.pass(ctx, m, s, stateWritten, total, nil)
}

// execer is a pool or a transaction.
type execer interface {
	Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error)
}

// Archiver.record records an object of an attempt, if that attempt is still the current one.
func (a *Archiver) record(ctx context.Context, e execer, m *month, attempt string, o *object) error {
	tag, err := e.Exec(ctx, "INSERT INTO archive_objects (partition, number, key, bytes, sha256, digest, totals, last) "+
		"SELECT $1, $2, $3, $4, $5, $6, $7, $8 FROM archives WHERE partition = $1 AND attempt = $9",
		m.partition, o.Number, o.Key, o.Bytes, o.SHA256, o.Digest, o.Totals, o.Last, attempt)
	if err == nil && tag.RowsAffected() != 1 {
		err = errOther
	}
	return err
}

// newAttempt returns the name of an attempt to write a month.
func newAttempt() string { return strings.ToLower(rand.Text()[:10]) }

// writeObject writes the next object of a month, and returns nil if there are no more rows.
func (a *Archiver) writeObject(ctx context.Context, m *month, number int, last []string) (o *object, err error) {
	file, done, err := createTemporary()
	if err != nil {
		return nil, err
	}
	defer done()
	err = pgx.BeginTxFunc(ctx, a.Pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := extendDeadline(ctx, tx); err != nil {
			return err
		}
		query, args := "DECLARE "+m.short+"_page NO SCROLL CURSOR FOR SELECT "+m.query+" FROM "+m.partition, []any{}
		if last != nil {
			query, args = query+" WHERE "+m.after, append(args, last)
		}
		if _, err := tx.Exec(ctx, query+" ORDER BY "+m.order, args...); err != nil {
			return err
		}
		rowsMax := cmp.Or(a.rowsMax, objectRowsMax)
		page := min(fetchRows, rowsMax)
		o, err = m.files.write(ctx, file, page, rowsMax, func() (pgx.Rows, error) { return tx.Query(ctx, fmt.Sprintf("FETCH %d FROM %s_page", page, m.short)) })
		return err
	})
	if err != nil || o.Totals.Rows == 0 {
		return nil, err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	o.Number = number
	o.Key = fmt.Sprintf("%s-%05d-%s.parquet", m.folder(), number, newAttempt())
	a.at("put")
	return o, a.Bucket.put(ctx, o.Key, "application/vnd.apache.parquet", file, o.Bytes)
}

// extendDeadline extends the deadline of a transaction to the time that a month may take.
func extendDeadline(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "SET LOCAL statement_timeout = '30min'; SET LOCAL idle_in_transaction_session_timeout = '10min'; SET LOCAL lock_timeout = '5s'",
		pgx.QueryExecModeSimpleProtocol)
	return err
}

// Archiver.verify reads a month back, writes the manifest, and removes what killed attempts have
// left.
func (a *Archiver) verify(ctx context.Context, m *month, s *status) error {
	a.at("verify")
	if err := a.readBack(ctx, m, s); err != nil {
		return err
	}
	if err := a.notLess(ctx, m, &s.totals); err != nil {
		return err
	}
	text, err := manifestOf(m, s)
	if err != nil {
		return err
	}
	a.at("manifest")
	if err := a.Bucket.put(ctx, m.manifestKey(), "application/json", bytes.NewReader(text), int64(len(text))); err != nil {
		return err
	}
	a.at("clean") // after the manifest, which names only existing objects
	if err := a.clean(ctx, m, s); err != nil {
		return err
	}
	a.at("verified")
	now := time.Now().UTC()
	return a.pass(ctx, m, s, stateVerified, &s.totals, &now)
}

// readBack reads all objects of a month from the bucket, and compares them with what was written.
// The error is a [Wrong] if they differ.
func (a *Archiver) readBack(ctx context.Context, m *month, s *status) error {
	total := new(Totals)
	for _, o := range s.objects {
		if err := a.readObject(ctx, m, o, nil); err != nil {
			return err
		}
		total.addRows(o.Totals.Rows, o.Totals.Sums...)
	}
	if !total.equal(&s.totals) {
		return &Wrong{m.folder(), fmt.Errorf("the objects have %v, and the month has %v", total, &s.totals)}
	}
	return nil
}

// readObject reads a whole object, and compares it with what was written. If both are equal,
// readObject then calls each(...), unless it is nil, with the values of every row.
func (a *Archiver) readObject(ctx context.Context, m *month, o *object, each func(values []any) error) error {
	file, done, err := createTemporary()
	if err != nil {
		return err
	}
	defer done()
	size, sum, err := a.Bucket.get(ctx, o.Key, o.Bytes, file)
	if err != nil {
		return describeObjectError(o.Key, err)
	}
	if size != o.Bytes || string(sum) != string(o.SHA256) {
		return &Wrong{o.Key, fmt.Errorf("it has %d bytes with the SHA-256 %x, and %d with %x were written", size, sum, o.Bytes, o.SHA256)}
	}
	read, err := m.files.read(file, size, nil)
	if err == nil {
		err = o.compare(read)
	}
	if err != nil {
		return &Wrong{o.Key, err}
	}
	if each == nil {
		return nil
	}
	_, err = m.files.read(file, size, each)
	return err
}

// Archiver.replaceable returns an error if the partition of a month has fewer rows than the
// archive.
func (a *Archiver) replaceable(ctx context.Context, m *month) error {
	var present *Totals
	err := pgx.BeginTxFunc(ctx, a.Pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) (err error) {
		if err := extendDeadline(ctx, tx); err != nil {
			return err
		}
		present, err = totalsOf(ctx, tx, m)
		return err
	})
	if err != nil {
		return err
	}
	return a.notLess(ctx, m, present)
}

// notLess returns an error if the totals that are to replace a month in the archive are less than
// those in its manifest. A database that is older than the archive may have only some rows of the
// month. Units and rows of usage may decrease, because units are refunded and clients are
// forgotten, so these are not compared.
func (a *Archiver) notLess(ctx context.Context, m *month, totals *Totals) error {
	before, err := a.readManifest(ctx, m)
	switch {
	case errors.Is(err, errMissing):
		return nil
	case err != nil: // not a Wrong, because writing the month again would not help
		return fmt.Errorf("what the archive has of the month cannot be compared, and is not replaced: %v; use another prefix, or remove the manifest if "+
			"the partition has all rows", err)
	}
	less := totals.Rows == 0 && before.totals.Rows > 0
	for i, column := range m.sums {
		less = less || column != "units" && sumAt(totals.Sums, i).Cmp(sumAt(before.totals.Sums, i)) < 0
	}
	if less {
		return fmt.Errorf("the archive %s has more than the partition: %v, and the partition has %v; nothing is replaced: drop the partition and run "+
			"penstock control archive restore %s, or use another prefix", a.Bucket, &before.totals, totals, m.partition)
	}
	return nil
}

// Archiver.clean removes objects of a month that belong to attempts that were killed. A bucket that
// locks objects against removal keeps these objects, too.
func (a *Archiver) clean(ctx context.Context, m *month, s *status) error {
	keys, err := a.Bucket.list(ctx, m.folder()+"-")
	if err != nil {
		return err
	}
	for _, key := range keys {
		if slices.ContainsFunc(s.objects, func(o *object) bool { return o.Key == key }) {
			continue
		}
		if err := a.Bucket.remove(ctx, key); err != nil {
			a.Logger.Warn("an object that an attempt before left could not be removed; it is not in the manifest", "key", key, "error", err)
		}
	}
	return nil
}

// Archiver.drop drops the partition of a month whose archive is verified, or that was restored.
func (a *Archiver) drop(ctx context.Context, m *month, s *status, now time.Time) error {
	a.at("drop")
	err := pgx.BeginFunc(ctx, a.Pool, func(tx pgx.Tx) error {
		if err := extendDeadline(ctx, tx); err != nil {
			return err
		}
		if err := retain.Lock(ctx, tx); err != nil {
			return err
		}
		var state, attempt string
		var stale bool
		if err := tx.QueryRow(ctx, "SELECT state, attempt, stale FROM archives WHERE partition = $1 FOR UPDATE", m.partition).Scan(&state, &attempt, &stale); err != nil {
			return err
		}
		if state != s.state || attempt != s.attempt {
			return errOther
		}
		if stale {
			return &Wrong{m.folder(), errors.New("the rows of the month have changed since they were written")}
		}
		if _, err := tx.Exec(ctx, "LOCK TABLE "+m.partition+" IN SHARE MODE"); err != nil {
			return err
		}
		if state == stateVerified {
			present, err := totalsOf(ctx, tx, m)
			if err != nil {
				return err
			}
			if !present.equal(&s.totals) {
				return &Wrong{m.folder(), fmt.Errorf("the partition has %v, and the archive has %v", present, &s.totals)}
			}
		}
		if _, err := tx.Exec(ctx, "DROP TABLE "+m.partition); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE archives SET state = $2, until = NULL, dropped_at = $3 WHERE partition = $1", m.partition, stateDropped, now)
		a.at("commit")
		return err
	})
	if err == nil {
		a.Logger.Info("a month is in the archive, and its partition is dropped", "partition", m.partition, "archive", a.Bucket.String(), "rows", s.totals.Rows,
			"objects", len(s.objects))
	}
	return err
}

// totalsOf returns the totals of a table that has the columns of a relation.
func totalsOf(ctx context.Context, tx pgx.Tx, m *month) (*Totals, error) {
	query := "SELECT count(*)"
	for _, column := range m.sums {
		query += ", coalesce(sum(" + column + "), 0)::text"
	}
	t, texts := new(Totals), make([]string, len(m.sums))
	targets := []any{&t.Rows}
	for i := range texts {
		targets = append(targets, &texts[i])
	}
	if err := tx.QueryRow(ctx, query+" FROM "+m.partition).Scan(targets...); err != nil {
		return nil, err
	}
	for _, text := range texts {
		n, ok := new(big.Int).SetString(text, 10)
		if !ok {
			return nil, fmt.Errorf("the sum %q of %s is no number", text, m.partition)
		}
		t.Sums = append(t.Sums, n)
	}
	return t, nil
}
