// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// TestShards: a request of several descriptors is charged to one shard, and its answer shows the
// whole limit. Hits that do not fit into any shard are denied.
func TestShards(t *testing.T) {
	s := serve(t, rules(t, `{name: shop, rules: [{name: all, per: [], expose: true, limit: 12/1m fixed_window, shards: 4}]}`), nil)
	got := s.checkAnswer(true, descriptor("generic_key", "a"), descriptor("generic_key", "b"))
	for i, status := range got.Statuses {
		if status.CurrentLimit.RequestsPerUnit != 12 || status.LimitRemaining != 8 {
			t.Errorf("descriptor %d: %v", i, status)
		}
	}
	if f := fields(got); f["x-ratelimit-limit"] != "12" || f["x-ratelimit-remaining"] != "8" {
		t.Errorf("%v", f)
	}
	for range 11 {
		s.checkAnswer(true, descriptor("generic_key", "a"))
	}
	for range 4 {
		s.checkAnswer(false, descriptor("generic_key", "a"))
	}
	// refunds 4
	s.send(&pb.RateLimitRequest{Domain: "shop", Descriptors: four(descriptor("generic_key", "a"), true)})
	admitted := 0
	for range 16 {
		if s.ask(descriptor("generic_key", "a")).OverallCode == pb.RateLimitResponse_OK {
			admitted++
		}
	}
	if admitted != 3 { // the refund of 4 goes to one shard, which had been charged only 3
		t.Errorf("%d let through after 4 came back to one shard", admitted)
	}
	s = serve(t, rules(t, `{name: shop, rules: [{name: all, per: [], limit: 12/1m fixed_window, shards: 4}]}`), nil)
	if r := s.send(&pb.RateLimitRequest{Domain: "shop", Descriptors: four(descriptor("generic_key", "a"), false)}); r.OverallCode != pb.RateLimitResponse_OVER_LIMIT {
		t.Errorf("%v", r)
	}
}

// four makes the descriptor count as four hits, or minus four if negative is true.
func four(d *ratelimit.RateLimitDescriptor, negative bool) []*ratelimit.RateLimitDescriptor {
	d.HitsAddend, d.IsNegativeHits = wrapperspb.UInt64(4), negative
	return []*ratelimit.RateLimitDescriptor{d}
}
