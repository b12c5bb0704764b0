// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/control/database"
	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/directory/redisdir"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/published"
	"github.com/penstock/penstock/internal/published/redispolicy"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/pgtest"
	"github.com/penstock/penstock/internal/test/redistest"
)

var signing = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize))

// runIn runs a process that publishes to one region, and returns the process and the region's
// Redis.
func runIn(t *testing.T, database, region string) (*running, *redisstore.Store) {
	t.Helper()
	store, err := redisstore.New(redisstore.Options{URL: redistest.Start(t).URL(), Timeout: redisstore.TimeoutMax})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &running{address: listener.Addr().String(), ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	r.end = cancel
	t.Cleanup(cancel)
	go func() {
		r.ended <- Run(ctx, Options{Database: database, Regions: []Region{{Name: region, Redis: store}}, Listener: listener, PolicyKey: signing,
			Logger: slog.New(slog.NewTextHandler(&r.log, nil)), FirstToken: func(string, time.Time) error { r.tokens.Add(1); return nil }})
	}()
	return r, store
}

// TestTwoProcessesPublishToARegionEach tests two processes over one database, each of which
// publishes to a region of its own. Records and policies reach both regions, and the status covers
// both.
func TestTwoProcessesPublishToARegionEach(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	us, usRedis := runIn(t, url, "us")
	eu, euRedis := runIn(t, url, "eu")
	for _, r := range []*running{us, eu} {
		eventually.Until(t, patience, "the process is ready", func() bool { status, _ := r.status("/readyz"); return status == http.StatusOK })
	}
	pool, err := database.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	l, ops := &ledger.Ledger{Pool: pool}, ledger.Actor{Name: "ops"}
	if _, err := l.Edit(t.Context(), ops, directory.Edit{Client: "user:bob", Action: directory.ActionBlock, Reason: "a test"}, ledger.If{}); err != nil {
		t.Fatal(err)
	}
	d := &policyfile.Document{Name: "shop", Rules: []policyfile.Rule{{Name: "api", Limit: policyfile.Words{"3/1m"}}}}
	if _, err := l.PutPolicy(t.Context(), ops, d, "a test", ledger.If{}); err != nil {
		t.Fatal(err)
	}
	encode := func(*ledger.Publication, *ledger.Revision, *ledger.Revision) error { return nil }
	if _, err := l.Publish(t.Context(), ops, "shop", ledger.Publish{Step: ledger.StepAll}, "a test", encode); err != nil {
		t.Fatal(err)
	}
	for region, store := range map[string]*redisstore.Store{"us": usRedis, "eu": euRedis} {
		editor := directory.Editor{Source: redisdir.New(store)}
		eventually.Until(t, patience, "the record is in "+region, func() bool {
			_, r, err := editor.Look(t.Context(), "user:bob")
			return err == nil && r != nil && r.Block != nil
		})
		eventually.Until(t, patience, "the policy is in "+region, func() bool {
			text, err := redispolicy.Read(t.Context(), store, "shop")
			_, wrong := published.Open(text, "shop", []ed25519.PublicKey{signing.Public().(ed25519.PublicKey)})
			return err == nil && wrong == nil
		})
	}
	eventually.Until(t, patience, "the status says that both are current", func() bool {
		regions, err := l.Regions(t.Context())
		if err != nil || len(regions) != 2 {
			return false
		}
		for _, r := range regions {
			if !r.Published || !r.Complete || r.Behind != 0 || r.Policies != 1 || len(r.Missing) != 0 {
				return false
			}
		}
		return true
	})
	eu.end()
	if err := <-eu.ended; err != nil {
		t.Errorf("the process ends with %v", err)
	}
	eventually.Until(t, patience, "the status says that nobody publishes to eu", func() bool {
		regions, err := l.Regions(t.Context())
		return err == nil && len(regions) == 2 && regions[0].Region == "eu" && !regions[0].Published && regions[1].Published
	})
}
