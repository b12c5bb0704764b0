// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
)

// toldPolicy gives each client 100 units. Every region may admit all of them.
const toldPolicy = `name: shop
on_error: deny
regions: {us: 50, eu: 30, ap: 20}
across: gossip
identify: [{header: {name: X-User, unverified: true}}]
rules: [{name: all, limit: 100/31d fixed_window, gossip: 1s}]
`

// lending.used returns the number of a client's units that a region counts as used, as text.
func (l *lending) used(region, user string) string {
	l.t.Helper()
	words := strings.Fields(l.redis[region].Client().Get(l.t.Context(), "rl1:shop:all:{header.x-user:"+user+"}:2678400s:fw").Val())
	if len(words) < 2 {
		return ""
	}
	return words[1]
}

// awaitUsed waits until all regions count the wanted number of a client's units as used.
func (l *lending) awaitUsed(user, want string) {
	l.t.Helper()
	began := time.Now()
	eventually.Until(l.t, patience, "all regions know that "+user+" has used "+want, func() bool {
		for _, region := range l.names {
			if l.used(region, user) != want {
				return false
			}
		}
		return true
	})
	l.t.Logf("after %v all regions know that %s has used %s", time.Since(began).Round(time.Millisecond), user, want)
}

// takeAll sends n requests of a client to a region, and returns the number of admitted requests.
func (l *lending) takeAll(region, user string, n int) (admitted int) {
	l.t.Helper()
	for range n {
		if l.take(region, user) {
			admitted++
		}
	}
	return admitted
}

// TestRegionsTellEachOther tests "across: gossip" with three regions whose agents are 200 ms apart.
// Each region enforces the whole limit with its own Redis, and its agent reports the used units to
// the agents of the other regions. A unit that is used in one region soon counts in all of them.
// The limit is exceeded only by requests that are admitted before the agents have exchanged their
// reports. A region that is cut off still decides requests, and catches up later. A region whose
// agent was killed, or whose Redis has lost its data, catches up too.
func TestRegionsTellEachOther(t *testing.T) {
	t.Parallel()
	l := startLending(t, toldPolicy)
	l.startAgentAt("ap", freeport.Address(t), socket(t)) // a second agent does no harm

	// These are all 100 units of ann.
	for region, n := range map[string]int{"us": 50, "eu": 30, "ap": 20} {
		if got := l.takeAll(region, "ann", n); got != n {
			t.Errorf("ann gets %d of %d units in %s", got, n, region)
		}
	}
	l.awaitUsed("ann", "100")
	l.checkNothingLeft("ann")

	// After every 30 requests, ten in each region, the test waits for the agents. Until then, a
	// region does not know of the 20 units that the others may admit. So the limit is exceeded by
	// at most 20 units.
	total := 0
	for range 5 {
		for range 10 {
			for _, region := range l.names {
				total += l.takeAll(region, "bob", 1)
			}
		}
		l.awaitUsed("bob", strconv.Itoa(total))
	}
	if t.Logf("bob got %d units", total); total < 100 || total > 120 {
		t.Errorf("bob got %d units of 100, want at most 20 more", total)
	}
	l.checkNothingLeft("bob")

	l.cut(true)
	for _, region := range []string{"us", "eu"} {
		if got := l.takeAll(region, "carol", 60); got != 60 {
			t.Errorf("carol gets %d of 60 units in %s, which is cut off", got, region)
		}
	}
	l.cut(false)
	l.awaitUsed("carol", "120")
	l.checkNothingLeft("carol")

	l.agents["us"].kill()
	l.takeAll("us", "dan", 40)
	l.startAgent("us")
	l.awaitUsed("dan", "40")

	l.redis["eu"].Client().FlushAll(t.Context())
	eventually.Until(t, patience, "eu knows again what the others have counted", func() bool {
		return l.used("eu", "ann") == "70" && l.used("eu", "dan") == "40"
	})
	if shown := penstock(t, "regions", "--agent", "unix:"+l.admin["eu"]).mustSucceed(t); !strings.Contains(shown, "TOLD  HEARD") ||
		strings.Count(shown, "Z\n") != 2 {
		t.Errorf("penstock regions prints\n%s", shown)
	}
}
