// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/published"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/pgtest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// publishedKey is the Redis key under which the policy named shop is published.
const publishedKey = "rl1:~policy:{~policy}:shop"

// shopLimit returns a policy named shop with the given limit. Its rule named "no" needs no Redis,
// so that rule shows which policy a node has while Redis is down.
func shopLimit(limit string) string {
	return "name: shop\nidentify: [{header: {name: X-User, unverified: true}}, ip]\nrules: [{name: no, match: {header: {X-User: mallory}}, action: block}, " +
		"{name: api, limit: " + limit + "}]\n"
}

// policyPlane is a control plane with a key for signing policies.
type policyPlane struct {
	*controlPlane
	redis  *redistest.Server
	public string
	folder string
}

func startPolicies(t *testing.T) *policyPlane {
	t.Helper()
	return startPoliciesOf(t, pgtest.Database(t))
}

// startPoliciesOf is startPolicies with a given database.
func startPoliciesOf(t *testing.T, database string) *policyPlane {
	t.Helper()
	p := &policyPlane{redis: redistest.Start(t), folder: t.TempDir()}
	file := filepath.Join(p.folder, "policy.key")
	p.public = strings.TrimSpace(penstock(t, "control", "policy", "key", file).mustSucceed(t))
	if again := penstock(t, "control", "policy", "key", file).mustSucceed(t); strings.TrimSpace(again) != p.public {
		t.Errorf("the key is %s, and then %s", p.public, again)
	}
	p.controlPlane = startControl(t, database, p.redis.URL(), "", "--policy-key", file)
	return p
}

// policyPlane.policy runs a command of penstock control policy.
func (p *policyPlane) policy(args ...string) commandResult {
	p.t.Helper()
	file := filepath.Join(p.folder, "token")
	writeFile(p.t.(*testing.T), file, p.token+"\n")
	return penstock(p.t, append(append([]string{"control", "policy"}, args...), "--control", "http://"+p.address, "--control-token-file", file)...)
}

// policyPlane.put writes a revision of the policy, without publishing it.
func (p *policyPlane) put(text string) string {
	p.t.Helper()
	file := filepath.Join(p.folder, "shop.yaml")
	writeFile(p.t.(*testing.T), file, text)
	return p.policy("put", file, "--reason", "a test").mustSucceed(p.t)
}

// policyPlane.caddyfile returns the Caddyfile of a node.
func (p *policyPlane) caddyfile(node string) string {
	return `{
	admin ADMIN
	penstock {
		store redis {env.PENSTOCK_REDIS}
	}
}
:SITE {
	penstock {
		policy redis shop {
			key ` + p.public + `
			state_dir ` + filepath.Join(p.folder, node) + `
			node ` + node + `
		}
	}
	respond "hello"
}
`
}

func (p *policyPlane) node(name string) *process {
	p.t.Helper()
	return startCaddy(p.t, p.caddyfile(name), "PENSTOCK_REDIS="+p.redis.URL())
}

// bridge starts a bridge that follows the policy.
func (p *policyPlane) bridge() *bridge {
	t := p.t
	t.Helper()
	b := &bridge{listen: socket(t.(*testing.T))}
	b.server = startServer(t, exec.Command(penstockProgram(t), "bridge", "--listen", "unix:"+b.listen, "--policy", "redis:shop", "--policy-key", p.public,
		"--policy-dir", filepath.Join(p.folder, "bridge"), "--redis", p.redis.URL()))
	eventually.Until(t, controlPatience, "the bridge answers", func() bool {
		b.mustRun()
		_, err := os.Stat(b.listen)
		return err == nil
	})
	return b
}

// module starts an Envoy with the native module that follows the policy.
func (p *policyPlane) module(name string) *site {
	p.t.Helper()
	_, sites := startModule(p.t, module(p.t), nil, "policy_redis: {name: shop, keys: \""+p.public+"\", state_dir: "+
		filepath.Join(p.folder, name)+", node: "+name+"}\n"+inRedis(p.redis))
	return sites[0]
}

// limit returns the limit that a node reports to a user.
func (p *process) limit(user string) string {
	return p.ask(p.t.Context(), "GET", "/", "X-User", user).header.Get("X-RateLimit-Limit")
}

