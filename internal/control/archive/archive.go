// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/penstock/penstock/internal/control/retain"
)

const (
	// lock is the key of the advisory lock that a process holds while it works on the archive.
	lock = 0x70656e73_0004
	// every is the pause between two rounds, and retryEvery is the pause after a failure.
	every      = time.Hour
	retryEvery = time.Minute
	// aliveEvery is how often the connection of the lock is used, and frozenTime the time after
	// which the database takes the lock from a process that does not respond.
	aliveEvery = 5 * time.Second
	pingTime   = 10 * time.Second
	frozenTime = time.Minute
	// attemptsMax is how many times [Archiver.Round] writes a month to the bucket again if the
	// bucket does not return what was written.
	attemptsMax = 3
)

// The states of a month.
const (
	stateWriting  = "writing"
	stateWritten  = "written"
	stateVerified = "verified"
	stateDropped  = "dropped"
	stateRestored = "restored"
)

// ErrBusy means that another process works on the archive.
var ErrBusy = errors.New("another process works on the archive: wait until it is done")

// Archiver moves months to the archive. The zero Archiver is not usable: set the exported fields.
type Archiver struct {
	Pool   *pgxpool.Pool
	Bucket *Bucket
	Keep   retain.Keep
	Logger *slog.Logger

	rowsMax int          // replaces objectRowsMax; 0 means objectRowsMax
	step    func(string) // is called before each step; for tests
}

// Archiver.at is called before each step at which a test may kill the process.
func (a *Archiver) at(step string) {
	if a.step != nil {
		a.step(step)
	}
}

// Run archives until the context is done.
func (a *Archiver) Run(ctx context.Context) {
	for ctx.Err() == nil {
		pause := every
		_, err := a.Round(ctx, time.Now())
		if err != nil && !errors.Is(err, ErrBusy) && ctx.Err() == nil {
			a.Logger.Warn("the archive is behind; trying again, and months stay in the database meanwhile", "error", err)
			pause = retryEvery
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// Round archives every month whose retention time is over, and drops the restored months whose time
// is over. Round returns the names of these months.
func (a *Archiver) Round(ctx context.Context, now time.Time) (done []string, err error) {
	err = a.alone(ctx, func(ctx context.Context) error {
		if err := a.turnOn(ctx); err != nil {
			return err
		}
		var problems []error
		for _, r := range relations {
			due, err := a.dueMonths(ctx, r, now)
			if err != nil {
				return err
			}
			for _, m := range due {
				if err := a.archive(ctx, m, now); err != nil {
					problems = append(problems, fmt.Errorf("the month %s: %w", m.partition, err))
					continue
				}
				done = append(done, m.partition)
			}
		}
		return errors.Join(problems...)
	})
	return done, err
}

// Archiver.locked calls do(...) in a transaction that holds the lock of package retain. Meanwhile
// no process drops or creates a partition, and none forgets a client.
func (a *Archiver) locked(ctx context.Context, do func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, a.Pool, func(tx pgx.Tx) error {
		if err := retain.Lock(ctx, tx); err != nil {
			return err
		}
		return do(tx)
	})
}

// turnOn records that months must be archived before they are dropped. turnOn waits for any process
// that is dropping months, because that process may have read the previous setting.
func (a *Archiver) turnOn(ctx context.Context) error {
	return a.locked(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "UPDATE archiving SET wanted = true WHERE NOT wanted")
		return err
	})
}

// Off records that months may be dropped without having been archived. Off returns an error if
// there is still a restored month, because only the archive removes restored months.
func (a *Archiver) Off(ctx context.Context) error {
	return a.locked(ctx, func(tx pgx.Tx) error {
		var partition string
		var until time.Time
		err := tx.QueryRow(ctx, "SELECT partition, until FROM archives WHERE state = $1 ORDER BY until DESC LIMIT 1", stateRestored).Scan(&partition, &until)
		if errors.Is(err, pgx.ErrNoRows) {
			_, err = tx.Exec(ctx, "UPDATE archiving SET wanted = false")
			return err
		}
		if err != nil {
			return err
		}
		return fmt.Errorf("the month %s is restored until %s: the archive stays on until then; run penstock control archive run after that, and try again",
			partition, until.UTC().Format(time.RFC3339))
	})
}

