// SPDX-License-Identifier: Apache-2.0

// Package retain creates the partitions of usage, events and sums ahead of time, and drops those
// whose retention time is over.
//
// # Promise
//
// Each table has a partition for the present month, for each of the [Ahead] months after it, and
// for the two months before it, because batches come up to 30 days late. One process at a time
// changes partitions. A partition is dropped when all of its rows are older than the retention time
// of its table. There is no default partition: a row without a partition is rejected, and package
// ingest calls [Keeper.Grow] and writes its batch again. While an archive is in use, package
// archive drops the partitions instead, after copying them.
//
// # When not to use it
//
// The rows of clients, tiers and changes have no retention time.
package retain

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// Ahead is the number of future months that have partitions.
	Ahead = 3
	// behind is the number of past months that have partitions; batches come up to 30 days late.
	behind = 2
	// lock is the key of the advisory lock that a process holds while it changes partitions.
	lock = 0x70656e73_0003
	// lateMost is how old a row can be when it comes: each table has a partition for such a row.
	lateMost = behind * 31 * day
	every    = time.Hour
	// retryEvery is the pause after a failure.
	retryEvery = 10 * time.Second
)

// Keep says for how long rows are kept. 0 stands for the default, which is named at each field.
type Keep struct {
	Events  time.Duration // 90 days
	Denials time.Duration // 13 months
	Minutes time.Duration // 14 days
	Hours   time.Duration // 13 months
	Days    time.Duration // 7 years; also for usage
	Feeds   time.Duration // 400 days after the last batch
}

const day = 24 * time.Hour

// Defaults are the default retention times.
var Defaults = Keep{Events: 90 * day, Denials: 396 * day, Minutes: 14 * day, Hours: 396 * day, Days: 7 * 366 * day, Feeds: 400 * day}

// OrDefault replaces times of 0 by the defaults.
func (k Keep) OrDefault() Keep {
	for _, f := range []struct{ of, or *time.Duration }{{&k.Events, &Defaults.Events}, {&k.Denials, &Defaults.Denials},
		{&k.Minutes, &Defaults.Minutes}, {&k.Hours, &Defaults.Hours}, {&k.Days, &Defaults.Days}, {&k.Feeds, &Defaults.Feeds}} {
		if *f.of == 0 {
			*f.of = *f.or
		}
	}
	return k
}

// table is a table with a partition for each month.
type table struct {
	name     string
	keep     time.Duration
	archived bool // if there is an archive
}

func (k Keep) tables() []table {
	return []table{{"rate_limit_events", k.Events, true}, {"client_denials", k.Denials, false}, {"client_usage", k.Days, true},
		{"client_usage_regions", k.Days, false},
		{"rate_limit_metrics", max(k.Days, k.Hours), false}, {"rate_limit_latencies", max(k.Days, k.Hours), false},
		{"client_minutes", max(k.Minutes, lateMost), false}}
}

// Keeper keeps the partitions. The zero Keeper is not usable: set the exported fields.
type Keeper struct {
	Pool   *pgxpool.Pool
	Keep   Keep
	Logger *slog.Logger
	// Archive makes the keeper leave old partitions to package archive, even before the database
	// records that an archive is used.
	Archive bool
}