// TestPoliciesFromTheControlPlane publishes a policy to two Caddys, a bridge and a native module.
// It also tests a revision that does not compile, a forged policy, an emptied Redis, and a node
// that starts while Redis is down.
func TestPoliciesFromTheControlPlane(t *testing.T) {
	t.Parallel()
	p := startPolicies(t)
	p.policy("list").mustSucceed(t)
	if out := p.put(shopLimit("3/1h")); !strings.Contains(out, "revision 1 of shop is written, and not published yet") {
		t.Error(out)
	}
	p.policy("publish", "--shadow", "--reason", "a test").mustFail(t, "no revision is in force yet")
	p.policy("publish", "--all", "--reason", "a test").mustSucceed(t)
	eventually.Until(t, controlPatience, "the policy is in Redis", func() bool { return p.redis.Client().Exists(t.Context(), publishedKey).Val() == 1 })
	nodes, b, native := []*process{p.node("a"), p.node("b")}, p.bridge(), p.module("m")
	for i, node := range nodes {
		if got := node.limit("ann"); got != "3" {
			t.Errorf("node %d has the limit %q", i, got)
		}
	}

	bad := filepath.Join(p.folder, "bad.yaml")
	writeFile(t, bad, "name: shop\nrules:\n  - {name: api, limit: 5/fortnight}\n  - {name: api, limit: 0/1m}\n")
	p.policy("put", bad, "--reason", "a test").mustFail(t, "bad.yaml:3", "fortnight", "bad.yaml:4")
	writeFile(t, bad, shopLimit("9/1h"))
	p.policy("put", bad, "--reason", "a test", "--if-revision", "7").mustFail(t, "412", "has changed since it was read")

	p.put(shopLimit("5/1h"))
	before := b.version(t)
	began := time.Now()
	p.policy("publish", "--all", "--reason", "a test").mustSucceed(t)
	in := func(limit string) {
		t.Helper()
		eventually.Until(t, controlPatience, "all nodes have the limit "+limit, func() bool {
			return nodes[0].limit("bob") == limit && nodes[1].limit("bob") == limit &&
				native.get(t, "/", "X-User", "bob").header.Get("X-RateLimit-Limit") == limit
		})
	}
	in("5")
	eventually.Until(t, controlPatience, "the bridge has the policy", func() bool { return b.version(t) != before })
	t.Logf("from the command to two Caddys, a bridge and a native module: %v", time.Since(began))

	if out := p.policy("diff", "1", "2").mustSucceed(t); !strings.Contains(out, "rules changed: api (limit)") {
		t.Error(out)
	}
	p.policy("rollback", "1", "--reason", "a test").mustSucceed(t)
	in("3")
	if out := p.policy("list", "--name", "shop").mustSucceed(t); !strings.Contains(out, "rollback to 1") {
		t.Error(out)
	}

	p.explains()
	in("3")
	p.testForgery(nodes)
}

// policyPlane.explains tests penstock control policy explain, for example for a client that has a
// limit of its own in the directory.
func (p *policyPlane) explains() {
	t := p.t
	t.Helper()
	if status, text := p.send("POST", "/v1/clients/header.x-user:ann/edits", `{"action":"set-limit","rule":"api","limits":["70/1h"],"reason":"a test"}`); status != http.StatusOK {
		t.Fatal(text)
	}
	if out := p.policy("explain", "--path", "/api", "--header", "X-User: ann").mustSucceed(t); !strings.Contains(out, "70/1h") {
		t.Errorf("a client with an override: %s", out)
	}
	if out := p.policy("explain", "--path", "/api", "--header", "X-User: bob", "--revision", "2").mustSucceed(t); !strings.Contains(out, "5/1h") {
		t.Errorf("a client without one, in revision 2: %s", out)
	}
	if out := p.policy("explain", "--header", "X-User: mallory").mustSucceed(t); !strings.Contains(out, "blocked") {
		t.Errorf("a client that a rule blocks: %s", out)
	}
}

