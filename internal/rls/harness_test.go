// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/memstore"
	"github.com/penstock/penstock/internal/policy"
)

// noon is at the start of windows of every length up to a day.
const noon core.Micros = 1_700_049_600 * core.Second

// served is a service behind a real gRPC server, with a client.
type served struct {
	pb.RateLimitServiceClient
	*Service
	testing.TB
	conn  *grpc.ClientConn
	clock atomic.Int64

	mu                              sync.Mutex
	decided, failed, unknown, wrong int
	panics, busy                    int
	outcomes                        map[string]int
}

func (s *served) Decided(plan *core.Plan, d *core.Decision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decided++
	for _, o := range plan.Outcomes() {
		s.outcomes[o.Outcome.String()]++
	}
}

func (s *served) count(n *int) {
	s.mu.Lock()
	*n++
	s.mu.Unlock()
}

func (s *served) StoreFailed(error, bool) { s.count(&s.failed) }
func (s *served) UnknownDomain()          { s.count(&s.unknown) }
func (s *served) Invalid(error)           { s.count(&s.wrong) }
func (s *served) Busy()                   { s.count(&s.busy) }
func (s *served) Panicked(any)            { s.count(&s.panics) }

// rules compiles a policy as people write it.
func rules(t testing.TB, text string) *core.Ruleset {
	t.Helper()
	d, err := policy.Decode("policy.yaml", policy.YAML, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	rs, err := d.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

// serve serves a policy for the domain "shop" over a real connection; without a store it is one in memory, whose clock
// stands at noon.
func serve(t testing.TB, rs *core.Ruleset, store core.Store) *served {
	t.Helper()
	s := &served{TB: t, outcomes: map[string]int{}}
	s.clock.Store(int64(noon))
	now := func() core.Micros { return core.Micros(s.clock.Load()) }
	if store == nil {
		memory, err := memstore.New(memstore.Options{Now: now})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = memory.Close() })
		store = memory
	} else {
		now = nil
	}
	s.Service = New(Options{Store: store, Observer: s, Now: now, Ruleset: func(domain string) (*core.Ruleset, bool) {
		return rs, domain == "shop"
	}})
	s.conn = dial(t, func(server *grpc.Server) { s.Register(server) }, grpc.ForceServerCodecV2(s.Codec()))
	s.RateLimitServiceClient = pb.NewRateLimitServiceClient(s.conn)
	return s
}

// dial starts a gRPC server on a port of its own and returns a connection to it; both end with the test.
func dial(t testing.TB, register func(*grpc.Server), options ...grpc.ServerOption) *grpc.ClientConn {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(options...)
	register(server)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return conn
}

// descriptor is one of keys and values in turn.
func descriptor(pairs ...string) *ratelimit.RateLimitDescriptor {
	d := &ratelimit.RateLimitDescriptor{}
	for i := 0; i < len(pairs); i += 2 {
		d.Entries = append(d.Entries, &ratelimit.RateLimitDescriptor_Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return d
}

// ask sends descriptors and fails the test if there is no answer, or one of another length.
func (s *served) ask(ds ...*ratelimit.RateLimitDescriptor) *pb.RateLimitResponse {
	s.Helper()
	return s.send(&pb.RateLimitRequest{Domain: "shop", Descriptors: ds})
}

func (s *served) send(request *pb.RateLimitRequest) *pb.RateLimitResponse {
	s.Helper()
	response, err := s.RateLimitServiceClient.ShouldRateLimit(context.Background(), request)
	if err != nil {
		s.Fatal(err)
	}
	if len(response.Statuses) != len(request.Descriptors) {
		s.Fatalf("%d statuses for %d descriptors", len(response.Statuses), len(request.Descriptors))
	}
	return response
}

// passes asks once and fails the test if the answer is another.
func (s *served) passes(want bool, ds ...*ratelimit.RateLimitDescriptor) *pb.RateLimitResponse {
	s.Helper()
	response := s.ask(ds...)
	if got := response.OverallCode == pb.RateLimitResponse_OK; got != want {
		s.Errorf("passes: %t, want %t: %v", got, want, response)
	}
	return response
}

// fields are the response's header fields by name.
func fields(response *pb.RateLimitResponse) map[string]string {
	all := map[string]string{}
	for _, h := range response.ResponseHeadersToAdd {
		all[h.Key] = h.Value
	}
	return all
}
