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

	"github.com/penstock/penstock/internal/bridge"
	"github.com/penstock/penstock/internal/rls"
)

// Bounds of what is served over gRPC.
const (
	// grpcStreamsMax is how many requests of one connection may be under way; with more to ask, Envoy opens another connection.
	grpcStreamsMax = 1024
	// grpcBytesMax is how large a message is at most. What clients of Envoy write is in it: 64 descriptors that each hold the
	// 60 KiB that Envoy takes of headers fit, for Envoy lets pass what is refused for its size.
	grpcBytesMax = 4 << 20
	// keepaliveMin is how often Envoy may ask whether the bridge is there.
	keepaliveMin = time.Second
	// strangersMax is how many requests without the token may be under way: each asks for the health, and may take as long to
	// arrive, and be as large, as any other.
	strangersMax = 32
	// strangerTime is how long one of these may take: a probe's few bytes come at once, and whoever holds places back must come again
	// as often.
	strangerTime = time.Second
)

// requestsOfCall is how many requests of Envoy's own filter may be under way for each call of a filter of Penstock's: a call
// carries many requests, and each of them is one here.
const requestsOfCall = 16

// overGRPC is what Envoy is served over gRPC.
type overGRPC struct{ leaves, drains, stops []func() }

// stop ends what is under way.
func (o *overGRPC) stop() {
	for _, stop := range o.stops {
		stop()
	}
}

// leave says that the bridge will stop, and answers as before.
func (o *overGRPC) leave() {
	for _, leave := range o.leaves {
		leave()
	}
}

// drain answers what is under way, and ends.
func (o *overGRPC) drain() {
	var ending sync.WaitGroup
	for _, drain := range o.drains {
		ending.Go(drain)
	}
	ending.Wait()
}

// serveEnvoy serves what Envoy speaks over gRPC, until it is drained.
func (s *served) serveEnvoy(b *bridge.Bridge, ended chan<- error, logger *slog.Logger) (*overGRPC, error) {
	o := new(overGRPC)
	if s.rls.network != "" {
		observer := b.Observer()
		service := rls.New(rls.Options{Ruleset: observer.RulesetOf, Store: s.store, Observer: observer, RequestsMax: requestsOfCall * s.callsMax})
		server, err := s.serveGRPC(s.rls, service.Register, bridge.CallTime, ended, logger.With("for", "Envoy's rate limit protocol"),
			grpc.ForceServerCodecV2(service.Codec()))
		if err != nil {
			return nil, err
		}
		o.stops = append(o.stops, server.Stop)
		o.leaves = append(o.leaves, func() { service.SetServing(false) })
		o.drains = append(o.drains, func() {
			defer time.AfterFunc(drainTime, server.Stop).Stop() // who watches its health never ends by itself
			server.GracefulStop()
		})
	}
	if s.xds.network != "" {
		server, err := s.serveGRPC(s.xds, s.envoys.Register, 0, ended, logger.With("for", "Envoy's extension discovery"))
		if err != nil {
			o.drain()
			return nil, err
		}
		o.drains = append(o.drains, server.Stop) // its streams never end by themselves
	}
	return o, nil
}

// grpcWorkers are goroutines that wait for requests: a new one has its stack grown for each, which is a sixth of what a
// request costs. With more requests under way than these, the others have one of their own.
const grpcWorkers = 64

// serveGRPC serves gRPC at an entrance. patience is how long a request may take, from its head on; 0 is for ever. What goes
// wrong later goes to ended.
func (s *served) serveGRPC(at entrance, register func(*grpc.Server), patience time.Duration, ended chan<- error, logger *slog.Logger,
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
		grpc.InTapHandle(guard.enter), grpc.UnaryInterceptor(guard.unary), grpc.StreamInterceptor(guard.stream),
	)
	if s.tls != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(s.tls)))
	}
	if patience > 0 { // streams that never end would keep them all
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

// grpcGuard is what every request over gRPC passes.
type grpcGuard struct {
	token     string // "" lets everybody in who can connect
	patience  time.Duration
	strangers atomic.Int64 // requests under way that did not show the token
	logger    *slog.Logger
}

// enter refuses who does not show the token, before anything of the request is read but its head. Whether the bridge is
// there is told to everybody, but not without end: to be told of changes takes the token. What does not come whole in time
// ends.
func (g *grpcGuard) enter(ctx context.Context, info *tap.Info) (context.Context, error) {
	patience, v := g.patience, visitorOf(ctx)
	if g.token != "" && !shows(info.Header, g.token) {
		if info.FullMethodName != healthpb.Health_Check_FullMethodName {
			return nil, status.Error(codes.Unauthenticated, "this needs the token of the bridge: let Envoy send it, by "+
				"initial_metadata of the grpc_service, as authorization: Bearer TOKEN")
		}
		if g.strangers.Add(1) > strangersMax {
			g.strangers.Add(-1)
			return nil, status.Error(codes.ResourceExhausted, "too many ask for the health at once without the token of the bridge")
		}
		context.AfterFunc(ctx, func() { g.strangers.Add(-1) })
		patience = strangerTime
		v.probe()
	} else {
		v.admit()
	}
	switch {
	case patience == 0:
		return ctx, nil
	case info.FullMethodName == healthpb.Health_Watch_FullMethodName: // lasts for ever, once it has come whole
		watched, cancel := context.WithCancel(ctx)
		return context.WithValue(watched, lateness{}, time.AfterFunc(patience, cancel)), nil
	}
	timed, cancel := context.WithTimeout(ctx, patience)
	_ = cancel // gRPC ends the context that this one descends from with the request
	return timed, nil
}

// visitorOf returns the connection of a request; nil if it is none of a [crowd].
func visitorOf(ctx context.Context) *visitor {
	if other, ok := peer.FromContext(ctx); ok {
		if addr, ok := other.Addr.(visitorAddr); ok {
			return addr.visitor
		}
	}
	return nil
}

// lateness is the key of the timer, in the context of a stream, that ends it if its request does not come in time.
type lateness struct{}

// arriving is a stream whose request has not come yet.
type arriving struct{ grpc.ServerStream }

// RecvMsg implements [grpc.ServerStream].
func (a arriving) RecvMsg(m any) error {
	err := a.ServerStream.RecvMsg(m)
	if timer, ok := a.Context().Value(lateness{}).(*time.Timer); ok {
		timer.Stop()
	}
	return err
}

// shows compares in a time that says nothing of the token but its length.
func shows(header metadata.MD, token string) bool {
	shown := header.Get("authorization")
	return len(shown) == 1 && subtle.ConstantTimeCompare([]byte(shown[0]), []byte("Bearer "+token)) == 1
}

// unary keeps a panic from ending the process, and with it everybody's requests.
func (g *grpcGuard) unary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (response any, err error) {
	defer g.rescue(&err)
	return next(ctx, request)
}

// stream does the same for streams.
func (g *grpcGuard) stream(server any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer g.rescue(&err)
	return next(server, arriving{s})
}

// rescue is deferred.
func (g *grpcGuard) rescue(err *error) {
	if reason := recover(); reason != nil {
		g.logger.Error("a request has panicked", "reason", reason, "stack", string(debug.Stack()))
		*err = status.Error(codes.Internal, "a panic, which the log tells of")
	}
}
