// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"context"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/eventually"
)

// panickingStore is a store that panics once.
type panickingStore struct {
	counter.Store
	done bool
}

func (p *panickingStore) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	if !p.done {
		p.done = true
		panic("provoked")
	}
	return p.Store.Take(ctx, checks, results)
}

// TestAPanicIsOneRequests: a panic affects only one request. gRPC does not recover from panics, so
// otherwise the process would end.
func TestAPanicIsOneRequests(t *testing.T) {
	store := new(panickingStore)
	s := serve(t, rules(t, perAddress), nil)
	s.between(func(inner counter.Store) counter.Store { store.Store = inner; return store })
	asked := descriptor("remote_address", "192.0.2.1")
	request := &pb.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimit.RateLimitDescriptor{asked}}
	if _, err := s.RateLimitServiceClient.ShouldRateLimit(eventually.Context(t), request); status.Code(err) != codes.Internal {
		t.Errorf("%v", err)
	}
	if s.panics != 1 {
		t.Errorf("%d are told of", s.panics)
	}
	s.checkAnswer(true, asked)
}
