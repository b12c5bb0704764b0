// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/enforce"
	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/envoy/bridge"
	"github.com/penstock/penstock/internal/envoy/ecds"
	"github.com/penstock/penstock/internal/listen"
	"github.com/penstock/penstock/internal/store/regionstore"
)

// The time limits and bounds of the bridge's servers.
const (
	// drainTime is how long running calls may take when the bridge stops. Requests that wait under
	// throttle rules are denied a second before that time is over.
	drainTime = 5 * time.Second
	// idleTime is longer than the hour after which Envoy closes an idle connection. If the server
	// closed it first, a request that Envoy sends at that moment would be lost.
	idleTime = 90 * time.Minute
	// headerBytesMax bounds a call's header. Envoy copies header fields of a client into it: into a
	// request for limits, all fields, and the path twice; into a call over gRPC, the field
	// tracestate. If a header is longer, the server closes the connection, which over HTTP/2 also
	// ends the calls for other clients. By default, Envoy accepts headers of 60 KiB from a client,
	// and the server counts 32 bytes more for each field.
	headerBytesMax = 160 << 10
	// streamsMax is how many calls of one connection may run at once, including those that wait
	// under throttle rules.
	streamsMax = 4096
	// pingTime is how long an HTTP/2 connection may be silent before the server pings it, and
	// pongTime how long the answer may take. A client that stops in the middle of a header block
	// cannot acknowledge the ping, so its connection is closed.
	pingTime = 30 * time.Second
	pongTime = 10 * time.Second
)

// serveArgs holds what bridgeFlags.serve needs besides the bridge.
type serveArgs struct {
	store       counter.Store
	corrections counter.Store
	loans       *regionstore.Store // nil: no request waits for a loan
	metrics     *metrics.Metrics
	outages     *enforce.Outages
	tracer      *enforce.Tracer
	envoys      *ecds.Server // nil: the bridge does not send the policy to Envoys
	token       string       // the token required from gRPC callers; "": none
	callsMax    int          // the bound of concurrent gRPC requests; 0: the default
	entrances
}

// bridgeFlags.serve opens the bridge's listeners and answers calls until ctx is done.
func (f *bridgeFlags) serve(ctx context.Context, b *bridge.Bridge, s *serveArgs, logger *slog.Logger) error {
	ctx, stop := untilStopped(ctx)
	defer stop()
	defer reloadOnSIGHUP(b, logger)()
	listener, err := s.open(s.http, httpConnectionsMax, logger)
	if err != nil {
		return err
	}
	ended := make(chan error, 3)
	server := httpServer(b.Handler(), s.tls, logger)
	go func() { ended <- serveHTTP(server, listener) }()
	logger.Info("the bridge listens", "address", listener.Addr().String(), "tls", s.tls != nil)
	operators, err := s.serveOperators(b, f.operators.requireToken(), logger)
	if err != nil {
		return errors.Join(err, server.Close())
	}
	defer operators.Close() //nolint:errcheck // its requests are short, and can be repeated
	envoy, err := s.serveEnvoy(b, ended, logger)
	if err != nil {
		return errors.Join(err, server.Close())
	}
	select {
	case err := <-ended:
		envoy.drain()
		return errors.Join(err, server.Close())
	case <-ctx.Done():
	}
	// A second signal ends the drain, but not the process, which must still remove its sockets:
	// Ctrl-C and the parent process may both signal the bridge. A third signal ends the process.
	hurry, calm := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer calm()
	context.AfterFunc(hurry, calm)
	stop()
	logger.Info("the bridge stops", "after", f.drainDelay)
	b.Leave()
	envoy.leave()
	select {
	case <-time.After(f.drainDelay):
	case <-hurry.Done():
	}
	return drain(hurry, b, server, envoy)
}

// drain waits until the server has answered its running calls, but ends these calls if they take
// too long or the context hurry is done.
func drain(hurry context.Context, b *bridge.Bridge, server *http.Server, envoy *grpcServers) error {
	defer time.AfterFunc(drainTime-time.Second, b.Dismiss).Stop()
	ending, end := context.WithTimeout(hurry, drainTime)
	defer end()
	var draining sync.WaitGroup
	defer draining.Wait()
	draining.Go(envoy.drain)
	defer context.AfterFunc(hurry, func() {
		b.Dismiss()
		envoy.stop()
	})()
	err := server.Shutdown(ending)
	if hurry.Err() != nil {
		return server.Close()
	}
	return err
}

// reloadOnSIGHUP makes the bridge read its policy file again whenever this process receives SIGHUP.
// The caller must call end to stop this.
func reloadOnSIGHUP(b *bridge.Bridge, logger *slog.Logger) (end func()) {
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

// httpServer returns a server for both versions of HTTP on one port. The server logs errors of
// single connections at debug level, because clients could otherwise fill the log with them.
func httpServer(handler http.Handler, config *tls.Config, logger *slog.Logger) *http.Server {
	server := &http.Server{Handler: handler, ConnContext: listen.WithConn, ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
		ReadHeaderTimeout: bridge.CallTime, ReadTimeout: bridge.CallTime, WriteTimeout: bridge.ReplyTime, IdleTimeout: idleTime,
		MaxHeaderBytes: headerBytesMax, TLSConfig: config, Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: streamsMax, SendPingTimeout: pingTime, PingTimeout: pongTime, WriteByteTimeout: bridge.ReplyTime}}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(config != nil)
	server.Protocols.SetUnencryptedHTTP2(config == nil)
	return server
}

// serveHTTP accepts connections until the server is shut down or fails.
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

// discovery returns the server that sends the filter configuration with the policy to Envoy
// proxies, or nil if no such server is configured.
func (f *bridgeFlags) discovery(e *entrances, token string, logger *slog.Logger) (*ecds.Server, error) {
	if f.xds == "" {
		if f.xdsWasm != "" || f.xdsFilter != "" {
			return nil, errors.New("--xds-wasm and --xds-filter go with --xds-listen: give that as well, or leave them out")
		}
		return nil, nil
	}
	o := ecds.Options{Wasm: f.xdsWasm}
	if f.xdsFilter != "" {
		text, err := os.ReadFile(f.xdsFilter)
		if err != nil {
			return nil, fmt.Errorf("--xds-filter: %w", err)
		}
		o.Filter = string(text)
	}
	if o.HoldsToken() && token == "" && e.xds.Network != "unix" && !e.certified() {
		return nil, fmt.Errorf("--xds-filter %q holds a token, and --xds-listen %q would send it to every caller: give --token-file, or "+
			"--tls-cert, --tls-key and --client-ca, or listen on a Unix socket", f.xdsFilter, f.xds)
	}
	server, err := ecds.New(o, logger)
	if err != nil {
		return nil, fmt.Errorf("--xds-listen: %w; see --xds-wasm and --xds-filter", err)
	}
	return server, nil
}
