// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"context"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/test/eventually"
)

// strict is a store that fails the test on an invalid call.
type strict struct {
	counter.Store
	testing.TB
}

func (s strict) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	err := s.Store.Take(ctx, checks, results)
	if err != nil {
		s.Errorf("%v", err)
	}
	return err
}

// FuzzShouldRateLimit: no request makes the service panic, make an invalid call, or answer without
// one status for each descriptor. If a response is OVER_LIMIT, so is at least one descriptor.
func FuzzShouldRateLimit(f *testing.F) {
	for _, seed := range []*pb.RateLimitRequest{
		{Domain: "shop", Descriptors: []*ratelimit.RateLimitDescriptor{descriptor("a", "1")}},
		{Domain: "shop", HitsAddend: 7, Descriptors: []*ratelimit.RateLimitDescriptor{descriptor("path", "/x?a", "remote_address", "192.0.2.1"),
			hits(descriptor("a", "", "a", "2"), 3, true), hits(descriptor("a", "", "a", "2"), 0, false), limitedDescriptor(descriptor("b", "1"), 2, 3, 1),
			hits(limitedDescriptor(descriptor("b", "1"), 2, 3, 1), 1<<63, false), limitedDescriptor(descriptor(), 0, 6, 0)}},
	} {
		data, err := proto.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	rs := rules(f, `{name: shop, penalty: {window: 1m, threshold: 2}, rules: [
		{name: everyone, per: [], limit: 50/1m},
		{name: client, limit: [5/1m, 9/day]},
		{name: a, match: {attr: {a: []}}, per: [attr:a, "attr:a#2"], limit: 5/1m token_bucket, replaces: [b], missing: deny},
		{name: b, match: {attr: {b: ["1*", "*2"]}}, per: [attr:b], missing: share, limit: 3/1m sliding_log, cost: 2},
		{name: path, match: {path: /x}, per: [endpoint, ip], group: g, limit: 4/1s},
		{name: free, match: {path: /x/free}, group: g, priority: -1, action: allow},
		{name: seen, per: [attr:envoy.descriptor], limit: 2/1m, action: log_only}]}`)
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = store.Close() })
	f.Fuzz(func(t *testing.T, data []byte) {
		var request pb.RateLimitRequest
		if proto.Unmarshal(data, &request) != nil {
			return
		}
		s := New(Options{Store: strict{store, t}, Ruleset: func(string) (*core.Ruleset, bool) { return rs, true }})
		response, err := s.ShouldRateLimit(eventually.Context(t), &request)
		if err != nil {
			return
		}
		denied := false
		for _, status := range response.Statuses {
			denied = denied || status.Code == pb.RateLimitResponse_OVER_LIMIT
		}
		if len(response.Statuses) != len(request.Descriptors) || denied != (response.OverallCode == pb.RateLimitResponse_OVER_LIMIT) {
			t.Errorf("%v answers %v", response, &request)
		}
		if _, err := proto.Marshal(response); err != nil {
			t.Errorf("%v: %v", response, err)
		}
	})
}
