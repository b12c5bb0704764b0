// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/envoy/wire"
)

// TestLargeReceiptsLeaveRoomForOthers: a client whose requests need large receipts, because it
// sends long values in headers, does not displace the receipts of other clients in the same call.
func TestLargeReceiptsLeaveRoomForOthers(t *testing.T) {
	policy := "name: shop\nrules:\n"
	for i := range 8 {
		policy += fmt.Sprintf("- {name: r%d, per: [ip, \"header:X-A\", \"header:X-B\"], unverified: true, limit: 10000/1h, refund_on: {status: [5xx]}}\n", i)
	}
	h := open(t, policy, nil)
	items := make([]wire.Item, wire.ItemsMax)
	for i := range items {
		items[i] = h.question("/", "192.0.2.1")
		name := "short"
		if i < 200 {
			name = strings.Repeat("x", 250)
		}
		for j := range items[i].Ask.Headers {
			items[i].Ask.Headers[j] = wire.Value{Text: name, Given: true}
		}
	}
	large, small := 0, 0
	for i, a := range h.ask(items...) {
		switch {
		case a.Status != wire.StatusOK:
			t.Fatalf("answer %d: status %d", i, a.Status)
		case a.Receipt == "":
		case i < 200:
			large++
		default:
			small++
		}
	}
	if small != 56 || large < 50 || large > 150 {
		t.Errorf("%d of 56 small receipts, %d of 200 large ones", small, large)
	}
	if n := h.counted(`penstock_settlements_total{result="dropped"}`); n != 200-large {
		t.Errorf("%d receipts are counted as dropped, want %d", n, 200-large)
	}
}
