// SPDX-License-Identifier: Apache-2.0

package status

import (
	"net/netip"
	"testing"
	"time"
)

// TestStatusCountsByNetwork: all addresses of one host share a bound, in every notation.
func TestStatusCountsByNetwork(t *testing.T) {
	b := NewBounds()
	now := time.Unix(1e9, 0)
	for i := range EachMax {
		addr := netip.MustParseAddr("192.0.2.1")
		if i%2 == 0 {
			addr = netip.MustParseAddr("::ffff:192.0.2.1")
		}
		if !b.admits(addr, now) {
			t.Fatalf("request %d", i)
		}
	}
	if b.admits(netip.MustParseAddr("192.0.2.1"), now) || !b.admits(netip.Addr{}, now) {
		t.Error("the bound is of one address")
	}
	if !b.admits(netip.MustParseAddr("192.0.2.1"), now.Add(time.Second)) {
		t.Error("the bound outlives its second")
	}
}
