// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	envoytype "github.com/envoyproxy/go-control-plane/envoy/type/v3"
)

// TestAnImportedConfigurationLimits tests that the bridge enforces every domain of an imported rate
// limit configuration, whatever the policy is named.
func TestAnImportedConfigurationLimits(t *testing.T) {
	one := file(t, "one.yaml", "domain: one\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 1}}]\n")
	two := file(t, "two.yaml", "domain: two\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 2}}]\n")
	out, diagnostics, err := run(t, "", "import-envoy-ratelimit", one, two)
	if err != nil {
		t.Fatal(err, diagnostics)
	}
	r := startBridge(t, "--policy", file(t, "policy.yaml", out), "--rls-listen", "127.0.0.1:0")
	_, conn := r.dialGRPC("Envoy's rate limit protocol")
	passes := func(domain string, own *ratelimit.RateLimitDescriptor_RateLimitOverride) (passed int) {
		for range 4 {
			response, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(context.Background(), &pb.RateLimitRequest{Domain: domain,
				Descriptors: []*ratelimit.RateLimitDescriptor{{Entries: []*ratelimit.RateLimitDescriptor_Entry{{Key: "k", Value: "v"}}, Limit: own}}})
			if err != nil {
				t.Fatal(err)
			}
			if response.OverallCode == pb.RateLimitResponse_OK {
				passed++
			}
		}
		return passed
	}
	own := &ratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 3, Unit: envoytype.RateLimitUnit_DAY}
	for domain, want := range map[string]int{"one": 1, "two": 2, "three": 4} {
		if passed := passes(domain, nil); passed != want {
			t.Errorf("domain %s: %d of 4 passed, want %d", domain, passed, want)
		}
		if passed := passes(domain, own); passed != 3 {
			t.Errorf("domain %s: %d of 4 passed a limit of 3 that came with them", domain, passed)
		}
	}
}
