// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// Columns returns the columns of the rows that [Archiver.Query] reads for a month.
func Columns(partition string) ([]string, error) {
	m, err := monthOf(partition)
	if err != nil {
		return nil, err
	}
	return slices.Clone(m.columns), nil
}

// Query reads a month from the bucket without restoring it. For every row whose columns have the
// wanted texts, it calls each(...) with the row's values, in the order of the rows. Before the rows
// of an object are used, the object is compared with what was written. If each(...) returns an
// error, the query ends. If the database does not know the month, Query reads the manifest in the
// bucket.
func (a *Archiver) Query(ctx context.Context, partition string, wanted map[string]string, each func(values []any) error) error {
	m, err := monthOf(partition)
	if err != nil {
		return err
	}
	s, err := a.load(ctx, m)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		if s, err = a.readManifest(ctx, m); err != nil {
			return err
		}
	case err != nil:
		return err
	case s.state != stateVerified && s.state != stateDropped && s.state != stateRestored:
		return fmt.Errorf("the month %s is not in the archive yet: its state is %s", partition, s.state)
	}
	at := map[int]string{}
	for column, text := range wanted {
		i := slices.Index(m.columns, column)
		if i < 0 {
			return fmt.Errorf("the rows of %s have no %s", partition, column)
		}
		at[i] = text
	}
	for _, o := range s.objects {
		if err := a.readObject(ctx, m, o, func(values []any) error {
			for i, text := range at {
				if values[i] != text {
					return nil
				}
			}
			return each(values)
		}); err != nil {
			return err
		}
	}
	return nil
}
