// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/enforce"
	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/test/eventually"
)

// noon is an instant at which windows of every length up to a day begin.
const noon counter.Micros = 1_700_049_600 * counter.Second

// served is a service behind a real gRPC server, with a client.
type served struct {
	pb.RateLimitServiceClient
	*Service
	testing.TB
	conn  *grpc.ClientConn
	clock atomic.Int64
	// the metadata with which calls are marked, if it is not empty
	mark string

	metrics *metrics.Metrics

	mu                      sync.Mutex
	decided, unknown, wrong int
	panics, busy, targets   int
	refused, unmarked       int
	outcomes                map[string]int
}

func (s *served) Decided(plan *core.Plan, _ *core.Decision, _ *enforce.Span, _ error) {
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

func (s *served) UnknownDomain() { s.count(&s.unknown) }
func (s *served) InvalidTarget() { s.count(&s.targets) }
func (s *served) Refused()       { s.count(&s.refused) }
func (s *served) Unmarked()      { s.count(&s.unmarked) }
func (s *served) Invalid(error)  { s.count(&s.wrong) }
func (s *served) Busy()          { s.count(&s.busy) }
func (s *served) Panicked(any)   { s.count(&s.panics) }

// served.between wraps the service's store.
func (s *served) between(before func(counter.Store) counter.Store) {
	s.options.Store = before(s.options.Store)
	s.enforcer = enforce.New(s.options.Store, s.metrics)
}

// served.sum returns the sum of a collector's counters and of the numbers of its observations.
func (s *served) sum(c prometheus.Collector) (sum int) {
	s.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		s.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			sum += int(m.GetCounter().GetValue()) + int(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// served.failed returns the number of failed store calls.
func (s *served) failed() int { return s.sum(s.metrics.StoreErrors) }

// rules compiles a policy in YAML.
func rules(t testing.TB, text string) *core.Ruleset {
	t.Helper()
	d, err := policyfile.Decode("policy.yaml", policyfile.YAML, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	rs, err := d.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

// serve serves a policy for the domain "shop" over a real connection. Without a store, it uses one
// in memory whose clock stands at noon.
func serve(t testing.TB, rs *core.Ruleset, store counter.Store) *served {
	t.Helper()
	s := &served{TB: t, metrics: metrics.New(), outcomes: map[string]int{}}
	s.clock.Store(int64(noon))
	now := func() counter.Micros { return counter.Micros(s.clock.Load()) }
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
	s.Service = New(Options{Store: store, Metrics: s.metrics, Observer: s, Now: now, Ruleset: func(domain string) (*core.Ruleset, bool) {
		return rs, domain == "shop"
	}})
	s.conn = dial(t, func(server *grpc.Server) { s.Register(server) }, grpc.ForceServerCodecV2(s.Codec()))
	s.RateLimitServiceClient = pb.NewRateLimitServiceClient(s.conn)
	return s
}

// dial starts a gRPC server on a free port and returns a connection to it. Both end with the test.
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

// descriptor builds a descriptor from alternating keys and values.
func descriptor(pairs ...string) *ratelimit.RateLimitDescriptor {
	d := &ratelimit.RateLimitDescriptor{}
	for i := 0; i < len(pairs); i += 2 {
		d.Entries = append(d.Entries, &ratelimit.RateLimitDescriptor_Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return d
}

// served.ask sends descriptors. It fails the test unless there is an answer, with a status for
// each descriptor.
func (s *served) ask(ds ...*ratelimit.RateLimitDescriptor) *pb.RateLimitResponse {
	s.Helper()
	return s.send(&pb.RateLimitRequest{Domain: "shop", Descriptors: ds})
}

func (s *served) send(request *pb.RateLimitRequest) *pb.RateLimitResponse {
	s.Helper()
	ctx := eventually.Context(s)
	if s.mark != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, StreamKey, s.mark)
	}
	response, err := s.RateLimitServiceClient.ShouldRateLimit(ctx, request)
	if err != nil {
		s.Fatal(err)
	}
	if len(response.Statuses) != len(request.Descriptors) {
		s.Fatalf("%d statuses for %d descriptors", len(response.Statuses), len(request.Descriptors))
	}
	return response
}

// served.checkAnswer sends one request and fails the test unless it gets the expected answer.
func (s *served) checkAnswer(want bool, ds ...*ratelimit.RateLimitDescriptor) *pb.RateLimitResponse {
	s.Helper()
	response := s.ask(ds...)
	if got := response.OverallCode == pb.RateLimitResponse_OK; got != want {
		s.Errorf("passes: %t, want %t: %v", got, want, response)
	}
	return response
}

// fields returns the response's header fields by name.
func fields(response *pb.RateLimitResponse) map[string]string {
	all := map[string]string{}
	for _, h := range response.ResponseHeadersToAdd {
		all[h.Key] = h.Value
	}
	return all
}
