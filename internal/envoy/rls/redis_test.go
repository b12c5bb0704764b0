// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	envoytype "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/redistest"
)

func redis(t testing.TB) *redisstore.Store {
	t.Helper()
	store, err := redisstore.New(redisstore.Options{URL: redistest.Start(t).URL(), Timeout: redisstore.TimeoutMax})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// TestRedis: over one Redis, a limit is enforced exactly for many callers of two services. Reports
// and refunds reach Redis, and calendar windows follow its clock.
func TestRedis(t *testing.T) {
	rs := rules(t, `{name: shop, rules: [
		{name: exact, match: {attr: {exact: []}}, per: [attr:exact], limit: [100/30d fixed_window, 500/year]},
		{name: used, match: {attr: {used: []}}, per: [attr:used], limit: 10/30d fixed_window}]}`)
	store := redis(t)
	nodes := []*served{serve(t, rs, store), serve(t, rs, store)}
	var admitted atomic.Int64
	var all sync.WaitGroup
	for i := range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			for range 25 {
				response, err := nodes[i%2].RateLimitServiceClient.ShouldRateLimit(context.Background(), &pb.RateLimitRequest{
					Domain: "shop", Descriptors: []*ratelimit.RateLimitDescriptor{descriptor("exact", "1")}})
				if err != nil {
					t.Error(err)
				} else if response.OverallCode == pb.RateLimitResponse_OK {
					admitted.Add(1)
				}
			}
		}()
	}
	all.Wait()
	if n := admitted.Load(); n != 100 {
		t.Errorf("%d of 200 were admitted, want 100", n)
	}
	s := nodes[0]
	s.passes(true, hits(descriptor("used", "1"), 9, false))
	s.passes(false, hits(descriptor("used", "1"), 5, false))
	s.passes(false, hits(descriptor("used", "1"), 0, false))
	got := s.passes(true, hits(descriptor("used", "1"), 6, true))
	if got.Statuses[0].LimitRemaining != 0 {
		t.Errorf("%v", got.Statuses[0])
	}
	if got = s.passes(true, hits(descriptor("used", "1"), 0, false)); got.Statuses[0].LimitRemaining != 2 {
		t.Errorf("%v", got.Statuses[0])
	}
	year := limited(descriptor("x", "1"), 1, envoytype.RateLimitUnit_YEAR, 0)
	s.passes(true, year)
	nodes[1].passes(false, year)
	if s.failed()+nodes[1].failed() != 0 {
		t.Errorf("the store failed %d times", s.failed()+nodes[1].failed())
	}
}

// TestQuotaOverRedis: of several limits with quota, the largest determines exactly how many pass,
// for many callers of two services. Charges of denied requests to other limits have been refunded.
func TestQuotaOverRedis(t *testing.T) {
	rs := rules(t, `{name: shop, rules: [
		{name: a, match: {attr: {a: []}}, per: [attr:a], limit: 30/30d fixed_window, quota: true},
		{name: b, match: {attr: {b: []}}, per: [attr:b], limit: 50/30d token_bucket, quota: true},
		{name: n, match: {attr: {n: []}}, per: [attr:n], limit: 300/30d fixed_window}]}`)
	store := redis(t)
	nodes := []*served{serve(t, rs, store), serve(t, rs, store)}
	var admitted atomic.Int64
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 25 {
				response, err := nodes[i%2].RateLimitServiceClient.ShouldRateLimit(context.Background(), &pb.RateLimitRequest{Domain: "shop",
					Descriptors: []*ratelimit.RateLimitDescriptor{descriptor("a", "1"), descriptor("b", "1"), descriptor("n", "1")}})
				if err != nil {
					t.Error(err)
				} else if response.OverallCode == pb.RateLimitResponse_OK {
					admitted.Add(1)
				}
			}
		})
	}
	all.Wait()
	if n := admitted.Load(); n != 50 {
		t.Errorf("%d of 200 were admitted, want 50", n)
	}
	if left := nodes[0].passes(true, hits(descriptor("n", "1"), 0, false)).Statuses[0].LimitRemaining; left != 250 {
		t.Errorf("%d left of 300 beside 50 that passed", left)
	}
	nodes[1].passes(false, descriptor("a", "1"), descriptor("n", "1"))
}
