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
	envoys(t, 1)(on, 0, localPolicy)
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
	await.Until(t, 20*time.Second, "both nodes know of each other", func() bool {
		return on.redis.Client().ZCard(t.Context(), "rl1:~nodes:{~nodes}").Val() == groupNodes
	})
	<-time.After(3 * time.Second) // a node counts the others every two seconds
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
