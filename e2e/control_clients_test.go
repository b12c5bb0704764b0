// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
)

// usersTried is the number of users whose limits are read to see which of them get a candidate for
// a share of the clients.
const usersTried = 24

// policyPlane.reported waits until exactly the given number of nodes have reported themselves in
// Redis.
func (p *policyPlane) reported(nodes int) {
	p.t.Helper()
	eventually.Until(p.t, controlPatience, fmt.Sprintf("%d nodes have reported", nodes), func() bool {
		return len(p.redis.Client().Keys(p.t.Context(), "rl1:~node:*").Val()) == nodes
	})
}

// policyPlane.candidate returns the revision of the published candidate, or 0 if there is none.
func (p *policyPlane) candidate() int64 {
	p.t.Helper()
	var found struct{ Publication struct{ Candidate int64 } }
	status, text := p.send("GET", "/v1/policies/shop", "")
	if status != http.StatusOK || json.Unmarshal([]byte(text), &found) != nil {
		p.t.Fatal(status, text)
	}
	return found.Publication.Candidate
}

// lastChange fails the test unless the last change contains all the given texts.
func (p *policyPlane) lastChange(wants ...string) {
	p.t.Helper()
	_, text := p.send("GET", "/v1/changes?limit=1", "")
	for _, want := range wants {
		if !strings.Contains(text, want) {
			p.t.Errorf("the last change is %s, want %s", text, want)
		}
	}
}

// TestACandidateForAShareOfTheClients publishes a candidate for a share of the clients. Two Caddys
// and a native module apply it to the same clients. While a bridge runs, the publication is
// rejected. The candidate is withdrawn if a bridge starts later, or if it denies too much.
func TestACandidateForAShareOfTheClients(t *testing.T) {
	t.Parallel()
	p := startPolicies(t)
	p.put(shopLimit("1000/1h"))
	p.policy("publish", "--all", "--reason", "a test").mustSucceed(t)
	eventually.Until(t, controlPatience, "the policy is in Redis", func() bool { return p.redis.Client().Exists(t.Context(), publishedKey).Val() == 1 })
	nodes, native, b := []*process{p.node("a"), p.node("b")}, p.module("m"), p.bridge()
	p.reported(4)
	p.put(shopLimit("2/1h"))
	p.policy("publish", "--client-share", "10%", "--reason", "a test").mustFail(t, "422", `1 of the kind "bridge"`, "publish to a share of the nodes")
	b.signal(syscall.SIGTERM)
	p.reported(3)

	limits := func(node int) map[string]string {
		of := map[string]string{}
		for i := range usersTried {
			user := fmt.Sprintf("user-%d", i)
			if node < len(nodes) {
				of[user] = nodes[node].limit(user)
			} else {
				of[user] = native.get(t, "/", "X-User", user).header.Get("X-RateLimit-Limit")
			}
		}
		return of
	}
	tried := func(share string, least, most int) map[string]string {
		var first map[string]string
		eventually.Until(t, controlPatience, "the nodes decide alike, for "+share, func() bool {
			first = limits(0)
			n := 0
			for limit := range maps.Values(first) {
				if limit == "2" {
					n++
				}
			}
			return n >= least && n <= most && maps.Equal(first, limits(1)) && maps.Equal(first, limits(2))
		})
		return first
	}
	if out := p.policy("publish", "2", "--client-share", "25%", "--reason", "a test").mustSucceed(t); !strings.Contains(out, "and revision 2 for 25% of the clients") {
		t.Error(out)
	}
	before := tried("25%", 1, usersTried/2)
	p.policy("publish", "2", "--client-share", "75%", "--denials-max", "20%", "--reason", "a test").mustSucceed(t)
	now := tried("75%", usersTried/2+1, usersTried-1)
	var of []string
	for _, user := range slices.Sorted(maps.Keys(now)) {
		if now[user] == "2" {
			of = append(of, user)
		} else if before[user] == "2" {
			t.Errorf("%s has the candidate at 25%%, and not at 75%%", user)
		}
	}
	eventually.Until(t, controlPatience, "the candidate is withdrawn by its bound", func() bool {
		nodes[0].statuses(of[0], 2)
		return p.candidate() == 0
	})
	p.lastChange(`"action":"withdraw 2"`, "requests on 3 nodes were denied, and 20% is the bound")
	eventually.Until(t, controlPatience, "no client has the candidate", func() bool { return nodes[0].limit(of[0]) == "1000" })

	p.policy("publish", "2", "--client-share", "99%", "--reason", "a test").mustSucceed(t)
	p.bridge()
	eventually.Until(t, controlPatience, "the candidate is withdrawn because of a bridge", func() bool { return p.candidate() == 0 })
	p.lastChange(`"action":"withdraw 2"`, "some nodes cannot decide by the client", "bridge")
}