// Run keeps the partitions until the context is done.
func (k *Keeper) Run(ctx context.Context) {
	for ctx.Err() == nil {
		pause := every
		if err := k.Round(ctx, time.Now()); err != nil && ctx.Err() == nil {
			k.Logger.Warn("partitions could not be made or dropped; trying again", "error", err)
			pause = retryEvery
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// Round creates missing partitions, and drops those whose retention time is over.
func (k *Keeper) Round(ctx context.Context, now time.Time) error {
	keep := k.Keep.OrDefault()
	return pgx.BeginFunc(ctx, k.Pool, func(tx pgx.Tx) error {
		if err := Lock(ctx, tx); err != nil {
			return err
		}
		var archiving bool
		if err := tx.QueryRow(ctx, "SELECT wanted FROM archiving").Scan(&archiving); err != nil {
			return err
		}
		if err := k.createMissing(ctx, tx, now); err != nil {
			return err
		}
		for _, t := range keep.tables() {
			if (archiving || k.Archive) && t.archived {
				continue // package archive drops them
			}
			if err := k.shrink(ctx, tx, t, now); err != nil {
				return fmt.Errorf("the partitions of %s: %w", t.name, err)
			}
		}
		for granularity, before := range map[string]time.Time{"minute": now.Add(-keep.Minutes), "hour": now.Add(-keep.Hours),
			"day": month(now.Add(-keep.Days), 0)} { // days are kept as long as the months of usage
			for _, table := range []string{"rate_limit_metrics", "rate_limit_latencies"} {
				if _, err := tx.Exec(ctx, "DELETE FROM "+table+" WHERE granularity = $1 AND at < $2", granularity, before); err != nil {
					return err
				}
			}
		}
		for table, before := range map[string]time.Time{"client_minutes": now.Add(-keep.Minutes), "feeds": now.Add(-keep.Feeds)} {
			if _, err := tx.Exec(ctx, "DELETE FROM "+table+" WHERE at < $1", before); err != nil {
				return err
			}
		}
		return nil
	})
}

// month returns the first instant of a month: n = 0 stands for the month of now, n = 1 for the next
// month, and so on.
func month(now time.Time, n int) time.Time {
	now = now.UTC()
	return time.Date(now.Year(), now.Month()+time.Month(n), 1, 0, 0, 0, 0, time.UTC)
}

// MonthForm is the form of the month at the end of a partition's name, after the table and an
// underscore.
const MonthForm = "2006_01"

// partition is a partition that is to be created.
type partition struct {
	name, table string
	from, to    time.Time
}

// Grow creates the missing partitions. If none is missing, Grow does not wait for a process that
// changes partitions.
func (k *Keeper) Grow(ctx context.Context, now time.Time) error {
	missing, err := k.missing(ctx, k.Pool, now)
	if err != nil || len(missing) == 0 {
		return err
	}
	return pgx.BeginFunc(ctx, k.Pool, func(tx pgx.Tx) error {
		if err := Lock(ctx, tx); err != nil {
			return err
		}
		return k.createMissing(ctx, tx, now)
	})
}

// createMissing creates the missing partitions in a transaction that holds the lock.
func (k *Keeper) createMissing(ctx context.Context, tx pgx.Tx, now time.Time) error {
	missing, err := k.missing(ctx, tx, now)
	if err != nil {
		return err
	}
	for _, p := range missing {
		if _, err := tx.Exec(ctx, fmt.Sprintf("CREATE TABLE %s PARTITION OF %s FOR VALUES FROM ('%s') TO ('%s')", p.name, p.table,
			p.from.Format(time.DateOnly), p.to.Format(time.DateOnly))); err != nil {
			return fmt.Errorf("the partitions of %s: %w", p.table, err)
		}
	}
	return nil
}

// missing returns the missing partitions of the months around now. It omits partitions that were
// dropped after they had been archived. If such a partition were created again, it would be empty,
// and package archive would refuse to replace the archived one with it.
func (k *Keeper) missing(ctx context.Context, q querier, now time.Time) (missing []partition, err error) {
	var names []string // constants and digits
	var all []partition
	for _, t := range k.Keep.OrDefault().tables() {
		for n := -behind; n <= Ahead; n++ {
			from, to := month(now, n), month(now, n+1)
			if !to.Before(now.Add(-t.keep)) {
				name := t.name + "_" + from.Format(MonthForm)
				names, all = append(names, name), append(all, partition{name, t.name, from, to})
			}
		}
	}
	rows, err := q.Query(ctx, "SELECT name FROM unnest($1::text[]) name WHERE to_regclass('penstock.' || name) IS NULL "+
		"AND NOT EXISTS (SELECT FROM archives WHERE partition = name AND state = 'dropped')", names)
	if err != nil {
		return nil, err
	}
	absent, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, p := range all {
		if slices.Contains(absent, p.name) {
			missing = append(missing, p)
		}
	}
	return missing, err
}

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, query string, args ...any) (pgx.Rows, error)
}

// Partitions returns the table's partitions that the control plane created, with the beginning of
// each one's month.
func Partitions(ctx context.Context, q querier, table string) (map[string]time.Time, error) {
	rows, err := q.Query(ctx, "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = $1::regclass", "penstock."+table)
	if err != nil {
		return nil, err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	partitions := make(map[string]time.Time, len(names))
	for _, name := range names {
		if from, err := time.Parse(table+"_"+MonthForm, name); err == nil { // a partition whose name has another form was created by hand
			partitions[name] = from
		}
	}
	return partitions, nil
}

// Due reports whether the retention time of a month is over. The parameter from is the beginning of
// the month.
func Due(from time.Time, keep time.Duration, now time.Time) bool {
	return month(from, 1).Before(now.Add(-keep))
}

// Lock takes the advisory lock for changes of partitions. The end of the transaction releases it.
func Lock(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(lock))
	return err
}

// shrink drops the partitions whose retention time is over. Package archive drops those that it has
// restored.
func (k *Keeper) shrink(ctx context.Context, tx pgx.Tx, t table, now time.Time) error {
	partitions, err := Partitions(ctx, tx, t.name)
	if err != nil {
		return err
	}
	rows, err := tx.Query(ctx, "SELECT partition FROM archives WHERE state = 'restored'")
	if err != nil {
		return err
	}
	restored, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for name, from := range partitions {
		if !Due(from, t.keep, now) || slices.Contains(restored, name) {
			continue
		}
		if _, err := tx.Exec(ctx, "DROP TABLE "+pgx.Identifier{name}.Sanitize()); err != nil {
			return err
		}
		k.Logger.Info("dropped a partition, because its retention time is over", "partition", name, "kept", t.keep)
	}
	return nil
}
