// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Month is a month of the archive, as a list shows it.
type Month struct {
	Partition string     `json:"partition"`
	State     string     `json:"state"`
	Objects   int        `json:"objects"`
	Rows      int64      `json:"rows"`
	Bytes     int64      `json:"bytes"`
	Verified  *time.Time `json:"verified_at,omitempty"`
	Dropped   *time.Time `json:"dropped_at,omitempty"`
	Until     *time.Time `json:"until,omitempty"` // only for a restored month
}

// List returns all months that are or were archived, in the order of their names.
func (a *Archiver) List(ctx context.Context) ([]Month, error) {
	rows, err := a.Pool.Query(ctx, "SELECT a.partition, a.state, count(o.number)::int, coalesce(sum((o.totals->>'rows')::bigint), 0)::bigint, "+
		"coalesce(sum(o.bytes), 0)::bigint, a.verified_at, a.dropped_at, a.until FROM archives a LEFT JOIN archive_objects o USING (partition) "+
		"GROUP BY a.partition ORDER BY a.partition")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (m Month, err error) {
		err = row.Scan(&m.Partition, &m.State, &m.Objects, &m.Rows, &m.Bytes, &m.Verified, &m.Dropped, &m.Until)
		return m, err
	})
}

// Verify reads a whole month back from the bucket, with its manifest, and compares both with what
// the database has recorded about them. The error is a [Wrong] if they differ from it.
func (a *Archiver) Verify(ctx context.Context, partition string) (totals Totals, err error) {
	m, err := monthOf(partition)
	if err != nil {
		return totals, err
	}
	s, err := a.load(ctx, m)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return totals, fmt.Errorf("the month %s is not in the archive, as far as the database knows", partition)
	case err != nil:
		return totals, err
	case s.state != stateVerified && s.state != stateDropped && s.state != stateRestored:
		return totals, fmt.Errorf("the month %s is not in the archive yet: its state is %s", partition, s.state)
	}
	if err := a.readBack(ctx, m, s); err != nil {
		return totals, err
	}
	written, err := a.readManifest(ctx, m)
	if err != nil {
		return totals, err
	}
	if !written.totals.equal(&s.totals) || len(written.objects) != len(s.objects) {
		return totals, &Wrong{m.manifestKey(), fmt.Errorf("it has %v, and the month has %v", &written.totals, &s.totals)}
	}
	for i, o := range s.objects {
		if written.objects[i].Key != o.Key || string(written.objects[i].SHA256) != string(o.SHA256) {
			return totals, &Wrong{m.manifestKey(), fmt.Errorf("it names another object than %s", o.Key)}
		}
	}
	return s.totals, nil
}

// describeObjectError returns the error of a call that concerns an object. If the bucket does not
// have the object, the error is a [Wrong].
func describeObjectError(key string, err error) error {
	if errors.Is(err, errMissing) {
		return &Wrong{key, err}
	}
	return err
}
