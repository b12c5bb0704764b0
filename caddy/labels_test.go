// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"regexp"
	"strings"
	"testing"
)

// TestMetricsNeverNameAClient sends requests as several clients, by address and by header, some of
// them denied. The test then checks every label of the metrics.
func TestMetricsNeverNameAClient(t *testing.T) {
	s := start(t, `{
		servers {
			trusted_proxies static 127.0.0.1/32
			trusted_proxies_strict
		}
	}
	:PORT {
		penstock /ip 1/30d
		penstock /user 1/30d {
			identify header X-User unverified
		}
		respond "ok"
	}`)
	addresses, users := []string{"198.51.100.1", "2001:db8::7"}, []string{"ann-of-the-test", "bob-of-the-test"}
	for _, address := range addresses {
		equal(t, address, s.statuses(2, "/ip", "X-Forwarded-For", address), "200 429")
	}
	for _, user := range users {
		equal(t, user, s.statuses(2, "/user", "X-User", user), "200 429")
	}
	metrics := grep(s.metrics(), "penstock_")
	for _, who := range append(append(addresses, users...), "2001:db8:", "127.0.0.1") {
		if strings.Contains(metrics, who) {
			t.Errorf("the metrics name %s:\n%s", who, grep(metrics, who))
		}
	}
	known := map[string]bool{"policy": true, "rule": true, "outcome": true, "kind": true, "le": true, "result": true,
		"method": true, "state": true, "version": true, "server": true, "present": true, "candidate": true,
		"tier": true, "window": true, "revision": true, "goversion": true, "node": true, "front": true, "reason": true,
		// endpoint is a path pattern of the policy, never the path of a request.
		"endpoint": true}
	labels := regexp.MustCompile(`(?:\{|",)([a-z_]+)="`).FindAllStringSubmatch(metrics, -1)
	if len(labels) == 0 {
		t.Errorf("no labels at all:\n%s", metrics)
	}
	for _, label := range labels {
		if !known[label[1]] {
			t.Errorf("a label %q, which is not one that may be", label[1])
		}
	}
}
