// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/bridge"
	"github.com/penstock/penstock/internal/rls"
)

// The bounds of serving.
const (
	// drainTime is how long calls under way may take when the bridge is told to stop; those that wait for throttle rules are
	// dismissed a second before.
	drainTime  = 5 * time.Second
	headerTime = 5 * time.Second
	// idleTime is above the hour after which Envoy closes a connection that nobody uses: if both were to do so at the same
	// time, a request would be lost.
	idleTime       = 90 * time.Minute
	headerBytesMax = 16 << 10 // of a call: what requests carry is in its body
	// streamsMax is how many calls of one connection may be under way, those that wait for throttle rules among them.
	streamsMax = 4096
)

// serve serves until it is told to stop.
func (f *bridgeFlags) serve(ctx context.Context, b *bridge.Bridge, store core.Store, e entrances, logger *slog.Logger) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	defer reloads(b, logger)()
	listener, err := e.open(e.http)
	if err != nil {
		return err
	}
	ended := make(chan error, 2)
	server := httpServer(b.Handler(), &e, logger)
	go func() { ended <- serveHTTP(server, listener) }()
	logger.Info("the bridge listens", "address", listener.Addr().String(), "tls", e.tls != nil)
	drainRLS := func() {}
	if e.rls.network != "" {
		if drainRLS, err = f.serveRLS(b, store, &e, ended, logger); err != nil {
			return errors.Join(err, server.Close())
		}
	}
	select {
	case err := <-ended:
		return errors.Join(err, server.Close())
	case <-ctx.Done():
	}
	stop() // a second signal ends the process
	logger.Info("the bridge stops", "after", f.drainDelay)
	b.Leave()
	time.Sleep(f.drainDelay)
	defer time.AfterFunc(drainTime-time.Second, b.Dismiss).Stop()
	ending, end := context.WithTimeout(context.Background(), drainTime)
	defer end()
	drainRLS()
	return server.Shutdown(ending)
}

// reloads reads the policy file at each SIGHUP, until the function it returns is called.
func reloads(b *bridge.Bridge, logger *slog.Logger) (end func()) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	go func() {
		for range hangups {
			if err := b.Reload(); err == nil {
				logger.Info("SIGHUP: the policy file was read")
			}
		}
	}()
	return func() {
		signal.Stop(hangups)
		close(hangups)
	}
}

// httpServer returns what serves both versions of HTTP on one port.
// What it says of single connections is for debugging: whoever connects could fill the log.
func httpServer(handler http.Handler, e *entrances, logger *slog.Logger) *http.Server {
	server := &http.Server{Handler: handler, ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug), ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: headerBytesMax,
		TLSConfig: e.tls, Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: streamsMax}}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(e.tls != nil)
	server.Protocols.SetUnencryptedHTTP2(e.tls == nil)
	return server
}

// serveHTTP returns when the server is shut down, or cannot serve.
func serveHTTP(server *http.Server, listener net.Listener) (err error) {
	if server.TLSConfig != nil {
		err = server.ServeTLS(listener, "", "")
	} else {
		err = server.Serve(listener)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// serveRLS serves Envoy's rate limit protocol until the function it returns is called.
func (f *bridgeFlags) serveRLS(b *bridge.Bridge, store core.Store, e *entrances, ended chan<- error, logger *slog.Logger) (func(), error) {
	listener, err := e.open(e.rls)
	if err != nil {
		return nil, err
	}
	service := rls.New(rls.Options{Ruleset: b.RulesetOf, Store: store, Observer: b.Observer()})
	options := []grpc.ServerOption{grpc.MaxConcurrentStreams(streamsMax), grpc.MaxHeaderListSize(headerBytesMax)}
	if e.tls != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(e.tls)))
	}
	server := grpc.NewServer(options...)
	service.Register(server)
	go func() {
		if err := server.Serve(listener); err != nil {
			ended <- err
		}
	}()
	logger.Info("the bridge listens for Envoy's rate limit protocol", "address", listener.Addr().String(), "tls", e.tls != nil)
	return func() {
		service.SetServing(false)
		defer time.AfterFunc(drainTime, server.Stop).Stop()
		server.GracefulStop()
	}, nil
}
