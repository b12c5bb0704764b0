// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/control/database"
	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/directory/redisdir"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/pgtest"
	"github.com/penstock/penstock/internal/test/redistest"
)

func TestMain(m *testing.M) {
	if os.Getenv(childDatabase) != "" {
		os.Exit(child())
	}
	os.Exit(pgtest.Main(m))
}

const patience = 60 * time.Second

// plane is a database and a Redis, with publishers.
type plane struct {
	t      testing.TB
	url    string
	ledger *ledger.Ledger
	redis  *redistest.Server
	source *redisdir.Source
	config *pgx.ConnConfig
	log    eventually.Journal
	region string
}

func newPlane(t testing.TB) *plane {
	t.Helper()
	url := pgtest.Migrated(t, database.Open, database.Migrate)
	config, err := database.Config(url)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := database.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	p := &plane{t: t, url: url, ledger: &ledger.Ledger{Pool: pool}, redis: redistest.Start(t), config: config.ConnConfig}
	store, err := redisstore.New(redisstore.Options{URL: p.redis.URL(), Timeout: redisstore.TimeoutMax})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	p.source = redisdir.New(store)
	return p
}

// plane.start starts a publisher. The returned function end stops the publisher, and waits until it
// has stopped.
func (p *plane) start() (publisher *Publisher, end func()) {
	p.t.Helper()
	return p.startWith(0)
}

// startWith is like start, for a publisher that loses the lock if it does not use the database for
// the given time.
func (p *plane) startWith(frozen time.Duration) (publisher *Publisher, end func()) {
	p.t.Helper()
	publisher = &Publisher{Region: p.region, Database: p.config.Copy(), Ledger: p.ledger, Source: p.source, Logger: slog.New(slog.NewTextHandler(&p.log, nil)), frozen: frozen}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		publisher.Run(ctx)
		close(ended)
	}()
	end = func() {
		cancel()
		<-ended
	}
	p.t.Cleanup(end)
	return publisher, end
}

func (p *plane) edit(e directory.Edit) {
	p.t.Helper()
	e.Reason = "a test"
	if _, err := p.ledger.Edit(p.t.Context(), ledger.Actor{Name: "ops"}, e, ledger.If{}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *plane) block(client string) {
	p.t.Helper()
	p.edit(directory.Edit{Client: client, Action: directory.ActionBlock})
}

// plane.text returns the text of a client's record in Redis, or "".
func (p *plane) text(client string) string {
	p.t.Helper()
	editor := directory.Editor{Source: p.source}
	_, r, err := editor.Look(p.t.Context(), client)
	if err != nil {
		return err.Error()
	}
	if r == nil {
		return ""
	}
	return string(r.Text())
}

const blocked = `{"block":{"reason":"a test"}}`

func (p *plane) awaitText(what, client, text string) {
	p.t.Helper()
	eventually.Until(p.t, patience, what, func() bool { return p.text(client) == text })
}

// TestChangesReachRedis tests that changes of clients and networks are published with their actors,
// that a deleted client has no record, and that an editor over Redis is rejected.
func TestChangesReachRedis(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.start()
	eventually.Until(t, patience, "Redis is filled", p.isComplete)
	for _, client := range []string{"user:bob", "ip:192.0.2.0/24", `user:'; DROP TABLE penstock.clients; --`, "header.x-user:a:b c%d☃"} {
		p.block(client)
		p.awaitText("a block is in Redis", client, blocked)
		p.edit(directory.Edit{Client: client, Action: directory.ActionForget})
		p.awaitText("a client that is forgotten is not in Redis", client, "")
	}
	p.edit(directory.Edit{Client: "user:cid", Action: directory.ActionGrant, Rule: "api", Units: 5, Window: "1h"})
	eventually.Until(t, patience, "a grant is in Redis", func() bool {
		return strings.Contains(p.text("user:cid"), `{"rule":"api","units":5,"window":"1h","at":`)
	})
	p.edit(directory.Edit{Client: "user:cid", Action: directory.ActionUngrant})
	p.awaitText("a grant that is removed is not in Redis", "user:cid", "")
	history, err := p.source.History(t.Context(), mustName(t, "user:bob"), 10)
	if err != nil || len(history) != 2 || history[1].Actor != "ops" || history[1].Action != "block" || history[1].After != blocked {
		t.Errorf("the history in Redis is %+v, %v", history, err)
	}
	editor := directory.Editor{Source: p.source}
	_, err = editor.Apply(t.Context(), directory.Edit{Client: "user:bob", Action: directory.ActionBlock, Actor: "x", Reason: "x"})
	if !errors.Is(err, directory.ErrEdit) || !strings.Contains(err.Error(), "a control plane owns this directory") {
		t.Errorf("an edit of Redis beside the control plane: %v", err)
	}
}

// TestAnEmptiedRedisIsFilled tests that all records are written again, and that the generation is
// set last.
func TestAnEmptiedRedisIsFilled(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.block("user:u_2000")
	p.writeClients(2*pageMax + 1)
	p.block("ip:192.0.2.7")
	p.start()
	eventually.Until(t, patience, "Redis is filled", p.isComplete)
	for range 2 {
		for _, client := range []string{"user:m_1", fmt.Sprintf("user:m_%d", 2*pageMax+1), "ip:192.0.2.7", "user:u_2000"} {
			if text := p.text(client); text != blocked {
				t.Errorf("Redis is whole, and %s has %q", client, text)
			}
		}
		if err := p.redis.Client().FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		eventually.Until(t, patience, "Redis is filled again", p.isComplete)
	}
}

// isComplete reports whether Redis has the generation of a control plane.
func (p *plane) isComplete() bool {
	g, err := p.source.Generation(p.t.Context())
	return err == nil && strings.HasPrefix(g, directory.ControlledPrefix)
}

// writeClients writes n clients in one statement, without changes.
func (p *plane) writeClients(n int) {
	p.t.Helper()
	for _, statement := range []string{
		"INSERT INTO clients (kind, id, revision, updated_at) SELECT 'user', 'm_' || i, 1, now() FROM generate_series(1, $1::int) i",
		"INSERT INTO blocks (kind, id, reason) SELECT 'user', 'm_' || i, 'a test' FROM generate_series(1, $1::int) i",
	} {
		err := pgx.BeginFunc(p.t.Context(), p.ledger.Pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(p.t.Context(), "SET LOCAL penstock.writer = 'control'"); err != nil {
				return err
			}
			_, err := tx.Exec(p.t.Context(), statement, n)
			return err
		})
		if err != nil {
			p.t.Fatal(err)
		}
	}
}

