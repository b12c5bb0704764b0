// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"testing"

	"github.com/penstock/penstock/internal/envoy/wire"
)

// TestFiltersGetTheNodeCount: filters get the number of nodes that share the store.
func TestFiltersGetTheNodeCount(t *testing.T) {
	for nodes, want := range map[int]string{0: "", 1: "", 3: "3"} {
		h := open(t, shop, func(o *Options) { o.Nodes = func() int { return nodes } })
		w := h.post(h.call(h.question("/api/x", "192.0.2.1")), wire.ContentType)
		if got := w.Header().Get(wire.NodesHeader); w.Code != 200 || got != want {
			t.Errorf("%d nodes: status %d, %q", nodes, w.Code, got)
		}
	}
}
