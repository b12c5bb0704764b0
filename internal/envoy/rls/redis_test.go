// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	envoytype "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
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
// and refunds reach Redis, and calendar windows follow the clock of Redis.
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
				response, err := nodes[i%2].RateLimitServiceClient.ShouldRateLimit(eventually.Context(t), &pb.RateLimitRequest{
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
	s.checkAnswer(true, hits(descriptor("used", "1"), 9, false))
	s.checkAnswer(false, hits(descriptor("used", "1"), 5, false))
	s.checkAnswer(false, hits(descriptor("used", "1"), 0, false))
	got := s.checkAnswer(true, hits(descriptor("used", "1"), 6, true))
	if got.Statuses[0].LimitRemaining != 0 {
		t.Errorf("%v", got.Statuses[0])
	}
	if got = s.checkAnswer(true, hits(descriptor("used", "1"), 0, false)); got.Statuses[0].LimitRemaining != 2 {
		t.Errorf("%v", got.Statuses[0])
	}
	year := limitedDescriptor(descriptor("x", "1"), 1, envoytype.RateLimitUnit_YEAR, 0)
	s.checkAnswer(true, year)
	nodes[1].checkAnswer(false, year)
	if s.failed()+nodes[1].failed() != 0 {
		t.Errorf("the store failed %d times", s.failed()+nodes[1].failed())
	}
}

// TestQuotaOverRedis: many callers of two services share several limits with quota. Exactly as
// many requests pass as the largest of these limits allows. If a request is denied, its charges to
// other limits are refunded. If a busy machine does not answer a call in time, on_error admits the
// request, and its charge may remain. The test is then repeated with other counters.
func TestQuotaOverRedis(t *testing.T) {
	rs := rules(t, `{name: shop, rules: [
		{name: a, match: {attr: {a: []}}, per: [attr:a], limit: 30/30d fixed_window, quota: true},
		{name: b, match: {attr: {b: []}}, per: [attr:b], limit: 50/30d token_bucket, quota: true},
		{name: n, match: {attr: {n: []}}, per: [attr:n], limit: 300/30d fixed_window}]}`)
	store := redis(t)
	nodes := []*served{serve(t, rs, store), serve(t, rs, store)}
	failed := func() int { return nodes[0].failed() + nodes[1].failed() }
	for try := range 5 {
		value, before := strconv.Itoa(try), failed()
		admitted, left := useQuota(t, nodes, value)
		if now := failed() - before; now > 0 {
			if t.Logf("%d calls failed", now); admitted > int64(50+now) {
				t.Errorf("%d of 200 were admitted, want at most 50 and the %d whose call failed", admitted, now)
			}
			continue
		}
		if admitted != 50 || left != 250 {
			t.Errorf("%d of 200 were admitted, want 50; %d left of 300, want 250", admitted, left)
		}
		nodes[1].checkAnswer(false, descriptor("a", value), descriptor("n", value))
		return
	}
	t.Error("the store failed each time")
}

// useQuota sends 200 requests for the rules of TestQuotaOverRedis. useQuota returns how many were
// admitted, and how many units the rule named n has left.
func useQuota(t *testing.T, nodes []*served, value string) (requests int64, left uint32) {
	t.Helper()
	var admitted atomic.Int64
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 25 {
				response, err := nodes[i%2].RateLimitServiceClient.ShouldRateLimit(eventually.Context(t), &pb.RateLimitRequest{Domain: "shop",
					Descriptors: []*ratelimit.RateLimitDescriptor{descriptor("a", value), descriptor("b", value), descriptor("n", value)}})
				if err != nil {
					t.Error(err)
				} else if response.OverallCode == pb.RateLimitResponse_OK {
					admitted.Add(1)
				}
			}
		})
	}
	all.Wait()
	return admitted.Load(), nodes[0].checkAnswer(true, hits(descriptor("n", value), 0, false)).Statuses[0].LimitRemaining
}
