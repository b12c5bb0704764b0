// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/await"
)

// localPolicy limits by the node's share where Redis is away.
const localPolicy = "name: own\nrules: [{name: all, limit: 100/31d, on_error: local}]\n"

// TestLocalShares: while Redis is away each of two Caddys lets through half of the limit, as many as there were nodes, and the rest is
// refused; when it is back it decides again, by what it had counted.
func TestLocalShares(t *testing.T) {
	on := newNodeGroup(t)
	caddies(t, 1)(on, 0, localPolicy)
	sharesLocally(t, on)
}

// TestLocalSharesBehindEnvoy is the same for two bridges of an Envoy.
func TestLocalSharesBehindEnvoy(t *testing.T) {
	on := newNodeGroup(t)
	envoysWith(t, 1, patient)(on, 0, localPolicy)
	sharesLocally(t, on)
}

// sharesLocally holds that for a group of two nodes.
func sharesLocally(t *testing.T, on *nodeGroup) {
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
	await.Until(t, 20*time.Second, "Redis decides", decided)
	both := on.enrolled(t, 0)
	on.enrolled(t, both) // each has counted since, and so both
	for _, l := range on.lines {
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
	for _, l := range on.lines {
		l.mend()
	}
	await.Until(t, 40*time.Second, "Redis decides again", decided)
}

// enrolled waits until both nodes have said that they are there, later than a time of Redis, and returns the later of the two times.
func (g *nodeGroup) enrolled(t *testing.T, after float64) (last float64) {
	t.Helper()
	await.Until(t, 20*time.Second, "both nodes say that they are there", func() bool {
		said := g.redis.Client().ZRangeWithScores(t.Context(), "rl1:~nodes:{~nodes}", 0, -1).Val() // the oldest first
		if len(said) != groupNodes || said[0].Score <= after {
			return false
		}
		last = said[groupNodes-1].Score
		return true
	})
	return last
}
