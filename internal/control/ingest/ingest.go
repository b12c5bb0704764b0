// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/penstock/penstock/internal/feed"
)

// Bounds of the time of a line.
const (
	AheadMax = time.Minute
	AgeMax   = 30 * 24 * time.Hour
)

// Ingester writes batches. It is safe for concurrent use, even by several processes.
type Ingester struct {
	Pool *pgxpool.Pool
	Now  func() time.Time // nil means time.Now
}

// Batch is what a node sends at once.
type Batch struct {
	Feed   string // feed.FeedBytes digits and letters a to f
	Number int64  // the numbers of a feed increase
	Node   string
	Lines  []feed.Line
}

// tries bounds the attempts to write a batch that fails because of another one, such as by a
// deadlock.
const tries = 5

// Take writes a batch. repeated reports that it is in the tables already.
func (i *Ingester) Take(ctx context.Context, b *Batch) (repeated bool, err error) {
	now := time.Now
	if i.Now != nil {
		now = i.Now
	}
	at := now().UTC()
	redated := redate(b.Lines, at)
	sums := sumsOf(b.Lines)
	for range tries {
		err = pgx.BeginFunc(ctx, i.Pool, func(tx pgx.Tx) error {
			if repeated, err = first(ctx, tx, b, at, redated); err != nil || repeated {
				return err
			}
			if err := copyEvents(ctx, tx, b.Lines); err != nil {
				return err
			}
			return sums.write(ctx, tx)
		})
		if code := (*pgconn.PgError)(nil); !errors.As(err, &code) || code.Code != "40P01" && code.Code != "40001" {
			break
		}
	}
	return repeated, err
}

// redate moves times beyond the bounds, and returns how many.
func redate(lines []feed.Line, now time.Time) (moved int64) {
	earliest, latest := now.Add(-AgeMax), now.Add(AheadMax)
	for i := range lines {
		switch l := &lines[i]; {
		case l.Time.Before(earliest):
			l.Time = earliest
		case l.Time.After(latest):
			l.Time = latest
		default:
			l.Time = l.Time.UTC()
			continue
		}
		moved++
	}
	return moved
}

// first records the batch, and reports whether it was recorded before. Another transaction with the
// same feed waits for this one.
func first(ctx context.Context, tx pgx.Tx, b *Batch, at time.Time, redated int64) (repeated bool, err error) {
	tag, err := tx.Exec(ctx, "INSERT INTO feeds AS f (feed, node, number, at, batches, lines, redated) VALUES ($1, $2, $3, $4, 1, $5, $6) "+
		"ON CONFLICT (feed) DO UPDATE SET number = excluded.number, at = excluded.at, batches = f.batches + 1, lines = f.lines + excluded.lines, "+
		"redated = f.redated + excluded.redated WHERE f.number < excluded.number", b.Feed, b.Node, b.Number, at, len(b.Lines), redated)
	return err == nil && tag.RowsAffected() == 0, err
}

var eventColumns = []string{"at", "kind", "policy", "version", "rule", "limited", "decision", "status", "client", "tier", "ip", "method", "path",
	"state", "reason", "node", "seconds", "share", "events"}

// copyEvents writes the events of a batch.
func copyEvents(ctx context.Context, tx pgx.Tx, lines []feed.Line) error {
	next, row := 0, make([]any, len(eventColumns))
	_, err := tx.CopyFrom(ctx, pgx.Identifier{"rate_limit_events"}, eventColumns, pgx.CopyFromFunc(func() ([]any, error) {
		for next < len(lines) && lines[next].Kind == feed.KindUsage {
			next++
		}
		if next == len(lines) {
			return nil, nil
		}
		l := &lines[next]
		next++
		row = append(row[:0], l.Time, l.Kind, storable(l.Policy), storable(l.Version), storable(l.Rule), storable(l.Limit), storable(l.Decision),
			int16(l.Status), storable(l.Client), storable(l.Tier), network(l.IP), storable(l.Method), storable(l.Path), storable(l.State),
			storable(l.Reason), storable(l.Node), l.Seconds, float32(cmp.Or(l.Share, 1)), l.Count)
		return row, nil
	}))
	return err
}

// network returns an address or a network as a value of a row; nil if there is none.
func network(text string) any {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return prefix
	}
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen())
	}
	return nil
}
