// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/pgtest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// usedPolicy has three rules: one with a limit that all clients share, one with a limit per client
// and a cost of two, and one whose cost is in the response. The filter leases units of the first
// two.
const usedPolicy = `name: shop
lease: auto
identify: [{header: {name: X-User, unverified: true}}]
rules:
  - {name: all, match: {path: /hot}, per: [], limit: 1000000/31d fixed_window}
  - {name: each, match: {path: /hot}, limit: 200000/31d fixed_window, cost: 2}
  - {name: priced, match: {path: /priced}, limit: 1000/31d, cost_after: {header: X-Cost, estimate: 10}}
`

// TestUsageBehindEnvoyIsExact tests that the usage in PostgreSQL is exact for each client and rule.
// The usage includes requests that the filter admits from leased units, and costs that responses
// report. The policy is edited during the test.
func TestUsageBehindEnvoyIsExact(t *testing.T) {
	t.Parallel()
	database, redis := pgtest.Database(t), redistest.Start(t)
	control := startControl(t, database, redis.URL(), "")
	one := &site{set: "on_error: deny\ndeadline: 10s"}
	useEnvoy(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Cost", "3") }), one)
	b := one.startBridge(t, usedPolicy, "--redis", redis.URL(), "--redis-timeout", "5s", "--control", "http://"+control.address,
		"--control-token-file", control.nodeToken(), "--spool", filepath.Join(t.TempDir(), "spool"))

	users := []string{"ann", "bob", "carl"}
	var admitted [3]atomic.Int64
	var load sync.WaitGroup
	stop := make(chan struct{})
	for connection := range 3 * len(users) {
		load.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				who := connection % len(users)
				switch a, err := ask(http.DefaultClient, "http://"+one.address+"/hot", "X-User", users[who]); {
				case err != nil:
					t.Error(err)
				case a.status == http.StatusOK:
					admitted[who].Add(1)
				}
			}
		})
	}
	enough := func() bool { return one.counter("leased") > 300 }
	eventually.Until(t, envoyPatience, "the filter admits from leased units", enough)
	loaded := one.counter("policy_loaded")
	b.policy.edit(strings.Replace(usedPolicy, "1000000/31d", "900000/31d", 1))
	eventually.Until(t, envoyPatience, "the filter has the new policy", func() bool { return one.counter("policy_loaded") > loaded })
	before := one.counter("leased")
	eventually.Until(t, envoyPatience, "the filter admits from leased units again", func() bool { return one.counter("leased") > before+300 })
	close(stop)
	load.Wait()
	for range 4 {
		if a := one.get(t, "/priced", "X-User", "carl"); a.status != http.StatusOK {
			t.Fatal(a)
		}
	}

	total := 0
	for who, user := range users {
		n := int(admitted[who].Load())
		total += n
		for rule, units := range map[string]int{"all": n, "each": 2 * n} {
			want := usedRow{"header.x-user:" + user, "shop", rule, "", n, 0, units}
			control.awaitRow(want)
		}
	}
	control.awaitUsage("all", usedRow{Admitted: total, Units: total})
	control.awaitUsage("each", usedRow{Admitted: total, Units: 2 * total})
	// Each response reports a cost of 3 units. For each request, 10 were reserved.
	control.awaitRow(usedRow{"header.x-user:carl", "shop", "priced", "", 4, 0, 12})
	control.awaitUsage("priced", usedRow{Admitted: 4, Units: 12})
}

// awaitRow waits until the usage of a client under a rule is the wanted row.
func (c *controlPlane) awaitRow(want usedRow) {
	c.t.Helper()
	var rows []usedRow
	defer func() {
		if c.t.Failed() {
			c.t.Logf("the usage is %+v", rows)
		}
	}()
	eventually.Until(c.t, controlPatience, fmt.Sprintf("the usage is %+v", want), func() bool {
		rows = c.usage("client=" + want.Client + "&rule=" + want.Rule)
		return len(rows) == 1 && rows[0] == want
	})
}