// Archiver.alone calls do(...) while this process has the lock of the archive.
func (a *Archiver) alone(ctx context.Context, do func(context.Context) error) error {
	config := a.Pool.Config().ConnConfig.Copy()
	config.RuntimeParams["idle_session_timeout"] = fmt.Sprint(frozenTime.Milliseconds())
	c, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	var got bool
	if err := c.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", int64(lock)).Scan(&got); err != nil {
		return err
	}
	if !got {
		return ErrBusy
	}
	ctx, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
				return
			case <-time.After(aliveEvery):
			}
			// A ping whose context ends closes the connection, so this ping has a context of its
			// own.
			pinging, cancel := context.WithTimeout(context.WithoutCancel(ctx), pingTime)
			err := c.Ping(pinging)
			cancel()
			if err != nil {
				lost(fmt.Errorf("the lock of the archive is lost: %w", err))
			}
		}
	}()
	err = do(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = errors.Join(cause, err)
	}
	lost(nil)
	<-ended
	unlock(ctx, c)
	return err
}

// unlock releases the lock. If the connection were only closed, the lock would be held until the
// server notices.
func unlock(ctx context.Context, c *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pingTime)
	defer cancel()
	_, _ = c.Exec(ctx, "SELECT pg_advisory_unlock($1)", int64(lock)) // a closed connection holds no lock
}

// month is a month of a relation: the partition with its rows, and its first instant.
type month struct {
	*relation
	partition string
	from      time.Time
}

// month.folder returns the folder with the objects of the month.
func (m *month) folder() string { return m.from.Format("2006/01/") + m.short }

// monthOf returns the month that the name of a partition contains.
func monthOf(partition string) (*month, error) {
	for _, r := range relations {
		if text, ok := strings.CutPrefix(partition, r.name+"_"); ok {
			if from, err := time.Parse(retain.MonthForm, text); err == nil {
				return &month{r, partition, from}, nil
			}
		}
	}
	return nil, fmt.Errorf("%q is no month of the archive: write one that penstock control archive list shows, such as %s_2026_01", partition,
		relations[0].name)
}

// dueMonths returns the months of a relation whose retention time is over, and the restored months
// whose time is over.
func (a *Archiver) dueMonths(ctx context.Context, r *relation, now time.Time) (due []*month, err error) {
	partitions, err := retain.Partitions(ctx, a.Pool, r.name)
	if err != nil {
		return nil, err
	}
	restored, err := a.restored(ctx)
	if err != nil {
		return nil, err
	}
	for partition, from := range partitions {
		until, back := restored[partition]
		if back && !until.After(now) || !back && retain.Due(from, r.age(a.Keep.OrDefault()), now) {
			due = append(due, &month{r, partition, from})
		}
	}
	slices.SortFunc(due, func(a, b *month) int { return a.from.Compare(b.from) })
	return due, nil
}

// Archiver.restored returns the restored months, each with the time at which it is dropped again.
func (a *Archiver) restored(ctx context.Context) (map[string]time.Time, error) {
	rows, err := a.Pool.Query(ctx, "SELECT partition, until FROM archives WHERE state = $1", stateRestored)
	if err != nil {
		return nil, err
	}
	until := map[string]time.Time{}
	var partition string
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&partition, &at}, func() error { until[partition] = at; return nil })
	return until, err
}

