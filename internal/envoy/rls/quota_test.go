// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/memstore"
)

// watchedStore is a store that counts its calls and the units that they charge. A refund fails the
// test.
type watchedStore struct {
	*testing.T
	counter.Store
	calls   int
	charged map[string]int64 // by key
}

func (s *watchedStore) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	s.calls++
	err := s.Store.Take(ctx, checks, results)
	for i := range checks {
		if checks[i].Op == counter.OpRefund {
			s.Error("the store was asked for a refund")
		}
		s.charged[string(checks[i].Key)] += results[i].Granted
	}
	return err
}

// TestExhaustedQuotasChargeNobody: if all quotas of a request deny it, nothing is charged, not even
// for the time until a refund. So the request causes no denial of other clients under a limit that
// they share. The store is called at most once for each quota, and once if the first has room or
// all lack room.
func TestExhaustedQuotasChargeNobody(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket"} {
		rs := rules(t, strings.ReplaceAll(`{name: shop, rules: [
  {name: a, match: {attr: {a: "*"}}, per: [attr:a], limit: 2/1m X, quota: true},
  {name: b, match: {attr: {b: "*"}}, per: [attr:b], limit: 3/1m X, quota: true},
  {name: c, match: {attr: {c: "*"}}, per: [attr:c], limit: 5/1m X, quota: true},
  {name: n, match: {attr: {n: "*"}}, per: [], limit: 9/1m X}]}`, "X", algorithm))
		memory, err := memstore.New(memstore.Options{Now: func() counter.Micros { return noon }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = memory.Close() })
		store := &watchedStore{T: t, Store: memory, charged: map[string]int64{}}
		s := serve(t, rs, store)
		for i, want := range []struct {
			passes  bool
			calls   int
			charged string // of a, b, c and n
		}{{true, 1, "1 1 1 1"}, {true, 1, "2 2 2 2"}, {true, 2, "2 3 3 3"}, {true, 2, "2 3 4 4"}, {true, 2, "2 3 5 5"}, {false, 1, "2 3 5 5"},
			{false, 1, "2 3 5 5"}} {
			store.calls = 0
			s.checkAnswer(want.passes, descriptor("n", "1"), descriptor("a", "1"), descriptor("b", "1"), descriptor("c", "1"))
			charged := map[string]int64{}
			for key, units := range store.charged {
				charged[strings.Split(key, ":")[2]] += units
			}
			got := fmt.Sprint(charged["a"], charged["b"], charged["c"], charged["n"])
			if store.calls != want.calls || got != want.charged {
				t.Errorf("%s: request %d: %d calls, charged %s; want %d calls, %s", algorithm, i, store.calls, got, want.calls, want.charged)
			}
		}
	}
}

// TestQuotaDenialsAreNoViolations: under a policy with penalties, a quota without room is no
// violation if another quota admits the request.
func TestQuotaDenialsAreNoViolations(t *testing.T) {
	s := serve(t, rules(t, `{name: shop, penalty: {window: 1m, threshold: 1}, rules: [
  {name: a, match: {attr: {a: "*"}}, per: [client, attr:a], limit: 1/1m, quota: true},
  {name: b, match: {attr: {b: "*"}}, per: [client, attr:b], limit: 4/1m, quota: true}]}`), nil)
	a, b := descriptor("remote_address", "192.0.2.1", "a", "1"), descriptor("remote_address", "192.0.2.1", "b", "1")
	for range 4 {
		s.checkAnswer(true, a, b)
	}
	s.checkAnswer(false, a, b)
	s.checkAnswer(true, descriptor("remote_address", "192.0.2.1", "b", "2"))
	s.checkAnswer(false, a) // alone, the quota denies like any other limit
	s.checkAnswer(false, descriptor("remote_address", "192.0.2.1", "b", "3"))
}

// TestQuotasWithRoomAwaitNoLoan: a request does not wait for units of other regions while one of
// its quotas has room in this region.
func TestQuotasWithRoomAwaitNoLoan(t *testing.T) {
	withRegionUnder(t, strings.Replace(lent, "fixed_window", "fixed_window, quota: true", 1), func(l *lendingService) {
		for i, want := range []time.Duration{0, 0, 750 * time.Millisecond} {
			begin := time.Now()
			ctx, cancel := context.WithTimeout(l.Context(), time.Second)
			r, err := l.ShouldRateLimit(ctx, &pb.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimit.RateLimitDescriptor{
				descriptor("remote_address", "192.0.2.1"), descriptor("remote_address", "192.0.2.2")}})
			cancel()
			if denied := r.GetOverallCode() == pb.RateLimitResponse_OVER_LIMIT; err != nil || denied != (want > 0) || time.Since(begin) != want {
				l.Errorf("request %d: %v, %v after %v, want an answer after %v", i, r, err, time.Since(begin), want)
			}
		}
		if n := l.region.Taken(); n != 4 {
			l.Errorf("%d units are charged", n)
		}
	})
}
