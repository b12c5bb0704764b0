// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"context"
	"fmt"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/fallback"
	"github.com/penstock/penstock/internal/store/memstore"
)

// leftStore is a store whose callers leave before it answers.
type leftStore struct {
	counter.Store
	called chan struct{}
}

func (l *leftStore) Take(ctx context.Context, _ []counter.Check, _ []counter.Result) error {
	l.called <- struct{}{}
	<-ctx.Done()
	return fmt.Errorf("%w: %w", counter.ErrUnavailable, context.Cause(ctx))
}

// TestAResetStreamIsNoOutage: if a client resets its stream, Envoy cancels the call. Although the
// store has not answered by then, on_error does not decide the request, and it is not counted as
// decided.
func TestAResetStreamIsNoOutage(t *testing.T) {
	local, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = local.Close() })
	s := serve(t, rules(t, perAddress), nil)
	store, failures := &leftStore{called: make(chan struct{})}, 0
	s.between(func(inner counter.Store) counter.Store {
		store.Store = inner
		return fallback.New(store, fallback.Options{Counts: fallback.NewCounts(local), Failed: func(error) { failures++ }})
	})
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := s.Service.ShouldRateLimit(ctx, &pb.RateLimitRequest{Domain: "shop",
			Descriptors: []*ratelimit.RateLimitDescriptor{descriptor("remote_address", "192.0.2.1")}})
		ended <- err
	}()
	<-store.called
	leave()
	if err := <-ended; status.Code(err) != codes.Canceled || failures > 0 || s.decided > 0 || local.Len() > 0 {
		t.Errorf("answered %v; %d outages, %d requests decided: %v, %d counters in memory", err, failures, s.decided, s.outcomes, local.Len())
	}
}
