// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"context"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/penstock/penstock/core"
)

// echo answers every request with the same answer, of realistic size, to measure the cost of gRPC
// itself.
type echo struct {
	pb.UnimplementedRateLimitServiceServer
	answer *pb.RateLimitResponse
}

func (e *echo) ShouldRateLimit(context.Context, *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	return e.answer, nil
}

// BenchmarkShouldRateLimit measures one descriptor under one rule: over a connection, compared with
// an echo service, and without a connection. Client and server share the machine, so the ratio is
// more meaningful than the time.
func BenchmarkShouldRateLimit(b *testing.B) {
	request := &pb.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimit.RateLimitDescriptor{descriptor("remote_address", "192.0.2.7")}}
	rs := rules(b, `{name: shop, rules: [{name: api, limit: 1000000000/1m fixed_window}]}`)
	memory := serve(b, rs, nil)
	answer, err := memory.RateLimitServiceClient.ShouldRateLimit(context.Background(), request)
	if err != nil {
		b.Fatal(err)
	}
	bare := dial(b, func(server *grpc.Server) { pb.RegisterRateLimitServiceServer(server, &echo{answer: answer}) })
	b.Run("echo", func(b *testing.B) { benchmarkOverWire(b, pb.NewRateLimitServiceClient(bare), request) })
	b.Run("memory", func(b *testing.B) { benchmarkOverWire(b, memory.RateLimitServiceClient, request) })
	b.Run("redis", func(b *testing.B) { benchmarkOverWire(b, serve(b, rs, redis(b)).RateLimitServiceClient, request) })
	b.Run("no wire", func(b *testing.B) {
		s := New(Options{Store: memory.options.Store, Ruleset: func(string) (*core.Ruleset, bool) { return rs, true }})
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.ShouldRateLimit(context.Background(), request); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// wiredClient is a client of the rate limit service, over a connection.
type wiredClient interface {
	ShouldRateLimit(context.Context, *pb.RateLimitRequest, ...grpc.CallOption) (*pb.RateLimitResponse, error)
}

// benchmarkOverWire sends requests from 64 goroutines.
func benchmarkOverWire(b *testing.B, client wiredClient, request *pb.RateLimitRequest) {
	b.SetParallelism(32)
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			response, err := client.ShouldRateLimit(context.Background(), request)
			if err != nil || response.OverallCode != pb.RateLimitResponse_OK {
				b.Errorf("%v, %v", response, err)
				return
			}
		}
	})
}
