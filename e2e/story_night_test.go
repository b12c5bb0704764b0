// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// alertStory is a [story] with a Prometheus that scrapes the Caddys.
type alertStory struct {
	*story
	monitor *monitor
	users   int // number of users that have sent requests
}

// TestTheStoryOfTheNight tests that an operator can find out why requests are denied. The cause is
// a client, the policy or the store. Each cause shows in different places: a client in the command
// top and in an event, the policy in the command nodes and in an alert, and the store in alerts
// about Redis and in an event.
func TestTheStoryOfTheNight(t *testing.T) {
	t.Parallel()
	n := &alertStory{story: startStory(t, redistest.StartTCP(t))}
	defer n.print()
	var admins []string
	for _, p := range n.caddies {
		admins = append(admins, p.admin)
	}
	n.monitor = startPrometheus(t, hasty, admins, nil)
	eventually.Until(t, patience, "the Caddys are scraped, and no alert fires", func() bool {
		pass(scrapePause)
		return n.monitor.answers("count(penstock_node_info) == 2") && len(n.alerts()) == 0
	})
	n.aClientIsTheCause()
	n.thePolicyIsTheCause()
	n.theStoreIsTheCause()
}

// alertStory.alerts returns the names of the alerts that fire, without those that a busy machine
// may cause.
func (n *alertStory) alerts() []string {
	n.t.Helper()
	fired := slices.DeleteFunc(n.monitor.firing(), func(name string) bool { return strings.HasPrefix(name, "PenstockCheckSlow") })
	slices.Sort(fired)
	return slices.Compact(fired)
}

// awaitAlerts waits until the wanted alerts fire, and adds the firing alerts to the transcript.
func (n *alertStory) awaitAlerts(load func(), wanted ...string) {
	n.t.Helper()
	n.monitor.awaitAlerts(load, slices.Clone(wanted)...)
	n.log("# alerts: %s", strings.Join(n.alerts(), ", "))
}

// alertStory.event sends requests until the bridge has written an event of the given kind, and adds
// the event to the transcript.
func (n *alertStory) event(kind, part string) (e eventLine) {
	n.t.Helper()
	found := ""
	eventually.Until(n.t, patience, fmt.Sprintf("the bridge reports %s with %s", kind, part), func() bool {
		n.visit()
		for line := range strings.Lines(n.bridge.log.String()) {
			if strings.HasPrefix(line, `{"time":`) && strings.Contains(line, `"kind":"`+kind+`"`) && strings.Contains(line, part) {
				found = line
				return true
			}
		}
		return false
	})
	if err := json.Unmarshal([]byte(found), &e); err != nil {
		n.t.Fatalf("%q: %v", found, err)
	}
	n.log("# an event of the bridge\n%s", found)
	return e
}

// alertStory.send sends a request of a user to each front.
func (n *alertStory) send(user string) {
	n.t.Helper()
	for _, front := range n.fronts {
		n.ask(front, "/api/orders", user)
	}
}

// alertStory.visit sends a request of a new user to each front.
func (n *alertStory) visit() {
	n.t.Helper()
	n.users++
	n.send(fmt.Sprintf("user-%d", n.users))
}

func (n *alertStory) aClientIsTheCause() {
	n.log("429s rise. No alert fires. Who is it?")
	n.exhaust("/api/orders", "mallory")
	for range 20 {
		n.send("mallory")
	}
	top := n.run("caddy-1", "top", "-n", "3")
	if !strings.Contains(top, "header.x-user:mallory") || !strings.Contains(top, "api") {
		n.t.Errorf("top prints %s", top)
	}
	e := n.event("denied", `"client":"header.x-user:mallory"`)
	if e.Rule != "api" || e.Limit != "5/week" || e.Status != http.StatusTooManyRequests || e.Time == "" || e.Count < 1 {
		n.t.Errorf("the event is %+v", e)
	}
	if nodes := n.run("caddy-1", "nodes"); strings.Contains(nodes, "degraded") || !strings.Contains(nodes, "bridge") {
		n.t.Errorf("nodes prints %s", nodes)
	}
	if fired := n.alerts(); len(fired) > 0 {
		n.t.Errorf("these alerts fire: %q", fired)
	}
	n.log("# alerts: none. It is a client.\n")
}

func (n *alertStory) thePolicyIsTheCause() {
	n.log("A new policy does not arrive at one node.")
	n.files[1].edit(strings.Replace(storyPolicy, "5/week", "5/weak", 1))
	n.awaitAlerts(func() {}, "PenstockPolicyRefused")
	if nodes := n.run("caddy-2", "nodes"); !strings.Contains(nodes, "degraded") || !strings.Contains(nodes, "the last edit of the policy") {
		n.t.Errorf("nodes prints %s", nodes)
	}
	refused := n.caddies[1].logLines(editRefused)
	if len(refused) == 0 || !strings.Contains(refused[0].Error, "5/weak") {
		n.t.Fatalf("the log of caddy-2 reports %+v", refused)
	}
	n.log("# the log of caddy-2\n%s: %s", refused[0].Msg, refused[0].Error)
	n.files[1].edit(storyPolicy)
	eventually.Until(n.t, patience, "the alert ends", func() bool { pass(scrapePause); return len(n.alerts()) == 0 })
	n.log("# It is the policy: the file is corrected, and the alert has ended.\n")
}

func (n *alertStory) theStoreIsTheCause() {
	n.log("Redis does not run.")
	n.redis.Kill()
	n.awaitAlerts(n.visit, "PenstockRedisDown", "PenstockDegraded")
	if e := n.event("degraded", `"state":"began"`); e.Reason == "" {
		n.t.Errorf("the event has no reason: %+v", e)
	}
	if nodes := n.run("caddy-1", "nodes", "--this-node"); !strings.Contains(nodes, "degraded") || !strings.Contains(nodes, "does not answer") {
		n.t.Errorf("nodes prints %s", nodes)
	}
	n.log("Redis is started again.")
	n.redis.Restart()
	if e := n.event("degraded", `"state":"ended"`); e.Count == 0 || e.Seconds <= 0 {
		n.t.Errorf("the event of the end is %+v", e)
	}
	eventually.Until(n.t, patience, "caddy-1 is ok again", func() bool {
		n.visit()
		return !strings.Contains(penstock(n.t, append([]string{"nodes", "--this-node"}, n.targets["caddy-1"]...)...).out, "degraded")
	})
	n.run("caddy-1", "nodes", "--this-node")
}
