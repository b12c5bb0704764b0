// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"
)

// RestoreMax is the longest time for which a month is restored.
const RestoreMax = 366 * 24 * time.Hour

// Restore restores a month to its table, where the month stays until the given instant. After an
// error, no part of the month is restored. If the database does not know the month, or has lost its
// table, Restore reads the manifest in the bucket.
func (a *Archiver) Restore(ctx context.Context, partition string, now, until time.Time) (restored Totals, err error) {
	m, err := monthOf(partition)
	if err != nil {
		return restored, err
	}
	if !until.After(now) || until.After(now.Add(RestoreMax)) {
		return restored, fmt.Errorf("the end of a restored month, %s, is not within 366 days from now, %s", until.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	err = a.alone(ctx, func(ctx context.Context) error {
		var present bool
		if err := a.Pool.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", "penstock."+partition).Scan(&present); err != nil {
			return err
		}
		if present {
			return fmt.Errorf("the month %s is in the database: nothing is restored; if its table has fewer rows than the archive, drop it and try again", partition)
		}
		s, err := a.load(ctx, m)
		if errors.Is(err, pgx.ErrNoRows) || err == nil && s.state != stateDropped { // the table was dropped by hand
			s, err = a.adopt(ctx, m, now)
		}
		if err != nil {
			return err
		}
		restored = s.totals
		return a.restore(ctx, m, s, until)
	})
	return restored, err
}

// Archiver.adopt records in the database a month of which only the bucket has information.
func (a *Archiver) adopt(ctx context.Context, m *month, now time.Time) (*status, error) {
	s, err := a.readManifest(ctx, m)
	if err != nil {
		return nil, err
	}
	if err := a.readBack(ctx, m, s); err != nil {
		return nil, err
	}
	a.at("adopt")
	return s, pgx.BeginFunc(ctx, a.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "DELETE FROM archive_objects WHERE partition = $1", m.partition); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "INSERT INTO archives (partition, attempt, state, totals, began_at, verified_at, dropped_at) VALUES ($1, $2, $3, $4, $5, $5, $5) "+
			"ON CONFLICT (partition) DO UPDATE SET attempt = $2, state = $3, stale = false, totals = $4, verified_at = $5, dropped_at = $5, until = NULL",
			m.partition, s.attempt, stateDropped, s.totals, now); err != nil {
			return err
		}
		for _, o := range s.objects {
			if err := a.record(ctx, tx, m, s.attempt, o); err != nil {
				return err
			}
		}
		return nil
	})
}

// Archiver.restore copies the objects of a month into a table, and makes the table a partition.
func (a *Archiver) restore(ctx context.Context, m *month, s *status, until time.Time) error {
	return pgx.BeginFunc(ctx, a.Pool, func(tx pgx.Tx) error {
		if err := extendDeadline(ctx, tx); err != nil {
			return err
		}
		a.at("create")
		if _, err := tx.Exec(ctx, "CREATE TABLE "+m.partition+" (LIKE "+m.name+" INCLUDING ALL)"); err != nil {
			return err
		}
		for _, o := range s.objects {
			a.at("copy")
			if err := a.copyObject(ctx, tx, m, o); err != nil {
				return err
			}
		}
		present, err := totalsOf(ctx, tx, m)
		if err != nil {
			return err
		}
		if !present.equal(&s.totals) {
			return &Wrong{m.folder(), fmt.Errorf("%v were restored, and the archive has %v", present, &s.totals)}
		}
		a.at("attach")
		if _, err := tx.Exec(ctx, fmt.Sprintf("ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM ('%s') TO ('%s')", m.name, m.partition,
			m.from.Format(time.DateOnly), m.from.AddDate(0, 1, 0).Format(time.DateOnly))); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, "UPDATE archives SET state = $3, until = $4 WHERE partition = $1 AND state = $2", m.partition, stateDropped, stateRestored, until)
		if err == nil && tag.RowsAffected() != 1 {
			err = errOther
		}
		a.at("restored")
		return err
	})
}

