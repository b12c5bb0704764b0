// SPDX-License-Identifier: Apache-2.0

// Package control runs the process of a control plane. The process keeps the schema of the database
// current, serves the API, publishes to Redis, and stores the events and the usage that nodes send.
//
// # Promise
//
// The process starts even if the database and Redis do not answer, and works as soon as they do.
// All state is in the database, so any number of processes over one database can serve the same
// API. For each region, one of these processes publishes the records of clients. Proxies read
// Redis, so they work without a control plane.
//
// # When not to use it
//
// If you need no history, roles or API, use the command penstock client. The command changes the
// directory in Redis, and needs no PostgreSQL.
package control

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/penstock/penstock/internal/control/api"
	"github.com/penstock/penstock/internal/control/archive"
	"github.com/penstock/penstock/internal/control/database"
	"github.com/penstock/penstock/internal/control/ingest"
	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/control/notify"
	"github.com/penstock/penstock/internal/control/publish"
	"github.com/penstock/penstock/internal/control/reports"
	"github.com/penstock/penstock/internal/control/retain"
	"github.com/penstock/penstock/internal/control/rollout"
	"github.com/penstock/penstock/internal/directory/redisdir"
	"github.com/penstock/penstock/internal/listen"
	"github.com/penstock/penstock/internal/published/redispolicy"
	"github.com/penstock/penstock/internal/store/redisstore"
)

const (
	// connectionsMax bounds the connections of callers.
	connectionsMax = 1024
	// callTime bounds the time to read a request, and the time to write an answer.
	callTime       = 15 * time.Second
	idleTime       = 2 * time.Minute
	drainTime      = 10 * time.Second
	streamsMax     = 100 // on one connection
	headerBytesMax = 64 << 10
	// prepareEvery is the pause between two attempts to prepare the database at the start.
	prepareEvery = time.Second
	// readyTime bounds each check of /readyz.
	readyTime = 2 * time.Second
)

// Region is a Redis of proxies, to which the process publishes.
type Region struct {
	// Name is "" if the control plane has no regions; Options.Regions then has only this element.
	Name  string
	Redis *redisstore.Store
}

// Options configures a control plane. All fields but TLS, PolicyKey, Keep, Archive,
// People and Webhooks are required.
type Options struct {
	Database string // the address, as postgres://user@host:5432/name
	Regions  []Region
	Listener net.Listener
	Logger   *slog.Logger
	// TLS is nil for a Unix socket, and for an address that only this machine reaches.
	TLS *tls.Config
	// PolicyKey signs policies. If PolicyKey is nil, no policy is published.
	PolicyKey ed25519.PrivateKey
	// FirstToken is called with a new admin token if the database has never had a token.
	FirstToken func(secret string, expires time.Time) error
	// Keep holds how long events, usage and sums are kept.
	Keep retain.Keep
	// Archive is the bucket to which months are archived before they are dropped; nil if there is
	// none.
	Archive *archive.Bucket
	// People verifies the tokens of people; nil if there is no issuer for them.
	People api.People
	// Webhooks calls the receivers of webhooks; nil if the process calls none.
	Webhooks *notify.Caller
}

// process is a running control plane.
type process struct {
	Options
	pool       *pgxpool.Pool
	ledger     *ledger.Ledger
	keeper     *retain.Keeper
	publishers []*publish.Publisher // in the order of the regions
	rollouts   []*rollout.Rollout   // in the same order
	prepared   atomic.Bool
	readyState atomic.Pointer[string] // what the latest answer of /readyz said, nil before the first
}

