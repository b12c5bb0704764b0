// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"github.com/penstock/penstock/internal/test/limittest"
	"net/netip"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/internal/identify"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/benchpair"
)

// chainedRequest is a request that was forwarded by proxies, with the policy that trusts them.
type chainedRequest struct {
	name    string
	proxies []netip.Prefix
	request *client
	want    string
}

// chains returns requests through one and three trusted proxies, with realistic lists
// of trusted ranges: private networks, a content delivery network, and a cloud provider. The client
// is in none of these ranges.
func chains() (all []chainedRequest) {
	for _, ranges := range []int{3, 32, 1_000} {
		for _, hops := range []int{1, 3} {
			for _, family := range []string{"IPv4", "IPv6"} {
				c := chainedRequest{name: fmt.Sprintf("ranges=%d/hops=%d/%s", ranges, hops, family)}
				client, proxy := "198.51.100.77", "10.%d.3.9"
				c.want = client
				c.proxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8"), netip.MustParsePrefix("192.168.0.0/16")}
				if family == "IPv6" {
					client, proxy = "2001:db8:1:2:3:4:5:6", "fd00:%d::9"
					c.want = "2001:db8:1:2::/64"
				}
				for i := len(c.proxies); i < ranges; i++ {
					range4 := netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(20 + i>>8), byte(i), 0, 0}), 16)
					range6 := netip.PrefixFrom(netip.AddrFrom16([16]byte{0x26, 0x06, byte(i >> 8), byte(i)}), 40)
					c.proxies = append(c.proxies, [2]netip.Prefix{range4, range6}[i%2])
				}
				named := []string{client}
				for i := 1; i < hops; i++ {
					named = append(named, fmt.Sprintf(proxy, i))
				}
				c.request = get("192.0.2.1", "/")
				c.request.remote = netip.MustParseAddr(fmt.Sprintf(proxy, hops))
				c.request.header = map[string]string{identify.ForwardedHeader: strings.Join(named, ", ")}
				all = append(all, c)
			}
		}
	}
	return all
}

// TestForwardedAllocates: finding an address behind proxies allocates nothing, however many ranges
// are trusted.
func TestForwardedAllocates(t *testing.T) {
	for _, c := range chains() {
		rs := mustCompile(t, policy.Policy{TrustedProxies: c.proxies, Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "9/1m")}}})
		var plan Plan
		if n := testing.AllocsPerRun(100, func() { plan.Reset(); plan.Add(rs, c.request) }); n != 0 {
			t.Errorf("%s: %v allocations", c.name, n)
		}
		if got := plan.Identity().ID; got != c.want {
			t.Errorf("%s: found %q, want %q", c.name, got, c.want)
		}
	}
}

// BenchmarkIdentifyForwarded measures finding a client behind proxies. The baseline is
// the peer of the connection, without proxies.
func BenchmarkIdentifyForwarded(b *testing.B) {
	ways := []benchpair.Way{wayToIdentify(b, "peer/IPv4", policy.Policy{}, get("198.51.100.77", "/")),
		wayToIdentify(b, "peer/IPv6", policy.Policy{}, get("2001:db8:1:2:3:4:5:6", "/"))}
	for _, c := range chains() {
		ways = append(ways, wayToIdentify(b, c.name, policy.Policy{TrustedProxies: c.proxies}, c.request))
	}
	benchpair.Measure(b, ways)
}
