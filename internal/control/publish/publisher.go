// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/directory/redisdir"
)

const (
	// standbyEvery is the interval at which other processes try to get the lock, give or take a
	// fifth.
	standbyEvery = time.Second
	// wholeEvery is the interval at which the generation is read, to detect that Redis has lost its
	// records.
	wholeEvery = 2 * time.Second
	// lookEvery is the interval at which the database and the history in Redis are read without a
	// notification, give or take a fifth.
	lookEvery = 30 * time.Second
	// stepTime bounds one step: a page of records, or a look.
	stepTime = 10 * time.Second
	// frozenTime is the time after which the database takes the lock from a process that has
	// stopped responding.
	frozenTime = 2 * stepTime
	// pageMax is how many records are read at a time.
	pageMax = 1000
	// partMax is how many records are written at a time.
	partMax = 100
)

// Publisher publishes to one Redis. Create one with its fields and call Run.
type Publisher struct {
	// Region is the region of the Redis, or "" if the control plane has no regions.
	Region   string
	Database *pgx.ConnConfig
	Ledger   *ledger.Ledger
	Source   *redisdir.Source
	Logger   *slog.Logger

	frozen  time.Duration // replaces frozenTime; 0 means frozenTime
	step    func(string)  // is called before each step; for tests
	leading atomic.Bool
	trouble atomic.Pointer[string]
}

// Publisher.at is called before each step at which a test may kill the process.
func (p *Publisher) at(step string) {
	if p.step != nil {
		p.step(step)
	}
}

// Leading reports whether this process is the one that publishes.
func (p *Publisher) Leading() bool { return p.leading.Load() }

// Trouble returns the reason why this process cannot publish, or "".
func (p *Publisher) Trouble() string {
	if text := p.trouble.Load(); text != nil {
		return *text
	}
	return ""
}

// logTrouble logs the first error of an interruption, and the end of the interruption.
func (p *Publisher) logTrouble(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch before := p.Trouble(); {
	case text != "" && before == "":
		p.Logger.Warn("publishing is interrupted; proxies continue with the records that they have", "region", p.Region, "error", text)
	case text == "" && before != "":
		p.Logger.Info("publishing continues", "region", p.Region)
	}
	p.trouble.Store(&text)
}

// Run publishes, or stands by while another process does, until the context is done.
func (p *Publisher) Run(ctx context.Context) {
	for ctx.Err() == nil {
		err := p.session(ctx)
		p.leading.Store(false)
		if ctx.Err() != nil {
			return
		}
		p.logTrouble(err)
		pause(ctx, jitter(standbyEvery))
	}
}

// jitter returns a random span near the given one, give or take a fifth.
func jitter(span time.Duration) time.Duration { return span - span/5 + rand.N(2*span/5) }

// pause waits for a span, or until the context is done.
func pause(ctx context.Context, span time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(span):
	}
}

// session stands by and publishes until the connection to the database ends.
func (p *Publisher) session(ctx context.Context) error {
	config := p.Database.Copy()
	config.RuntimeParams["idle_session_timeout"] = fmt.Sprint(cmp.Or(p.frozen, frozenTime).Milliseconds())
	c, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	for got := false; !got; {
		if err := c.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", ledger.PublisherLock(p.Region)).Scan(&got); err != nil {
			return err
		}
		if !got {
			p.logTrouble(nil)
			pause(ctx, jitter(standbyEvery))
		}
	}
	if _, err := c.Exec(ctx, "LISTEN penstock_changes"); err != nil {
		return err
	}
	if _, err := c.Exec(ctx, "INSERT INTO region_publications (region) VALUES ($1) ON CONFLICT DO NOTHING", p.Region); err != nil {
		return err
	}
	p.leading.Store(true)
	p.Logger.Info("this process publishes to Redis", "region", p.Region)
	return p.lead(ctx, c)
}

// Publisher.lead publishes until the connection ends.
func (p *Publisher) lead(ctx context.Context, c *pgx.Conn) error {
	l := &lockedPublisher{Publisher: p, c: c, unsure: true}
	look := time.Time{}
	for {
		due := time.Now().After(look)
		err := l.round(ctx, due)
		if ctx.Err() != nil || c.IsClosed() {
			return err
		}
		p.logTrouble(err)
		if err := l.record(ctx, p.Trouble()); err != nil {
			return err
		}
		if l.unsure = err != nil; l.unsure {
			pause(ctx, jitter(standbyEvery))
			continue
		}
		if due {
			look = time.Now().Add(jitter(lookEvery))
		}
		if err := l.await(ctx); err != nil {
			return err
		}
	}
}

// lockedPublisher.record writes to the database whether publishing is interrupted, for the status
// of all regions.
func (l *lockedPublisher) record(ctx context.Context, trouble string) error {
	trouble = strings.ReplaceAll(strings.ToValidUTF8(trouble, "?"), "\x00", "?")
	if l.recorded != nil && *l.recorded == trouble {
		return nil
	}
	_, err := l.c.Exec(ctx, "UPDATE region_publications SET trouble = $2, since = CASE WHEN (trouble = '') = ($2 = '') THEN since ELSE now() END "+
		"WHERE region = $1 AND trouble <> $2", l.Region, trouble)
	l.recorded = &trouble
	return err
}

// lockedPublisher.await waits until a change is announced, or until it is time to read the
// generation.
func (l *lockedPublisher) await(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, wholeEvery)
	defer cancel()
	_, err := l.c.WaitForNotification(waiting)
	if waiting.Err() != nil && ctx.Err() == nil && !l.c.IsClosed() {
		return nil
	}
	return err
}
