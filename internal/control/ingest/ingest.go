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

// How far the time of a line may be from the time of the control plane. See redate.
const (
	AheadMax = time.Minute
	AgeMax   = 30 * 24 * time.Hour
)

// Ingester writes the batches of nodes to the database. It is safe for concurrent use, even by
// several processes.
type Ingester struct {
	Pool *pgxpool.Pool
	Now  func() time.Time // nil means time.Now
	// Grow creates the partitions for the time around an instant. Take calls it if the partition
	// for a line is missing. If Grow is nil, such a batch fails.
	Grow func(context.Context, time.Time) error
	// Names bounds how many clients without a record get rows of their own in a day. The zero value
	// stands for the default.
	Names NamesMax

	names budget
}

// Batch is what a node sends in one call: lines about what its requests used, with the number of
// the batch.
type Batch struct {
	Feed   string // feed.FeedBytes digits and letters a to f
	Number int64  // the numbers of a feed increase
	Node   string
	Lines  []feed.Line
	// Unread and Altered are copied from the batch's [Content].
	Unread, Altered int64
}

// tries is how often Take tries to write a batch that fails because of another transaction: by a
// deadlock, or because an API key was removed meanwhile. An attempt that fails because a partition
// is missing counts, too.
const tries = 5

// Take writes a batch to the database. The result repeated is true if the batch was written before.
func (i *Ingester) Take(ctx context.Context, b *Batch) (repeated bool, err error) {
	now := time.Now
	if i.Now != nil {
		now = i.Now
	}
	at := now().UTC()
	redated := redate(b.Lines, at)
	for range tries {
		free := func() {}
		err = pgx.BeginFunc(ctx, i.Pool, func(tx pgx.Tx) error {
			if repeated, err = first(ctx, tx, b, at, redated); err != nil || repeated {
				return err
			}
			if err := copyEvents(ctx, tx, b.Lines); err != nil {
				return err
			}
			var unnamed map[string]bool
			if unnamed, free, err = i.unnamed(ctx, tx, b, at); err != nil {
				return err
			}
			return sumsOf(b.Lines, unnamed).write(ctx, tx)
		})
		if err == nil {
			break
		}
		free()
		if !i.mayTryAgain(ctx, err, at) {
			break
		}
	}
	return repeated, err
}

// mayTryAgain reports whether another attempt may succeed after an error. If a partition was
// missing, mayTryAgain creates it first.
func (i *Ingester) mayTryAgain(ctx context.Context, err error, at time.Time) bool {
	failure, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return false
	}
	switch failure.Code {
	case "40P01", "40001", "23503":
		return true
	case "23514": // a line has no partition if no constraint is named
		return failure.ConstraintName == "" && i.Grow != nil && i.Grow(ctx, at) == nil
	}
	return false
}

// redate replaces each time that is too far in the past or in the future by the nearest permitted
// time. It returns how many times it has replaced.
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

// first records the number of the batch, and reports whether it was recorded before. Another
// transaction with the same feed waits for this one.
func first(ctx context.Context, tx pgx.Tx, b *Batch, at time.Time, redated int64) (repeated bool, err error) {
	tag, err := tx.Exec(ctx, "INSERT INTO feeds AS f (feed, node, number, at, batches, lines, redated, unread, altered) "+
		"VALUES ($1, $2, $3, $4, 1, $5, $6, $7, $8) "+
		"ON CONFLICT (feed) DO UPDATE SET number = excluded.number, at = excluded.at, batches = f.batches + 1, lines = f.lines + excluded.lines, "+
		"redated = f.redated + excluded.redated, unread = f.unread + excluded.unread, altered = f.altered + excluded.altered "+
		"WHERE f.number < excluded.number", b.Feed, b.Node, b.Number, at, len(b.Lines), redated, b.Unread, b.Altered)
	return err == nil && tag.RowsAffected() == 0, err
}

var eventColumns = []string{"at", "kind", "policy", "version", "rule", "limited", "decision", "status", "client", "tier", "ip", "method", "path",
	"state", "reason", "node", "region", "seconds", "share", "events", "retry_after_ms", "latency_us"}

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
		row = append(row[:0], l.Time, l.Kind, l.Policy, l.Version, l.Rule, l.Limit, l.Decision,
			int16(l.Status), l.Client, l.Tier, network(l.IP), l.Method, l.Path, l.State,
			l.Reason, l.Node, l.Region, l.Seconds, float32(cmp.Or(l.Share, 1)), l.Count,
			known(l.RetryAfterMS), known(l.LatencyUS))
		return row, nil
	}))
	return err
}

// known returns a number as the value of a column, or nil for 0, which stands for an unknown
// number.
func known(n int64) any {
	if n == 0 {
		return nil
	}
	return n
}

// network returns an address or a network as the value of a column, or nil if there is none.
func network(text string) any {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return prefix
	}
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen())
	}
	return nil
}
