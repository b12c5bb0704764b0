// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestGrants tests a grant for a client that has used up its limit. Two nodes together then admit
// exactly as many more requests as the grant has units. The commands show the grant separately from
// the limit.
func TestGrants(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	nodes := startDirected(t, server.URL(), 2)
	admitted := func(node *process, n int) (ok int) {
		for _, status := range node.statuses("ann", n) {
			if status == 200 {
				ok++
			}
		}
		return ok
	}
	limit := func(node *process, user string) string {
		return node.ask(t.Context(), "GET", "/api", "X-User", user).header.Get("X-RateLimit-Limit")
	}
	if got := admitted(nodes[0], 3) + admitted(nodes[1], 3); got != 3 {
		t.Fatalf("%d admitted before the grant, want 3", got)
	}
	const client = "header.x-user:ann"
	why := []string{"--reason", "the import of May", "--admin", nodes[0].admin}
	began := time.Now()
	penstock(t, append([]string{"client", "grant", client, "api", "5"}, why...)...).mustSucceed(t)
	total := 0
	for i, node := range nodes {
		eventually.Until(t, 20*time.Second, "the grant is in force", func() bool {
			got := admitted(node, 1)
			total += got
			return got == 1
		})
		t.Logf("node %d after %v", i, time.Since(began))
	}
	if total += admitted(nodes[0], 10) + admitted(nodes[1], 10); total != 5 {
		t.Errorf("%d admitted by the grant of 5", total)
	}
	if got := limit(nodes[1], "ann"); got != "8" {
		t.Errorf("the client is shown the limit %q, want 8", got)
	}
	if got := limit(nodes[1], "bob"); got != "3" {
		t.Errorf("another client is shown the limit %q, want 3", got)
	}
	shown := penstock(t, "client", "--json", "--client", client, "--admin", nodes[1].admin).mustSucceed(t)
	for _, part := range []string{`"limit": "3/31d`, `"granted": 5`, `"granted_until": "`} {
		if !strings.Contains(shown, part) {
			t.Errorf("the counters lack %s: %s", part, shown)
		}
	}
	if shown := penstock(t, "client", "show", client, "--admin", nodes[1].admin).mustSucceed(t); !strings.Contains(shown, "5 units once") {
		t.Errorf("show prints %q", shown)
	}
	penstock(t, append([]string{"client", "grant", client, "api", "5", "--window", "month"}, why...)...).mustFail(t, "the fixed and calendar windows are")
	penstock(t, append([]string{"client", "grant", client, "apy", "5"}, why...)...).mustFail(t, "apy")
	penstock(t, append([]string{"client", "ungrant", client, "api"}, why...)...).mustSucceed(t)
	for _, node := range nodes {
		eventually.Until(t, 20*time.Second, "the grant is removed", func() bool { return limit(node, "ann") == "3" })
	}
}
