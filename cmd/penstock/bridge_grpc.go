// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/subtle"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/penstock/penstock/internal/envoy/bridge"
	"github.com/penstock/penstock/internal/envoy/rls"
	"github.com/penstock/penstock/internal/listen"
)

// Limits of the gRPC services.
const (
	// grpcStreamsMax is how many requests of one connection may run at once. If Envoy has more
	// requests, it opens another connection.
	grpcStreamsMax = 1024
	// grpcBytesMax bounds the size of a message. If a message is larger, its call fails, and Envoy
	// admits the request. A client could exploit this, because it controls a part of the message.
	// So the bound allows for 64 descriptors, each with the 60 KiB of headers that Envoy accepts.
	grpcBytesMax = 4 << 20
	// keepaliveMin is the shortest interval at which Envoy may ping the bridge.
	keepaliveMin = time.Second
	// tokenlessMax is how many requests without the token may run at once. Such requests should be
	// health checks, but they can be as slow and as large as any other request.
	tokenlessMax = 32
	// tokenlessTime is how long a request without the token may take. A health check is a few bytes
	// that arrive at once. A client that occupies places with slow requests must keep reconnecting.
	tokenlessTime = time.Second
)

// requestsOfCall is the factor between the bound of concurrent calls from Penstock's filter and the
// bound of concurrent requests from Envoy's own filter. A call carries many requests; Envoy's own
// filter sends each request alone.
const requestsOfCall = 4

// grpcServers holds the functions that stop the gRPC servers for Envoy.
type grpcServers struct{ leaves, drains, stops []func() }

// grpcServers.stop ends the servers and all running requests.
func (o *grpcServers) stop() {
	for _, stop := range o.stops {
		stop()
	}
}

// grpcServers.leave announces that the bridge will stop. The servers continue to answer.
func (o *grpcServers) leave() {
	for _, leave := range o.leaves {
		leave()
	}
}

// grpcServers.drain waits until running requests are answered, and ends the servers.
func (o *grpcServers) drain() {
	var ending sync.WaitGroup
	for _, drain := range o.drains {
		ending.Go(drain)
	}
	ending.Wait()
}

// serveEnvoy serves Envoy's gRPC protocols until it is drained.
func (s *serveArgs) serveEnvoy(b *bridge.Bridge, ended chan<- error, logger *slog.Logger) (*grpcServers, error) {
	o := new(grpcServers)
	if s.rls.Network != "" {
		observer := b.Observer()
		service := rls.New(rls.Options{Ruleset: observer.RulesetOf, Directory: observer.DirectoryOf, Trial: observer.Trial, Store: s.store, Corrections: s.corrections, Loans: s.loans,
			Metrics: s.metrics, Outages: s.outages, Tracer: s.tracer, Observer: observer, RequestsMax: requestsOfCall * s.callsMax})
		server, err := s.serveGRPC(s.rls, service.Register, bridge.CallTime, ended, logger.With("for", "Envoy's rate limit protocol"),
			grpc.ForceServerCodecV2(service.Codec()))
		if err != nil {
			return nil, err
		}
		o.stops = append(o.stops, server.Stop)
		o.leaves = append(o.leaves, func() { service.SetServing(false) })
		o.drains = append(o.drains, func() {
			// A health watch never ends by itself.
			defer time.AfterFunc(drainTime, server.Stop).Stop()
			server.GracefulStop()
			if err := service.Close(); err != nil {
				logger.Error("the bridge stops before all usage was charged", "error", err)
			}
		})
	}
	if s.xds.Network != "" {
		server, err := s.serveGRPC(s.xds, s.envoys.Register, 0, ended, logger.With("for", "Envoy's extension discovery"))
		if err != nil {
			o.drain()
			return nil, err
		}
		o.drains = append(o.drains, server.Stop) // the server's streams never end by themselves
	}
	return o, nil
}

// grpcWorkers is the number of goroutines that wait for requests. With a new goroutine for each
// request, growing its stack would take a sixth of the cost of the request. When all workers are
// busy, each further request gets a new goroutine.
const grpcWorkers = 64

