// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
)

// localPolicy makes each node enforce its share of the limit while Redis is down.
const localPolicy = "name: own\nrules: [{name: all, limit: 100/31d, on_error: local}]\n"

// TestLocalShares tests that while Redis is down, each of two Caddys admits half of the limit and
// denies the rest. When Redis is back, its counters decide again.
func TestLocalShares(t *testing.T) {
	t.Parallel()
	on := newNodeGroup(t)
	caddies(t, 1)(on, 0, localPolicy)
	checkShares(t, on)
}

// TestLocalSharesBehindEnvoy is [TestLocalShares] for two bridges of one Envoy.
func TestLocalSharesBehindEnvoy(t *testing.T) {
	t.Parallel()
	on := newNodeGroup(t)
	envoysWith(t, 1, longDeadline)(on, 0, localPolicy)
	checkShares(t, on)
}

// checkShares tests the shares of two nodes while Redis is down.
func checkShares(t *testing.T, on *nodeGroup) {
	t.Helper()
	const each, half = 80, 50
	decided := func() bool {
		for _, address := range on.nodes {
			if a, err := ask(http.DefaultClient, "http://"+address+"/"); err != nil || a.header.Get("RateLimit") == "" {
				return false
			}
		}
		return true
	}
	eventually.Until(t, 20*time.Second, "Redis decides", decided)
	both := on.awaitRegistered(t, 0)
	on.awaitRegistered(t, both) // now each node knows of both nodes
	for _, l := range on.links {
		l.cut()
	}
	for node, address := range on.nodes {
		var admitted, refused int
		for range each {
			a, err := ask(http.DefaultClient, "http://"+address+"/")
			switch {
			case err != nil:
				t.Fatal(err)
			case a.header.Get("RateLimit") != "" || a.header.Get("X-RateLimit-Limit") != "":
				t.Errorf("a local answer tells of numbers: %v", a.header)
			case a.status == http.StatusOK:
				admitted++
			case a.status == http.StatusTooManyRequests && a.header.Get("Retry-After") != "":
				refused++
			default:
				t.Errorf("status %d, %v", a.status, a.header)
			}
		}
		if admitted != half || refused != each-half {
			t.Errorf("node %d let %d through and refused %d, want %d and %d", node, admitted, refused, half, each-half)
		}
	}
	for _, l := range on.links {
		l.reconnect()
	}
	eventually.Until(t, 40*time.Second, "Redis decides again", decided)
}

// awaitRegistered waits until both nodes have registered after the given time of Redis' clock. It
// returns the time of the later registration.
func (g *nodeGroup) awaitRegistered(t *testing.T, after float64) (last float64) {
	t.Helper()
	eventually.Until(t, 20*time.Second, "both nodes say that they are there", func() bool {
		// the oldest first
		said := g.redis.Client().ZRangeWithScores(t.Context(), "rl1:~nodes:{~nodes}", 0, -1).Val()
		if len(said) != groupNodes || said[0].Score <= after {
			return false
		}
		last = said[groupNodes-1].Score
		return true
	})
	return last
}