// testForgery writes a policy with an invalid signature to Redis, and tests that the nodes reject
// it. It also tests a node that starts while Redis is away.
func (p *policyPlane) testForgery(nodes []*process) {
	t := p.t
	t.Helper()
	text := p.redis.Client().Get(t.Context(), publishedKey).Val()
	p.kill() // the control plane would replace a forged policy within two seconds
	refused := nodes[0].edits("shop", "refused")
	forged := strings.Replace(text, `"generation":1`, `"generation":2`, 1)
	if forged == text {
		t.Fatalf("the text is %.200q", text)
	}
	if err := p.redis.Client().Set(t.Context(), publishedKey, forged, 0).Err(); err != nil {
		t.Fatal(err)
	}
	p.redis.Client().Publish(t.Context(), "rl1:~policies", "shop")
	eventually.Until(t, controlPatience, "a forged policy is counted", func() bool { return nodes[0].edits("shop", "refused") > refused })
	if got := nodes[0].limit("bob"); got != "3" {
		t.Errorf("after a forged policy, the limit is %s", got)
	}
	if !strings.Contains(nodes[0].log.String(), "is not signed by a key that this node trusts") {
		t.Error("the log does not tell of a forged policy")
	}

	p.redis.Kill()
	nodes[1].kill()
	last := startCaddy(t, p.caddyfile("b"), "PENSTOCK_REDIS="+p.redis.URL())
	if a := last.ask(t.Context(), "GET", "/", "X-User", "mallory"); a.status != http.StatusForbidden {
		t.Errorf("a node that started without Redis answers %d", a.status)
	}
	if !strings.Contains(last.log.String(), "the policy is the one that was kept on disk") {
		t.Error("the log does not tell of the policy on disk")
	}
}

// TestACandidateWithdrawsItself publishes a candidate, first in shadow and then to a share of the
// nodes. On these nodes it denies more requests than its bound permits, and so it is withdrawn.
func TestACandidateWithdrawsItself(t *testing.T) {
	t.Parallel()
	p := startPolicies(t)
	p.put(shopLimit("1000/1h"))
	p.policy("publish", "--all", "--reason", "a test").mustSucceed(t)
	eventually.Until(t, controlPatience, "the policy is in Redis", func() bool { return p.redis.Client().Exists(t.Context(), publishedKey).Val() == 1 })
	names := map[bool]string{} // the name of a node in a share of half the nodes, and of one outside that share
	for i := 0; len(names) < 2; i++ {
		name := fmt.Sprintf("node-%d", i)
		names[published.Place("shop", name) < 5000] = name
	}
	first, other := p.node(names[true]), p.node(names[false])

	p.put(shopLimit("1/1h"))
	p.policy("publish", "--shadow", "--reason", "a test").mustSucceed(t)
	const tried = `penstock_shadow_decisions_total{candidate="refused",policy="shop.shadow",present="admitted"}`
	eventually.Until(t, controlPatience, "a candidate in shadow would deny what the policy in force admits", func() bool {
		return first.ask(t.Context(), "GET", "/", "X-User", "ann").status == http.StatusOK && first.metric(tried) > 0
	})

	p.policy("publish", "2", "--share", "50%", "--promote-after", "1h", "--reason", "a test").mustFail(t, "422", "promote_after_seconds", "write denials_max_percent 5")
	p.policy("publish", "2", "--share", "50%", "--denials-max", "20%", "--promote-after", "500ms", "--reason", "a test").mustFail(t, "422", "write a number from 60")
	out := p.policy("publish", "2", "--share", "50%", "--denials-max", "20%", "--promote-after", "1h", "--reason", "a test").mustSucceed(t)
	if !strings.Contains(out, "revision 1 of shop is published to all nodes, and revision 2 on 50% of the nodes, up to 20% denials, to all after 1h (") {
		t.Error(out)
	}
	eventually.Until(t, controlPatience, "the node of the share has the candidate", func() bool { return first.limit("bob") == "1" })
	if got := other.limit("bob"); got != "1000" {
		t.Errorf("another node has the limit %s", got)
	}
	eventually.Until(t, controlPatience, "the list says when the candidate is promoted", func() bool {
		return strings.Contains(p.policy("list").mustSucceed(t), "2 on 50% of the nodes, up to 20% denials, to all at 20")
	})
	eventually.Until(t, controlPatience, "the candidate is withdrawn", func() bool {
		first.statuses("cid", 20)
		var found struct{ Publication struct{ Candidate int64 } }
		status, text := p.send("GET", "/v1/policies/shop", "")
		return status == http.StatusOK && json.Unmarshal([]byte(text), &found) == nil && found.Publication.Candidate == 0
	})
	eventually.Until(t, controlPatience, "the node of the share has the former policy", func() bool { return first.limit("dan") == "1000" })
	if _, text := p.send("GET", "/v1/changes?limit=1", ""); !strings.Contains(text, `"action":"withdraw 2"`) || !strings.Contains(text, "requests on 1 nodes were denied, and 20% is the bound") {
		t.Error(text)
	}
}