// copyObject copies the rows of an object to the table.
func (a *Archiver) copyObject(ctx context.Context, tx pgx.Tx, m *month, o *object) error {
	var failed error // the error of the copy contains this error only as text
	rows := func(yield func([]any, error) bool) {
		failed = a.readObject(ctx, m, o, func(values []any) error {
			if !yield(values, nil) {
				return errors.New("the copy has ended")
			}
			return nil
		})
		if failed != nil {
			yield(nil, failed)
		}
	}
	next, stop := iter.Pull2(rows)
	defer stop()
	_, err := tx.CopyFrom(ctx, pgx.Identifier{m.partition}, m.columns, pgx.CopyFromFunc(func() ([]any, error) {
		values, err, _ := next()
		return values, err
	}))
	if failed != nil {
		return failed
	}
	return err
}

// manifest describes a month in the bucket, for a restore without the database.
type manifest struct {
	Format  int              `json:"format"`
	Table   string           `json:"table"`
	From    time.Time        `json:"from"`
	To      time.Time        `json:"to"`
	Sums    []string         `json:"sums"` // the names of the sums
	Totals  Totals           `json:"totals"`
	Objects []manifestObject `json:"objects"`
}

// manifestObject is an object in a manifest.
type manifestObject struct {
	Key    string   `json:"key"` // without the prefix of the archive
	Bytes  int64    `json:"bytes"`
	SHA256 string   `json:"sha256"`
	Digest string   `json:"digest"` // the digest of the rows, in the form of this program
	Totals Totals   `json:"totals"`
	Last   []string `json:"last"`
}

func (m *month) manifestKey() string { return m.folder() + ".manifest.json" }

// manifestOf returns the text of a month's manifest.
func manifestOf(m *month, s *status) ([]byte, error) {
	text := manifest{Format: 1, Table: m.name, From: m.from, To: m.from.AddDate(0, 1, 0), Sums: m.sums, Totals: s.totals, Objects: []manifestObject{}}
	for _, o := range s.objects {
		text.Objects = append(text.Objects, manifestObject{o.Key, o.Bytes, hex.EncodeToString(o.SHA256), hex.EncodeToString(o.Digest), o.Totals, o.Last})
	}
	return json.MarshalIndent(text, "", "  ")
}

// readManifest reads the manifest of a month, as the status of a month that was dropped.
func (a *Archiver) readManifest(ctx context.Context, m *month) (*status, error) {
	text, err := a.Bucket.text(ctx, m.manifestKey())
	if errors.Is(err, errMissing) {
		return nil, fmt.Errorf("the month %s is not in the archive %s: %w %s", m.partition, a.Bucket, errMissing, m.manifestKey())
	}
	if err != nil {
		return nil, err
	}
	var read manifest
	if err := json.Unmarshal(text, &read); err != nil {
		return nil, &Wrong{m.manifestKey(), err}
	}
	if read.Format != 1 || read.Table != m.name || !read.From.Equal(m.from) || len(read.Objects) > objectsMax {
		return nil, &Wrong{m.manifestKey(), fmt.Errorf("it is of format %d, of the table %q and the month %s", read.Format, read.Table, read.From.Format("2006-01"))}
	}
	s := &status{state: stateDropped, totals: read.Totals, attempt: newAttempt()}
	for i, o := range read.Objects {
		sum, err := hex.DecodeString(o.SHA256)
		digest, wrong := hex.DecodeString(o.Digest)
		if err := errors.Join(err, wrong); err != nil {
			return nil, &Wrong{m.manifestKey(), fmt.Errorf("the object %q: %w", o.Key, err)}
		}
		s.objects = append(s.objects, &object{Number: i + 1, Key: o.Key, Bytes: o.Bytes, SHA256: sum, Digest: digest, Totals: o.Totals, Last: o.Last})
	}
	return s, nil
}
