// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/control/database"
	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/fleet"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/published"
	"github.com/penstock/penstock/internal/published/redispolicy"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/pgtest"
	"github.com/penstock/penstock/internal/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

const patience = 60 * time.Second

var (
	key = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize))
	ops = ledger.Actor{Name: "ops"}
)

// TestRedisHasWhatTheRowsSay tests that two processes publish a policy, and that a policy that was
// removed or forged in Redis is written again.
func TestRedisHasWhatTheRowsSay(t *testing.T) {
	t.Parallel()
	url, redis := pgtest.Migrated(t, database.Open, database.Migrate), redistest.Start(t)
	config, err := database.Config(url)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := database.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	store, err := redisstore.New(redisstore.Options{URL: redis.URL(), Timeout: redisstore.TimeoutMax})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	l := &ledger.Ledger{Pool: pool}
	ctx, cancel := context.WithCancel(t.Context())
	var rollouts []*Rollout
	ended := make(chan struct{}, 2)
	for range 2 {
		r := &Rollout{Database: config.ConnConfig.Copy(), Ledger: l, Redis: store, Key: key, Logger: slog.New(slog.DiscardHandler)}
		rollouts = append(rollouts, r)
		go func() { r.Run(ctx); ended <- struct{}{} }()
	}
	defer func() { cancel(); <-ended; <-ended }()

	d := &policyfile.Document{Name: "shop", Rules: []policyfile.Rule{{Name: "api", Limit: policyfile.Words{"3/1m"}}}}
	if _, err := l.PutPolicy(t.Context(), ops, d, "a test", ledger.If{}); err != nil {
		t.Fatal(err)
	}
	p, err := l.Publish(t.Context(), ops, "shop", ledger.Publish{Step: ledger.StepAll}, "a test", rollouts[0].Encode)
	if err != nil {
		t.Fatal(err)
	}
	holds := func(what string) {
		t.Helper()
		eventually.Until(t, patience, what, func() bool {
			text, err := redispolicy.Read(t.Context(), store, "shop")
			if err != nil {
				t.Fatal(err)
			}
			m, err := published.Open(text, "shop", []ed25519.PublicKey{key.Public().(ed25519.PublicKey)})
			return err == nil && m.Generation == p.Generation && m.Now.Document.Version() == d.Version()
		})
	}
	holds("the policy is published")
	if err := redis.Client().FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	holds("a policy that was removed is published again")
	if err := redis.Client().Set(t.Context(), "rl1:~policy:{~policy}:shop", "forged", 0).Err(); err != nil {
		t.Fatal(err)
	}
	holds("a forged policy is replaced")
	changedByHand(t, l, d)
	holds("a policy whose rows were changed by SQL is not published")
	if err := (&Rollout{}).Encode(&p.Publication, nil, nil); err == nil || !strings.Contains(err.Error(), "--policy-key") {
		t.Errorf("without a key: %v", err)
	}
}

// changedByHand puts a revision of a policy in force by SQL, with a limit that is not valid. It
// waits until a report says that the policy is not valid.
func changedByHand(t *testing.T, l *ledger.Ledger, d *policyfile.Document) {
	t.Helper()
	next := &policyfile.Document{Name: d.Name, Rules: []policyfile.Rule{{Name: "api", Limit: policyfile.Words{"4/1m"}}}}
	if _, err := l.PutPolicy(t.Context(), ops, next, "a test", ledger.If{}); err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{"ALTER TABLE rate_limit_rules DISABLE TRIGGER revisions_stay", "UPDATE rate_limit_rules SET limits = '{5/bogus}' WHERE revision = 2",
		"UPDATE policies SET revision = 2, generation = generation + 1", "NOTIFY penstock_changes"} {
		if _, err := l.Pool.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	eventually.Until(t, patience, "the reason is known", func() bool {
		all, err := l.Unpublished(t.Context(), policy.ClientName{}, 10)
		if err != nil {
			t.Fatal(err)
		}
		return len(all) == 1 && all[0].Kind == ledger.KindPolicy && all[0].ID == "shop" && strings.Contains(all[0].Problem, "they were changed by SQL")
	})
}

// TestDenialsCountFromTheFirstReport tests which requests count towards a candidate's share of
// denials.
func TestDenialsCountFromTheFirstReport(t *testing.T) {
	tr := &trial{first: map[string]counts{}, last: map[string]count{}}
	record := func(id, version string, rules ...fleet.Rule) *fleet.Record {
		for i := range rules {
			rules[i].Policy = "shop"
		}
		return &fleet.Record{ID: id, Policies: []fleet.Policy{{Name: "shop", Version: "completed", Published: version}}, Rules: rules}
	}
	weighs := func(nodes int, denied, admitted uint64, records ...*fleet.Record) {
		t.Helper()
		if n, d, a := tr.sum("shop", "new", records); n != nodes || d != denied || a != admitted {
			t.Errorf("%d nodes, %d denied, %d admitted; want %d, %d, %d", n, d, a, nodes, denied, admitted)
		}
	}
	weighs(0, 0, 0, record("a", "new", fleet.Rule{Rule: "api", Admitted: 1000, Denied: 500}), record("b", "old", fleet.Rule{Rule: "api", Denied: 9}))
	weighs(1, 30, 90, record("a", "new", fleet.Rule{Rule: "api", Admitted: 1090, Denied: 520}, fleet.Rule{Rule: "other", Admitted: 50, Denied: 10}),
		record("b", "old", fleet.Rule{Rule: "api", Denied: 900}))
	weighs(1, 0, 0, record("a", "new", fleet.Rule{Rule: "api", Admitted: 1000, Denied: 500}), record("b", "new", fleet.Rule{Rule: "api", Denied: 900}))
	weighs(0, 0, 0, record("a", "old", fleet.Rule{Rule: "api", Admitted: 5000, Denied: 5000}))
	for i := range 3 * fleet.NodesMax {
		weighs(0, 0, 0, record(fmt.Sprint("made up ", i), "new"))
	}
	if n := len(tr.first); n > fleet.NodesMax {
		t.Errorf("%d nodes are remembered, and at most %d are read", n, fleet.NodesMax)
	}
	if got := Share(30, 90); got != ledger.Percent(25) {
		t.Errorf("30 of 120 are %v", got)
	}
	if got := Share(0, 0); got != 0 {
		t.Errorf("none of none are %v", got)
	}
}