// Run serves until the context is done. Run closes the listener.
func Run(ctx context.Context, o Options) error {
	config, err := database.Config(o.Database)
	if err != nil {
		return err
	}
	p := &process{Options: o}
	if p.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	defer p.pool.Close()
	p.ledger = &ledger.Ledger{Pool: p.pool}
	p.keeper = &retain.Keeper{Pool: p.pool, Keep: o.Keep, Logger: o.Logger, Archive: o.Archive != nil}
	var counters []api.Region
	for _, region := range o.Regions {
		counters = append(counters, api.Region{Name: region.Name, Counters: region.Redis, Published: func(ctx context.Context, policy string) ([]byte, error) {
			return redispolicy.Read(ctx, region.Redis, policy)
		}})
		p.publishers = append(p.publishers, &publish.Publisher{Region: region.Name, Database: config.ConnConfig.Copy(), Ledger: p.ledger,
			Source: redisdir.New(region.Redis), Logger: o.Logger})
		p.rollouts = append(p.rollouts, &rollout.Rollout{Region: region.Name, Database: config.ConnConfig.Copy(), Ledger: p.ledger, Redis: region.Redis,
			Key: o.PolicyKey, Logger: o.Logger})
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var running sync.WaitGroup
	defer running.Wait()
	failed := make(chan error, 2)
	ingester := &ingest.Ingester{Pool: p.pool, Grow: p.keeper.Grow}
	running.Go(func() {
		if err := p.prepare(ctx); err != nil {
			failed <- err
			return
		}
		for i := range p.publishers {
			running.Go(func() { p.publishers[i].Run(ctx) })
			running.Go(func() { p.rollouts[i].Run(ctx) })
		}
		running.Go(func() { p.keeper.Run(ctx) })
		running.Go(func() {
			ingester.Run(ctx, func(err error) { o.Logger.Warn("minutes of clients are added up later", "error", err) })
		})
		if o.Archive != nil {
			archiver := &archive.Archiver{Pool: p.pool, Bucket: o.Archive, Keep: o.Keep, Logger: o.Logger}
			running.Go(func() { archiver.Run(ctx) })
		}
		if o.Webhooks != nil {
			notifier := &notify.Notifier{Pool: p.pool, Caller: o.Webhooks, Logger: o.Logger}
			running.Go(func() { notifier.Run(ctx) })
		}
	})
	handler := api.New(api.Options{Ledger: p.ledger, Ingester: ingester, Reports: &reports.Reports{Pool: p.pool},
		Logger: o.Logger, Ready: p.ready, Encode: p.rollouts[0].Encode, ByClient: p.byClient, Notifies: o.Webhooks != nil, People: o.People,
		Regions: counters, PolicyKeys: p.policyKeys()})
	server := p.server(handler)
	running.Go(func() {
		if err := serve(server, listen.NewLimit(o.Listener, connectionsMax, true, o.Logger)); !errors.Is(err, http.ErrServerClosed) {
			failed <- err
		}
	})
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	defer stop() // before the wait for running
	return errors.Join(err, server.Shutdown(ending))
}

// policyKeys returns the public part of PolicyKey.
func (p *process) policyKeys() []ed25519.PublicKey {
	if p.PolicyKey == nil {
		return nil
	}
	return []ed25519.PublicKey{p.PolicyKey.Public().(ed25519.PublicKey)}
}

// byClient returns an error if nodes enforce a policy but cannot enforce it for a share of the
// clients. The error names such nodes of the first region that has any.
func (p *process) byClient(ctx context.Context, policy string) error {
	for _, r := range p.rollouts {
		if err := r.ByClient(ctx, policy); err != nil {
			return err
		}
	}
	return nil
}

// server returns the server of the API. A connection whose caller has not yet shown a valid token
// gets little time.
func (p *process) server(handler http.Handler) *http.Server {
	return &http.Server{Handler: handler, ConnContext: listen.WithConn, TLSConfig: p.TLS, ReadHeaderTimeout: listen.FirstCallTime / 2,
		ReadTimeout: callTime, WriteTimeout: callTime, IdleTimeout: idleTime, MaxHeaderBytes: headerBytesMax,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: streamsMax}, ErrorLog: slog.NewLogLogger(p.Logger.Handler(), slog.LevelDebug)}
}

func serve(server *http.Server, listener net.Listener) error {
	if server.TLSConfig != nil {
		return server.ServeTLS(listener, "", "")
	}
	return server.Serve(listener)
}

// prepare brings the schema to the version of this program, creates missing partitions, and makes
// the first token. While the database does not answer, the method tries again. An error that a
// further attempt could not remove is returned at once.
func (p *process) prepare(ctx context.Context) error {
	said := ""
	for {
		err := database.Migrate(ctx, p.pool)
		if err == nil {
			err = p.keeper.Grow(ctx, time.Now())
		}
		if err == nil {
			err = p.firstToken(ctx)
		}
		switch {
		case err == nil:
			p.prepared.Store(true)
			return nil
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, database.ErrUnfit) || errors.Is(err, errFirstToken):
			return err
		case said != err.Error():
			said = err.Error()
			p.Logger.Warn("the database is not ready; trying again every second", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(prepareEvery):
		}
	}
}

var errFirstToken = errors.New("the first token")

func (p *process) firstToken(ctx context.Context) error {
	secret, token, err := p.ledger.FirstToken(ctx, ledger.Actor{Name: "control", Origin: "start"})
	if err != nil || secret == "" {
		return err
	}
	if err := p.FirstToken(secret, token.ExpiresAt); err != nil {
		return fmt.Errorf("%w is made and cannot be shown: %w; make another with penstock control token", errFirstToken, err)
	}
	return nil
}
