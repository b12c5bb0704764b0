// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"io"
	"net/http"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

const unreadPolicy = `name: meter
on_error: deny
rules:
  - {name: tokens, limit: 1000000/31d fixed_window, cost_after: {json: usage.total_tokens, estimate: 100, default: 700, max: 50000}}
`

// TestUnreadCostsInEnvoy tests that the maximum cost is charged if the client closes a stream
// early, or if the filter cannot read the encoding of the response.
func TestUnreadCostsInEnvoy(t *testing.T) {
	t.Parallel()
	stream := "data: {\"usage\":{\"total_tokens\":3}}\n\n"
	s := &site{manager: "use_remote_address: true, xff_num_trusted_hops: 1"}
	useEnvoy(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/encoded" {
			respondsWith(usageJSON(6, "5000"), "Content-Encoding", r.Header.Get("Accept-Encoding"))(w, r)
			return
		}
		sendsPieces(streamKind, false, stream)(w, r)
		if r.URL.Path == "/held" {
			<-r.Context().Done()
		}
	}), s)
	m := &meteredSite{redis: redistest.Start(t)}
	s.startBridge(t, unreadPolicy, "--redis", m.redis.URL(), "--redis-timeout", "5s")
	for i, c := range []struct {
		path, accepts string
		charged       int64
	}{{"/whole", "identity", 3}, {"/held", "identity", 50000}, {"/encoded", "br", 50000}, {"/encoded", "gzip", 50000}} {
		ctx, leave := context.WithCancel(t.Context())
		address := clientAddress(i + 1)
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.address+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Forwarded-For", address)
		r.Header.Set("Accept-Encoding", c.accepts)
		answer, err := asIs.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if c.path == "/held" {
			_, _ = io.ReadFull(answer.Body, make([]byte, len(stream)))
		} else {
			_, _ = io.Copy(io.Discard, answer.Body)
		}
		leave()
		answer.Body.Close()
		eventually.Until(t, patience, c.path+" in "+c.accepts+" is charged", func() bool {
			got := m.countCharged(t, "tokens", address)
			if got != 100 && got != c.charged {
				t.Fatalf("%s in %s: %d charged, want %d", c.path, c.accepts, got, c.charged)
			}
			return got == c.charged
		})
	}
}