// TestOneOfTwoPublishes tests that a second process stands by, and publishes when the first ends.
func TestOneOfTwoPublishes(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	first, endFirst := p.start()
	eventually.Until(t, patience, "the first publishes", first.Leading)
	second, _ := p.start()
	p.block("user:bob")
	p.awaitText("the first has published", "user:bob", blocked)
	if second.Leading() {
		t.Error("both publish")
	}
	endFirst()
	p.block("user:ann")
	p.awaitText("the second publishes", "user:ann", blocked)
	if !second.Leading() || first.Leading() {
		t.Errorf("the first publishes: %t, the second: %t", first.Leading(), second.Leading())
	}
}

// TestAPublisherThatHangsLosesTheLock tests that the database takes the lock from a process that
// sends no queries, here because it waits for Redis.
func TestAPublisherThatHangsLosesTheLock(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	first, _ := p.startWith(3 * time.Second)
	eventually.Until(t, patience, "the first publishes", func() bool { return first.Leading() && p.isComplete() })
	p.redis.Pause()
	second, _ := p.start()
	eventually.Until(t, patience, "the second has the lock", second.Leading)
	p.redis.Resume()
	p.block("user:bob")
	p.awaitText("a change is published", "user:bob", blocked)
}

// TestWhatWasInRedisIsImported tests that the first start imports the existing records, with their
// tiers, and removes unreadable ones.
func TestWhatWasInRedisIsImported(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	editor := directory.Editor{Source: p.source}
	for _, e := range []directory.Edit{
		{Client: "user:bob", Action: directory.ActionBlock}, {Client: "user:ann", Action: directory.ActionSetTier, Tier: "gold"},
		{Client: "ip:192.0.2.0/24", Action: directory.ActionBlock}, {Client: "user:cid", Action: directory.ActionGrant, Rule: "api", Units: 5},
	} {
		e.Actor, e.Reason = "x", "a test"
		if _, err := editor.Apply(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.redis.Client().Set(t.Context(), "rl1:~who:user:bad", "no record", 0).Err(); err != nil {
		t.Fatal(err)
	}
	p.start()
	eventually.Until(t, patience, "all is published", func() bool { return strings.Contains(p.log.String(), "all records are in Redis") })
	for client, want := range map[string]string{"user:bob": blocked, "user:ann": `{"tier":"gold"}`, "ip:192.0.2.0/24": blocked} {
		c, err := p.ledger.Client(t.Context(), client)
		if err != nil || string(c.Record.Text()) != want || p.text(client) != want {
			t.Errorf("%s: %v, %v; in Redis %s", client, c, err, p.text(client))
		}
	}
	if c, err := p.ledger.Client(t.Context(), "user:cid"); err != nil || len(c.Record.Grants) != 1 || c.Record.Grants[0].Units != 5 {
		t.Errorf("a grant is not imported: %v, %v", c, err)
	}
	if text := p.text("user:bad"); text != "" {
		t.Errorf("what nobody can read is still there: %s", text)
	}
}

// TestARestoredRedisIsFilledAnew tests that the rows replace the records from a backup of Redis,
// and those that other programs write.
func TestARestoredRedisIsFilledAnew(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	_, end := p.start()
	p.block("user:bob")
	p.awaitText("a block is in Redis", "user:bob", blocked)
	end()
	client := p.redis.Client()
	// This is the write of an old program, which does not know that a control plane owns the
	// directory.
	if err := client.Set(t.Context(), "rl1:~who:user:bob", `{"exempt":{}}`, 0).Err(); err != nil {
		t.Fatal(err)
	}
	name := mustName(t, "user:bob")
	if err := p.source.Announce(t.Context(), name, directory.Entry{Name: name.String()}); err != nil {
		t.Fatal(err)
	}
	_, end = p.start()
	p.awaitText("the row wins", "user:bob", blocked)
	end()
	// As after a restored backup, the generation is the same, and the history ends earlier.
	if err := client.Del(t.Context(), "rl1:~history:{~directory}").Err(); err != nil {
		t.Fatal(err)
	}
	if err := client.Set(t.Context(), "rl1:~who:user:gone", `{"exempt":{}}`, 0).Err(); err != nil {
		t.Fatal(err)
	}
	p.start()
	p.awaitText("what the backup had besides is removed", "user:gone", "")
	p.awaitText("the row wins", "user:bob", blocked)
}

// TestTheRightsThatAreDocumentedAreEnough tests that a publisher works with an ACL user that has
// only the store's rights and those that redisdir names.
func TestTheRightsThatAreDocumentedAreEnough(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	words := []any{"acl", "setuser", "control", "on", ">secret"}
	for word := range strings.FieldsSeq(redisstore.LeastPrivilege + " " + redisdir.ReadPrivilege + " " + redisdir.EditPrivilege + " " + redisdir.BulkPrivilege) {
		words = append(words, word)
	}
	if err := p.redis.Client().Do(t.Context(), words...).Err(); err != nil {
		t.Fatal(err)
	}
	store, err := redisstore.New(redisstore.Options{URL: p.redis.URL(), Username: "control", Password: "secret", Timeout: redisstore.TimeoutMax})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	p.source = redisdir.New(store)
	p.block("user:ann")
	p.start()
	p.awaitText("Redis is filled", "user:ann", blocked)
	p.block("ip:192.0.2.7")
	p.awaitText("a change is published", "ip:192.0.2.7", blocked)
}

// TestTwoDatabasesDoNotFight tests that the publisher of a new database does not take over the
// Redis of another one.
func TestTwoDatabasesDoNotFight(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.start()
	p.block("user:bob")
	p.awaitText("a block is in Redis", "user:bob", blocked)
	other := newPlane(t)
	other.source = p.source
	publisher, _ := other.start()
	eventually.Until(t, patience, "the other one is told", func() bool {
		return strings.Contains(publisher.Trouble(), "another control plane owns the directory")
	})
	if text := p.text("user:bob"); text != blocked {
		t.Errorf("the other database changed the record to %s", text)
	}
}

// TestPublishingOutlivesRedis tests that a change that is made while Redis does not answer is
// published when it answers again.
func TestPublishingOutlivesRedis(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	publisher, _ := p.start()
	p.block("user:bob")
	p.awaitText("a block is in Redis", "user:bob", blocked)
	p.redis.Kill()
	p.block("user:ann")
	eventually.Until(t, patience, "the publisher reports Redis", func() bool { return publisher.Trouble() != "" })
	p.redis.Restart()
	p.awaitText("the change of the outage is published", "user:ann", blocked)
	p.awaitText("and what was before", "user:bob", blocked)
	eventually.Until(t, patience, "the trouble is over", func() bool { return publisher.Trouble() == "" })
}

func mustName(t *testing.T, client string) policy.ClientName {
	t.Helper()
	name, err := directory.ParseName(client)
	if err != nil {
		t.Fatal(err)
	}
	return name
}
