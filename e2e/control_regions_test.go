// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/pgtest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// regionPlane is a control plane that publishes to the regions us and eu, and a Caddy in eu. The
// control plane is in us, 200 ms from eu.
type regionPlane struct {
	*policyPlane
	us, eu *redistest.Server
	way    *link // from the control plane to eu
	node   *process
}

func startRegions(t *testing.T) *regionPlane {
	t.Helper()
	p := &regionPlane{policyPlane: &policyPlane{folder: t.TempDir()}, us: redistest.Start(t), eu: redistest.StartTCP(t)}
	p.way = newLink(t, strings.TrimPrefix(p.eu.URL(), "redis://"))
	p.way.addToxic("latency", map[string]int{"latency": roundTripMillis / 2})
	file := filepath.Join(p.folder, "policy.key")
	p.public = strings.TrimSpace(penstock(t, "control", "policy", "key", file).mustSucceed(t))
	p.controlPlane = startControl(t, pgtest.Database(t), "", "", "--policy-key", file, "--region", "us="+p.us.URL(), "--region", "eu="+p.way.url())
	p.publish("3")
	p.awaitBoth("the policy", func(redis *redistest.Server) bool { return redis.Client().Exists(t.Context(), publishedKey).Val() == 1 })
	p.node = startCaddy(t, p.caddyfile("eu"), "PENSTOCK_REDIS="+p.eu.URL())
	return p
}

// publish publishes a revision with the given limit per hour.
func (p *regionPlane) publish(limit string) {
	p.t.Helper()
	p.put(shopLimit(limit + "/1h"))
	p.policy("publish", "--all", "--reason", "a test").mustSucceed(p.t)
}

// awaitBoth waits until the function named has returns true for both regions, and logs how long
// that took.
func (p *regionPlane) awaitBoth(what string, has func(*redistest.Server) bool) {
	p.t.Helper()
	began := time.Now()
	for name, redis := range map[string]*redistest.Server{"us": p.us, "eu": p.eu} {
		eventually.Until(p.t, controlPatience, what+" is in "+name, func() bool { return has(redis) })
	}
	p.t.Logf("%s is in both regions after %v", what, time.Since(began))
}

// blocked returns a function that reports whether a Redis has a block of the given client.
func (p *regionPlane) blocked(user string) func(*redistest.Server) bool {
	return func(redis *redistest.Server) bool {
		return strings.Contains(redis.Client().Get(p.t.Context(), "rl1:~who:header.x-user:"+user).Val(), `"block"`)
	}
}

// awaitLine waits until penstock control status prints a line that begins with the given pattern.
func (p *regionPlane) awaitLine(line string) {
	p.t.Helper()
	file := filepath.Join(p.folder, "token")
	writeFile(p.t.(*testing.T), file, p.token+"\n")
	pattern := regexp.MustCompile("(?m)^" + line)
	eventually.Until(p.t, controlPatience, "the status has the line "+line, func() bool {
		return pattern.MatchString(penstock(p.t, "control", "status", "--control", "http://"+p.address, "--control-token-file", file).mustSucceed(p.t))
	})
}

// TestRegions tests that records and policies reach all regions. A region that is cut off keeps
// what it has, and does not delay other regions. It gets everything as soon as the link is back.
func TestRegions(t *testing.T) {
	t.Parallel()
	p := startRegions(t)
	p.edit("header.x-user:bob", "block")
	p.awaitBoth("a record", p.blocked("bob"))
	p.publish("4")
	began := time.Now()
	eventually.Until(t, controlPatience, "the policy is in force in eu", func() bool { return p.node.limit("ann") == "4" })
	t.Logf("a policy is in force in eu after %v", time.Since(began))
	p.awaitLine(`us +(\d+) of \d+ +1 of 1 +current`)
	p.awaitLine(`eu +(\d+) of \d+ +1 of 1 +current`)

	p.way.cut()
	p.awaitLine("eu .*interrupted since .* it keeps what it has: ")
	for _, user := range []string{"ann", "eve"} {
		p.edit("header.x-user:"+user, "block")
	}
	p.publish("5")
	eventually.Until(t, controlPatience, "us has what is new", func() bool { return p.blocked("ann")(p.us) && p.blocked("eve")(p.us) })
	p.awaitLine(`us +(\d+) of \d+ +1 of 1 +current`)
	p.awaitLine(`eu +(\d+) of \d+ +0 of 1 `)
	if limit := p.node.limit("zoe"); limit != "4" || !p.blocked("bob")(p.eu) || p.blocked("ann")(p.eu) {
		t.Errorf("eu is cut off, and has the limit %s", limit)
	}
	if status, r := p.ready(); status != 200 || !strings.HasPrefix(r.Redis, "eu: ") {
		t.Errorf("one region is cut off: %d %+v", status, r)
	}

	p.way.reconnect()
	began = time.Now()
	for _, user := range []string{"bob", "ann", "eve"} {
		p.awaitBoth("the record of "+user, p.blocked(user))
	}
	eventually.Until(t, controlPatience, "the policy is in force in eu", func() bool { return p.node.limit("zoe") == "5" })
	t.Logf("eu has everything %v after the link is back", time.Since(began))
	p.awaitLine(`eu +(\d+) of \d+ +1 of 1 +current`)
}
