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

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/bridge"
	"github.com/penstock/penstock/internal/ecds"
)

// The bounds of serving.
const (
	// drainTime is how long calls under way may take when the bridge is told to stop; those that wait for throttle rules are
	// dismissed a second before.
	drainTime = 5 * time.Second
	// idleTime is above the hour after which Envoy closes a connection that nobody uses: if both were to do so at the same
	// time, a request would be lost.
	idleTime       = 90 * time.Minute
	headerBytesMax = 16 << 10 // of a call: what requests carry is in its body
	// streamsMax is how many calls of one connection may be under way, those that wait for throttle rules among them.
	streamsMax = 4096
	// pingTime is how long a connection over HTTP/2 may be silent until it is asked whether somebody is there, and pongTime
	// how long that may take to be answered. Who has sent half a header cannot answer.
	pingTime = 30 * time.Second
	pongTime = 10 * time.Second
)

// served is what a bridge serves with, beside itself.
type served struct {
	store    core.Store
	envoys   *ecds.Server // nil: none is told of the policy
	token    string       // what callers over gRPC show; "": nothing
	callsMax int          // requests over gRPC to answer at once; 0: as many as by default
	entrances
}

// serve serves until it is told to stop.
func (f *bridgeFlags) serve(ctx context.Context, b *bridge.Bridge, s *served, logger *slog.Logger) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	defer reloads(b, logger)()
	listener, err := s.open(s.http, httpConnectionsMax, logger)
	if err != nil {
		return err
	}
	ended := make(chan error, 3)
	server := httpServer(b.Handler(), s.tls, logger)
	go func() { ended <- serveHTTP(server, listener) }()
	logger.Info("the bridge listens", "address", listener.Addr().String(), "tls", s.tls != nil)
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
	// A second signal ends what is under way: Ctrl-C and whoever started the bridge may both tell it, and its sockets are to be
	// gone all the same. A third ends the process.
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

// drain answers what is under way, unless that takes too long or hurry is done.
func drain(hurry context.Context, b *bridge.Bridge, server *http.Server, envoy *overGRPC) error {
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
func httpServer(handler http.Handler, config *tls.Config, logger *slog.Logger) *http.Server {
	server := &http.Server{Handler: handler, ConnContext: withVisitor, ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
		ReadHeaderTimeout: bridge.CallTime, ReadTimeout: bridge.CallTime, WriteTimeout: bridge.ReplyTime, IdleTimeout: idleTime,
		MaxHeaderBytes: headerBytesMax, TLSConfig: config, Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: streamsMax, SendPingTimeout: pingTime, PingTimeout: pongTime, WriteByteTimeout: bridge.ReplyTime}}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(config != nil)
	server.Protocols.SetUnencryptedHTTP2(config == nil)
	return server
}

// visiting is the key of the connection in the context of a call.
type visiting struct{}

// withVisitor puts the connection into the contexts of its calls, where [called] finds it.
func withVisitor(ctx context.Context, conn net.Conn) context.Context {
	if addr, ok := conn.RemoteAddr().(visitorAddr); ok {
		return context.WithValue(ctx, visiting{}, addr.visitor)
	}
	return ctx
}

// called tells the connection of a call that the bridge lets in: whether it may be there for more than its health.
func called(ctx context.Context, known bool) {
	v, _ := ctx.Value(visiting{}).(*visitor)
	if known {
		v.admit()
	} else {
		v.probe()
	}
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

// discovery returns what tells Envoys of the policy; nil if nobody is told.
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
	if o.HoldsToken() && token == "" && e.xds.network != "unix" && !e.certified() {
		return nil, fmt.Errorf("--xds-filter %q holds a token, and --xds-listen %q would give it to whoever asks: give --token-file, or "+
			"--tls-cert, --tls-key and --client-ca, or listen on a Unix socket", f.xdsFilter, f.xds)
	}
	server, err := ecds.New(o, logger)
	if err != nil {
		return nil, fmt.Errorf("--xds-listen: %w; --xds-wasm and --xds-filter say it", err)
	}
	return server, nil
}
