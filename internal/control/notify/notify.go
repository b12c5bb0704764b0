// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// lock is the key of the advisory lock that a process holds while it sends notices.
	lock = 0x70656e73_0005
	// every is the shortest pause between two rounds. If it takes long to make the notices of a
	// round, the next pause is longer: that time multiplied by pauseTimes. So adding up usage
	// occupies a connection for at most a tenth of the time.
	every      = 10 * time.Second
	pauseTimes = 10
	roundTime  = 10 * time.Minute
	// makeTime bounds the part of a round that makes notices. sendTime bounds how long a round
	// sends to one receiver, apart from the last call; the other notices to that receiver wait for
	// the next round.
	makeTime = roundTime / 2
	sendTime = 30 * time.Second
	// makeErrorsMax is the maximum number of failed thresholds whose errors a round reports.
	makeErrorsMax = 5
	// noticesMax is the maximum number of notices that a round makes for one threshold and month.
	// sentMax is the maximum number of notices that a round sends, for all thresholds together.
	noticesMax = 10_000
	sentMax    = 1000
	// receiversMax is the maximum number of receivers that are called at a time.
	receiversMax = 16
	// firstPause is the pause after the first failure. After each further failure, the pause is
	// twice as long, up to pauseMax.
	firstPause = 10 * time.Second
	pauseMax   = time.Hour
	// giveUpAfter is the time after which a notice is not sent any more.
	giveUpAfter = 72 * time.Hour
	// keptFor is how long a notice is kept after it was sent or abandoned. If usage of the month
	// arrives late, the notice still exists, so no second one is made.
	keptFor         = 400 * 24 * time.Hour
	troubleBytesMax = 300
)

// Notifier makes and sends notices. The zero Notifier is not usable: set the exported fields.
type Notifier struct {
	Pool   *pgxpool.Pool
	Caller *Caller
	Logger *slog.Logger

	making time.Duration    // the duration of the last round's statements; Run pauses ten times as long
	step   func(string)     // is called before each step; for tests
	clock  func() time.Time // measures how long a round takes; [time.Now] unless a test sets it
}

// Notifier.watch returns a stopwatch: a function that returns how long ago watch was called.
func (n *Notifier) watch() func() time.Duration {
	clock := time.Now
	if n.clock != nil {
		clock = n.clock
	}
	began := clock()
	return func() time.Duration { return clock().Sub(began) }
}

func (n *Notifier) at(step string) {
	if n.step != nil {
		n.step(step)
	}
}

// Run makes and sends notices, or stands by while another process does, until the context is done.
func (n *Notifier) Run(ctx context.Context) {
	trouble := ""
	for ctx.Err() == nil {
		err := n.Round(ctx, time.Now())
		text := ""
		if err != nil && ctx.Err() == nil {
			text = err.Error()
		}
		if text != trouble && text != "" {
			n.Logger.Warn("thresholds of usage are not looked at; trying again", "error", err)
		}
		trouble = text
		select {
		case <-ctx.Done():
		case <-time.After(max(every, pauseTimes*n.making)):
		}
	}
}

// Round makes the notices that are missing, and sends the notices that are due at an instant. Round
// does nothing while another process makes and sends notices.
func (n *Notifier) Round(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, roundTime)
	defer cancel()
	c, err := pgx.ConnectConfig(ctx, n.Pool.Config().ConnConfig.Copy())
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	var got bool
	if err := c.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", int64(lock)).Scan(&got); err != nil || !got {
		return err
	}
	// If the connection were only closed, the server would hold the lock until it detects that.
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
		defer cancel()
		_, _ = c.Exec(ctx, "SELECT pg_advisory_unlock($1)", int64(lock))
	}()
	passed := n.watch()
	making := n.make(ctx, now)
	n.making = passed()
	sending := n.send(ctx, now.Add(n.making))
	_, err = n.Pool.Exec(ctx, "DELETE FROM notices WHERE made_at < $1 AND next_at IS NULL", now.Add(-keptFor))
	return errors.Join(making, sending, err)
}

// makeNotices creates the notices of a month for a threshold. It creates none for a month that was
// over before the threshold was written.
const makeNotices = `
INSERT INTO notices (notice, threshold, client, month, percent, policy, rule, used, units, url, made_at, next_at)
SELECT 'msg_' || replace(gen_random_uuid()::text, '-', ''), t.threshold, u.client, $2::date, p.percent, t.policy, t.rule, u.used, t.units, t.url, $3, $3
FROM thresholds t
CROSS JOIN LATERAL (
	SELECT c.client, sum(c.units) AS used FROM client_usage c
	WHERE c.day >= $2::date AND c.day < ($2::date + interval '1 month')::date AND c.policy = t.policy AND c.rule = t.rule AND c.client <> ''
		AND (t.client = '' OR c.client = t.client) AND (t.tier = '' OR c.tier = t.tier)
	GROUP BY c.client HAVING sum(c.units) * 100 >= t.units::numeric * (SELECT min(x) FROM unnest(t.percents) x)
) u
CROSS JOIN LATERAL unnest(t.percents) AS p (percent)
WHERE t.threshold = $1 AND u.used * 100 >= t.units::numeric * p.percent AND t.updated_at < ($2::date + interval '1 month') AT TIME ZONE 'UTC'
	AND NOT EXISTS (SELECT FROM notices n WHERE n.threshold = t.threshold AND n.client = u.client AND n.month = $2::date AND n.percent = p.percent)
ORDER BY u.client, p.percent
LIMIT $4
ON CONFLICT DO NOTHING`

