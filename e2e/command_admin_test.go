// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/freeport"
	"github.com/penstock/penstock/internal/test/redistest"
)

// operated is a Caddyfile for tests of the commands that operators use. ADMIN is replaced by the
// address of the admin endpoint.
const operated = `{
	admin ADMIN
	penstock {
		store redis {env.PENSTOCK_REDIS} {
			timeout 5s
		}
	}
}
:SITE {
	penstock {
		name shop
		policy {env.POLICY}
	}
	respond "ok"
}
`

const operatedPolicy = `name: shop
identify: [{header: {name: X-User, unverified: true}}]
penalty: {window: 1h, threshold: 1, multipliers: [3]}
rules:
  - {name: api, match: {path: /api}, limit: 3/1h fixed_window}
  - {name: everyone, per: [], limit: 1000/1h fixed_window}
`

// clientReport is the part of a report about a client that the tests read.
type clientReport struct {
	Client   string
	Counters []struct {
		Policy, Rule, Limit, Key string
		Remaining                int64
	}
	Penalties []struct {
		Key        string
		Violations int64
		In_force   bool //nolint:revive // the name in the JSON
	}
}

func startOperated(t *testing.T, admin string) (p *process, file *policyFile) {
	file = newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml"))
	file.edit(operatedPolicy)
	p = startCaddy(t, strings.ReplaceAll(operated, "ADMIN", admin), "PENSTOCK_REDIS="+redistest.Start(t).URL(), "POLICY="+file.path)
	return p, file
}

// process.statuses sends n requests as a user and returns the statuses of the answers.
func (p *process) statuses(user string, n int) (all []int) {
	for range n {
		all = append(all, p.ask(p.t.Context(), "GET", "/api", "X-User", user).status)
	}
	return all
}

// TestOperatingACaddy runs the operators' commands against a Caddy, over TCP and over a Unix
// socket.
func TestOperatingACaddy(t *testing.T) {
	t.Parallel()
	t.Run("over TCP", func(t *testing.T) {
		p, file := startOperated(t, "ADMIN")
		checkOperating(t, p, file, p.admin)
	})
	t.Run("over a socket", func(t *testing.T) {
		dir, err := os.MkdirTemp("", "adm") // not t.TempDir, because a socket's path has at most 107 bytes
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		address := "unix/" + filepath.Join(dir, "s")
		p, file := startOperated(t, address)
		checkOperating(t, p, file, address)
	})
}

func checkOperating(t *testing.T, p *process, file *policyFile, admin string) {
	ask := func(args ...string) commandResult { return penstock(t, append(args, "--admin", admin)...) }
	const ann = "header.x-user:ann"
	about := func(verb string, more ...string) (reported clientReport) {
		t.Helper()
		ask(append([]string{verb, "--json", "--client", ann}, more...)...).read(t, &reported)
		if reported.Client != ann {
			t.Errorf("%s tells of %q", verb, reported.Client)
		}
		return reported
	}
	var rules rulesReport
	ask("rules", "--json").read(t, &rules)
	if len(rules.Policies) != 1 || rules.Policies[0].Name != "shop" || rules.Policies[0].File != file.path ||
		len(rules.Policies[0].Version) != 12 || len(rules.Policies[0].Policy.Rules) != 2 {
		t.Errorf("rules: %+v", rules)
	}
	p.statuses("ann", 4)
	p.statuses("bob", 2)
	reported := about("client")
	if len(reported.Counters) != 2 || reported.Counters[0].Key != "rl1:shop:api:{header.x-user:ann}:3600s:fw" || reported.Counters[0].Remaining != 0 ||
		len(reported.Penalties) != 1 || !reported.Penalties[0].In_force || reported.Penalties[0].Violations != 1 {
		t.Errorf("client: %+v", reported)
	}
	var same clientReport
	if ask("client", "--json", "--client", "header.X-User:ann").read(t, &same); len(same.Counters) != 2 || same.Counters[0].Remaining != 0 {
		t.Errorf("the client by its header as it is written: %+v", same)
	}
	if reset := about("reset"); len(reset.Counters) != 1 || reset.Counters[0].Rule != "api" {
		t.Errorf("reset of what is the client's own: %+v", reset)
	}
	if got := p.statuses("ann", 1); got[0] != 429 {
		t.Errorf("under its penalty: %v", got)
	}
	if said := ask("lift", "--client", ann).mustSucceed(t); said != "policy shop: no penalty is in force for header.x-user:ann, and its violations are forgotten\n" {
		t.Errorf("lift prints %q", said)
	}
	if got := p.statuses("ann", 4); got[0] != 200 || got[2] != 200 || got[3] != 429 {
		t.Errorf("after reset and lift: %v", got)
	}
	if reported := about("client", "--rule", "everyone"); len(reported.Counters) != 1 || reported.Counters[0].Remaining != 1000-3-2-3 {
		t.Errorf("the counter of everyone: %+v", reported)
	}
	var top struct {
		Clients []struct {
			Client  string
			Refused int
		}
	}
	ask("top", "-n", "1", "--json").read(t, &top)
	if len(top.Clients) != 1 || top.Clients[0].Client != ann || top.Clients[0].Refused != 3 {
		t.Errorf("top: %+v", top)
	}
	file.edit(strings.Replace(operatedPolicy, "3/1h fixed_window", "3/hour", 1))
	ask("reload").mustFail(t, `policy.yaml:5: rules[0] "api".limit[0]: `, `"3/hour"`, "1h")
	file.edit(strings.Replace(operatedPolicy, "3/1h fixed_window", "9/1h fixed_window", 1))
	var reloaded rulesReport
	ask("reload", "--json").read(t, &reloaded)
	if reloaded.Policies[0].Version == rules.Policies[0].Version {
		t.Error("reload tells of the version before")
	}
	if line := ask("reload").mustSucceed(t); strings.Count(line, "\n") != 1 || !strings.Contains(line, `(policy "shop", version `+reloaded.Policies[0].Version+")") {
		t.Errorf("reload prints %q", line)
	}
	about("lift")
	if got := p.ask(t.Context(), "GET", "/api", "X-User", "ann"); got.status != 200 || got.number("X-RateLimit-Remaining") != 5 {
		t.Errorf("after a reload that raised the limit by six: %d with %d left", got.status, got.number("X-RateLimit-Remaining"))
	}
	mistakes(t, ask)
}

