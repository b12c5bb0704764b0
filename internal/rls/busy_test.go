// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"context"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/await"
)

// hanging is a store that answers when it is told to.
type hanging struct {
	core.Store
	answer chan struct{}
}

func (h *hanging) Take(ctx context.Context, checks []core.Check, results []core.Result) error {
	<-h.answer
	return h.Store.Take(ctx, checks, results)
}

// TestTooManyRequests: what is beyond the bound is answered at once, whatever it asks, and the others when they can be.
func TestTooManyRequests(t *testing.T) {
	store := &hanging{answer: make(chan struct{})}
	s := serve(t, rules(t, perAddress), nil)
	store.Store, s.Service.options.Store = s.Service.options.Store, store
	s.Service.options.RequestsMax = 3
	code := pb.RateLimitResponse_OK
	asks := func(domain string) (pb.RateLimitResponse_Code, error) {
		r, err := s.RateLimitServiceClient.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: domain,
			Descriptors: []*ratelimit.RateLimitDescriptor{descriptor("remote_address", "192.0.2.1")}})
		return r.GetOverallCode(), err
	}
	ask := func(domain string) error {
		_, err := asks(domain)
		return err
	}
	ended := make(chan error, 3)
	for range 3 {
		go func() { ended <- ask("shop") }()
	}
	await.Until(t, 10*time.Second, "they are under way", func() bool { return s.under.Load() == 3 })
	for domain, want := range map[string]pb.RateLimitResponse_Code{"shop": pb.RateLimitResponse_OVER_LIMIT,
		"another": pb.RateLimitResponse_OK} { // nothing is limited there
		var err error
		if code, err = asks(domain); err != nil || code != want {
			t.Errorf("one more, of domain %s: %v, %v", domain, code, err)
		}
	}
	close(store.answer)
	for range 3 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if err := ask("shop"); err != nil || s.busy != 1 || s.under.Load() != 0 {
		t.Errorf("%v, %d are told of, %d under way", err, s.busy, s.under.Load())
	}
}

// TestABoundIsThereWithoutBeingSaid.
func TestABoundIsThereWithoutBeingSaid(t *testing.T) {
	if got := New(Options{}).options.RequestsMax; got != RequestsMaxDefault {
		t.Errorf("%d", got)
	}
}