// serveGRPC serves gRPC at an address. The parameter patience is the maximum duration of a request,
// measured from the arrival of its headers; 0 means no limit. Later errors are sent to the channel
// ended.
func (s *serveArgs) serveGRPC(at listen.Address, register func(*grpc.Server), patience time.Duration, ended chan<- error, logger *slog.Logger,
	options ...grpc.ServerOption) (*grpc.Server, error) {
	listener, err := s.open(at, grpcConnectionsMax, logger)
	if err != nil {
		return nil, err
	}
	guard := &grpcGuard{token: s.token, patience: patience, logger: logger}
	options = append(options,
		grpc.MaxConcurrentStreams(grpcStreamsMax), grpc.MaxHeaderListSize(headerBytesMax), grpc.MaxRecvMsgSize(grpcBytesMax),
		grpc.ConnectionTimeout(bridge.CallTime),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingTime, Timeout: pongTime, MaxConnectionIdle: idleTime}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveMin, PermitWithoutStream: true}),
		grpc.InTapHandle(guard.enter), grpc.UnaryInterceptor(guard.callUnary), grpc.StreamInterceptor(guard.stream),
	)
	if s.tls != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(s.tls)))
	}
	if patience > 0 { // otherwise streams that never end would occupy all workers
		options = append(options, grpc.NumStreamWorkers(grpcWorkers))
	}
	server := grpc.NewServer(options...)
	register(server)
	go func() {
		if err := server.Serve(listener); err != nil {
			ended <- err
		}
	}()
	logger.Info("the bridge listens over gRPC", "address", listener.Addr().String(), "tls", s.tls != nil)
	return server, nil
}

// grpcGuard checks every gRPC request.
type grpcGuard struct {
	token     string // if "", every client that can connect is admitted
	patience  time.Duration
	tokenless atomic.Int64 // the running requests without the token
	logger    *slog.Logger
}

// grpcGuard.enter rejects a request without the token before the server reads more than the head.
// Health.Check needs no token; Health.Watch does. A request that does not arrive in time is
// cancelled.
func (g *grpcGuard) enter(ctx context.Context, info *tap.Info) (context.Context, error) {
	patience, v := g.patience, connOf(ctx)
	if g.token != "" && !hasToken(info.Header, g.token) {
		if info.FullMethodName != healthpb.Health_Check_FullMethodName {
			return nil, status.Error(codes.Unauthenticated, "this needs the token of the bridge: let Envoy send it, by "+
				"initial_metadata of the grpc_service, as authorization: Bearer TOKEN")
		}
		if g.tokenless.Add(1) > tokenlessMax {
			g.tokenless.Add(-1)
			return nil, status.Error(codes.ResourceExhausted, "too many health checks at once without the token of the bridge")
		}
		context.AfterFunc(ctx, func() { g.tokenless.Add(-1) })
		patience = tokenlessTime
		v.Probe()
	} else {
		v.Admit()
	}
	switch {
	case patience == 0:
		return ctx, nil
	// A Health.Watch whose request has arrived never ends.
	case info.FullMethodName == healthpb.Health_Watch_FullMethodName:
		watched, cancel := context.WithCancel(ctx)
		return context.WithValue(watched, lateness{}, time.AfterFunc(patience, cancel)), nil
	}
	timed, cancel := context.WithTimeout(ctx, patience)
	_ = cancel // gRPC ends the parent context with the request
	return timed, nil
}

// connOf returns the connection of a request, or nil if its listener has no [listen.Limit].
func connOf(ctx context.Context) *listen.Conn {
	if other, ok := peer.FromContext(ctx); ok {
		return listen.ConnOf(other.Addr)
	}
	return nil
}

// lateness is the key of a timer in the context of a stream. The timer ends the stream if its
// request does not arrive in time.
type lateness struct{}

// pendingStream is a stream whose request has not arrived yet.
type pendingStream struct{ grpc.ServerStream }

// RecvMsg implements [grpc.ServerStream].
func (a pendingStream) RecvMsg(m any) error {
	err := a.ServerStream.RecvMsg(m)
	if timer, ok := a.Context().Value(lateness{}).(*time.Timer); ok {
		timer.Stop()
	}
	return err
}

// hasToken reports whether the header contains the token. Its time depends only on the token's
// length.
func hasToken(header metadata.MD, token string) bool {
	shown := header.Get("authorization")
	return len(shown) == 1 && subtle.ConstantTimeCompare([]byte(shown[0]), []byte("Bearer "+token)) == 1
}

// callUnary recovers from a panic, which would otherwise end the process and all its requests.
func (g *grpcGuard) callUnary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (response any, err error) {
	defer g.rescue(&err)
	return next(ctx, request)
}

// grpcGuard.stream recovers from a panic in a stream, as callUnary does for other requests.
func (g *grpcGuard) stream(server any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer g.rescue(&err)
	return next(server, pendingStream{s})
}

// grpcGuard.rescue recovers from a panic and turns it into an error. It must be deferred.
func (g *grpcGuard) rescue(err *error) {
	if reason := recover(); reason != nil {
		g.logger.Error("a request has panicked", "reason", reason, "stack", string(debug.Stack()))
		*err = status.Error(codes.Internal, "a panic, see the log")
	}
}