// mistakes runs commands with wrong arguments, and checks that each fails with a message that
// contains a remedy. Before that, it checks two commands that print tables.
func mistakes(t *testing.T, ask func(args ...string) commandResult) {
	if table := ask("rules").mustSucceed(t); !strings.HasPrefix(table, "POLICY ") || !strings.Contains(table, "path /api") {
		t.Errorf("rules prints %s", table)
	}
	if table := ask("top", "-n", "1").mustSucceed(t); !strings.HasPrefix(table, "DENIED  ADMITTED  ") ||
		!strings.Contains(table, "\nDENIED  POLICY  CLIENT\n") {
		t.Errorf("top: %q", table)
	}
	ask("client").mustFail(t, `"client"`)
	ask("client", "--client", "ann").mustFail(t, `client "ann" has no kind or no id`, "user:u_42")
	ask("client", "--client", "ip:nowhere").mustFail(t, `"ip:nowhere" is not an address`, "ip:192.0.2.7")
	ask("client", "--client", "user:ann", "--policy", "shp").mustFail(t, `"shp"`, `there are: ["shop"]`)
	ask("reset", "--client", "user:ann", "--rule", "apii").mustFail(t, `"apii"`, "/penstock/rules")
	ask("client", "--client", "user:ann").endsWith(t, 3, "there is no client user:ann", "identifies clients by header.x-user")
	ask("lift", "--client", "user:ann", "--rule", "api").mustFail(t, "leave it out")
	ask("top", "-n", "0").mustFail(t, `"0"`, "1 to 1024")
	ask("top", "-n", "many").mustFail(t, `"many"`, "penstock top --help")
	ask("rules", "shop").mustFail(t, `"shop"`, "penstock rules --help")
	ask("reset", "--clint", "user:ann").mustFail(t, "--clint", "penstock reset --help")
	ask("client", "--client", "usr:ann").mustFail(t, `"usr:ann"`, "write user:ID")
	penstock(t, "ruels").mustFail(t, `"ruels"`, "penstock --help")
}

// TestOperatingWithoutAServer runs commands where no Penstock can answer them: a Caddy without an
// admin endpoint, an address without a Caddy, and a Caddy without Penstock.
func TestOperatingWithoutAServer(t *testing.T) {
	t.Parallel()
	address := freeport.Address(t)
	p := startCaddy(t, strings.ReplaceAll(operated, "ADMIN", "off"), "PENSTOCK_REDIS="+redistest.Start(t).URL(),
		"POLICY="+writeOperatedFile(t))
	if got := p.statuses("ann", 1); got[0] != 200 {
		t.Errorf("without an admin endpoint: %v", got)
	}
	for _, admin := range []string{address, "unix//nowhere/socket"} {
		penstock(t, "rules", "--admin", admin).mustFail(t, "asking Caddy", "is it running, and is its admin endpoint on?")
	}
	penstock(t, "rules", "--admin", "not an address").mustFail(t, `"not an address"`, "host:port")
	bare := startCaddy(t, "{\n\tadmin ADMIN\n}\n:SITE {\n\trespond \"ok\"\n}\n")
	penstock(t, "rules", "--admin", bare.admin).mustFail(t, "404", "the running configuration has no penstock")
	penstock(t, "rules", "--admin", bare.address).mustFail(t, bare.address, "is not Caddy's admin endpoint")
}

func writeOperatedFile(t *testing.T) string {
	file := newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml"))
	file.edit(operatedPolicy)
	return file.path
}