// Archiver.archive moves a month through its states until the month is dropped.
func (a *Archiver) archive(ctx context.Context, m *month, now time.Time) error {
	a.at("begin")
	if err := a.locked(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO archives (partition, attempt, began_at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", m.partition, newAttempt(), now)
		return err
	}); err != nil {
		return err
	}
	for attempt := 1; ; {
		s, err := a.load(ctx, m)
		if err != nil {
			return err
		}
		switch {
		case s.stale:
			err = a.restartMonth(ctx, m, s)
		case s.state == stateWriting:
			if len(s.objects) == 0 {
				err = a.replaceable(ctx, m)
			}
			if err == nil {
				err = a.write(ctx, m, s)
			}
		case s.state == stateWritten:
			err = a.verify(ctx, m, s)
		case s.state == stateDropped: // a backup from before the drop was restored
			if err = a.replaceable(ctx, m); err == nil {
				err = a.restartMonth(ctx, m, s)
			}
		default:
			if err = a.drop(ctx, m, s, now); err == nil {
				return nil
			}
		}
		if wrong := (*Wrong)(nil); errors.As(err, &wrong) {
			a.Logger.Warn("a month is not in the archive as it was written, and is written again", "partition", m.partition, "error", err)
			if attempt++; attempt > attemptsMax {
				return err
			}
			err = a.restartMonth(ctx, m, s)
		}
		if err != nil {
			return err
		}
	}
}

// Wrong describes how the archive differs from what was written.
type Wrong struct {
	Key string
	Err error
}

func (w *Wrong) Error() string { return fmt.Sprintf("the object %s: %v", w.Key, w.Err) }
func (w *Wrong) Unwrap() error { return w.Err }

// status is the database's information about a month.
type status struct {
	state   string
	attempt string
	stale   bool
	totals  Totals
	until   *time.Time
	objects []*object
}

// Archiver.load reads the database's information about a month.
func (a *Archiver) load(ctx context.Context, m *month) (*status, error) {
	s := new(status)
	err := pgx.BeginTxFunc(ctx, a.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, "SELECT state, attempt, stale, coalesce(totals, '{}'), until FROM archives WHERE partition = $1", m.partition).
			Scan(&s.state, &s.attempt, &s.stale, &s.totals, &s.until); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, "SELECT number, key, bytes, sha256, digest, totals, last FROM archive_objects WHERE partition = $1 ORDER BY number", m.partition)
		if err != nil {
			return err
		}
		s.objects, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (*object, error) {
			o := new(object)
			return o, row.Scan(&o.Number, &o.Key, &o.Bytes, &o.SHA256, &o.Digest, &o.Totals, &o.Last)
		})
		return err
	})
	return s, err
}

// errOther means that another process has begun to work on a month since the month's status was
// read.
var errOther = errors.New("another process has changed the month meanwhile")

// restartMonth begins to write a month again, from its first object, unless another process has
// changed the month. The new objects get other names, so an object that was written before is not
// overwritten.
func (a *Archiver) restartMonth(ctx context.Context, m *month, s *status) error {
	a.at("anew")
	return a.locked(ctx, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, "UPDATE archives SET state = $2, attempt = $3, stale = false, totals = NULL, verified_at = NULL, dropped_at = NULL, until = NULL "+
			"WHERE partition = $1 AND attempt = $4 AND state = $5", m.partition, stateWriting, newAttempt(), s.attempt, s.state)
		if err != nil {
			return err
		}
		if tag.RowsAffected() != 1 {
			return errOther
		}
		_, err = tx.Exec(ctx, "DELETE FROM archive_objects WHERE partition = $1", m.partition)
		return err
	})
}

// Archiver.pass moves a month to its next state, unless the month's rows have changed or another
// process has begun to write the month again.
func (a *Archiver) pass(ctx context.Context, m *month, s *status, to string, totals *Totals, at *time.Time) error {
	_, err := a.Pool.Exec(ctx, "UPDATE archives SET state = $3, totals = $4, verified_at = coalesce($5, verified_at) "+
		"WHERE partition = $1 AND state = $2 AND attempt = $6 AND NOT stale", m.partition, s.state, to, totals, at, s.attempt)
	return err
}