// Notifier.make creates the notices of this month and of the previous month, whose usage may arrive
// late. If a threshold fails, make continues with the other thresholds.
func (n *Notifier) make(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, makeTime)
	defer cancel()
	rows, err := n.Pool.Query(ctx, "SELECT threshold FROM thresholds ORDER BY threshold")
	if err != nil {
		return err
	}
	thresholds, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	now = now.UTC()
	this := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	var problems []error
	for _, threshold := range thresholds {
		for _, month := range []time.Time{this.AddDate(0, -1, 0), this} {
			n.at("make")
			tag, err := n.Pool.Exec(ctx, makeNotices, threshold, month, now, noticesMax)
			if err != nil {
				problems = append(problems, fmt.Errorf("the threshold %q: %w", threshold, err))
				if len(problems) == makeErrorsMax || ctx.Err() != nil {
					return errors.Join(problems...)
				}
			}
			if tag.RowsAffected() == noticesMax {
				n.Logger.Warn("a threshold has more notices than are made at once; the others follow", "threshold", threshold, "notices", noticesMax)
			}
		}
	}
	return errors.Join(problems...)
}

// notice is a notice that must be sent now.
type notice struct {
	id, threshold, client, policy, rule, url, month string
	percent, attempts                               int
	used                                            string // a number
	units                                           int64
	madeAt                                          time.Time
}

// dueNotices selects the notices that must be sent now. It selects the first notice of each
// receiver, then the second of each, so that a receiver with many notices does not delay other
// receivers.
const dueNotices = `
SELECT notice, threshold, client, policy, rule, url, to_char(month, 'YYYY-MM'), percent, attempts, used::text, units, made_at
FROM (SELECT *, row_number() OVER (PARTITION BY url ORDER BY next_at, notice) AS place FROM notices WHERE next_at <= $1) n
ORDER BY place, next_at, notice LIMIT $2`

// Notifier.send sends the notices that must be sent now. It calls up to receiversMax receivers at a
// time. Each of them gets its notices one after another, until one fails.
func (n *Notifier) send(ctx context.Context, now time.Time) error {
	passed := n.watch()
	rows, err := n.Pool.Query(ctx, dueNotices, now, sentMax)
	if err != nil {
		return err
	}
	due, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (o notice, err error) {
		err = row.Scan(&o.id, &o.threshold, &o.client, &o.policy, &o.rule, &o.url, &o.month, &o.percent, &o.attempts, &o.used, &o.units, &o.madeAt)
		return o, err
	})
	if err != nil {
		return err
	}
	byReceiver := map[string][]notice{}
	for _, o := range due {
		byReceiver[o.url] = append(byReceiver[o.url], o)
	}
	var mu sync.Mutex
	var problems []error
	var calls sync.WaitGroup
	turns := make(chan struct{}, receiversMax)
	for _, notices := range byReceiver {
		turns <- struct{}{}
		calls.Go(func() {
			defer func() { <-turns }()
			if err := n.sendTo(ctx, notices, now.Add(passed())); err != nil {
				mu.Lock()
				problems = append(problems, err)
				mu.Unlock()
			}
		})
	}
	calls.Wait()
	return errors.Join(problems...)
}

// pauseAfter returns the pause before the next attempt to send a notice that has failed the given
// number of times.
func pauseAfter(attempts int) time.Duration {
	return min(firstPause<<min(attempts-1, 20), pauseMax)
}

// sendTo sends notices to one receiver, until one fails or sendTime is over. Each attempt is
// counted before it is made, so that a process that is killed during an attempt does not repeat it
// at once.
func (n *Notifier) sendTo(ctx context.Context, notices []notice, began time.Time) error {
	passed := n.watch()
	for i, o := range notices {
		if passed() > sendTime {
			return nil
		}
		n.at("attempt")
		now := began.Add(passed()) // receivers reject a message with an old time
		next := now.Add(pauseAfter(o.attempts + 1))
		tag, err := n.Pool.Exec(ctx, "UPDATE notices SET attempts = attempts + 1, next_at = $2 WHERE notice = $1", o.id, next)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			continue // its client was forgotten meanwhile
		}
		n.at("call")
		err = n.Caller.call(ctx, &o, now)
		n.at("answer")
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			_, err = n.Pool.Exec(ctx, "UPDATE notices SET delivered_at = $2, next_at = NULL, trouble = '' WHERE notice = $1", o.id, now)
			if err != nil {
				return err
			}
			continue
		}
		return n.recordFailure(ctx, notices[i:], now, next, err)
	}
	return nil
}

// recordFailure records that the first of the notices could not be sent. The other notices wait as
// long as the first.
func (n *Notifier) recordFailure(ctx context.Context, notices []notice, now, next time.Time, why error) error {
	o, text := &notices[0], why.Error()
	text = text[:min(len(text), troubleBytesMax)]
	ids := make([]string, len(notices))
	for i := range notices {
		ids[i] = notices[i].id
	}
	if _, err := n.Pool.Exec(ctx, "UPDATE notices SET next_at = $2 WHERE notice = ANY($1)", ids, next); err != nil {
		return err
	}
	n.Logger.Warn("a receiver of notices could not be told; trying again", "threshold", o.threshold, "attempts", o.attempts+1, "again", next, "error", why)
	tag, err := n.Pool.Exec(ctx, "UPDATE notices SET next_at = NULL WHERE notice = ANY($1) AND made_at <= $2", ids, now.Add(-giveUpAfter))
	if err != nil {
		return err
	}
	if tag.RowsAffected() > 0 {
		n.Logger.Error("notices are given up: the receiver could not be told for three days", "threshold", o.threshold, "notices", tag.RowsAffected(), "error", why)
	}
	_, err = n.Pool.Exec(ctx, "UPDATE notices SET trouble = $2 WHERE notice = ANY($1)", ids, makeStorable(text))
	return err
}
