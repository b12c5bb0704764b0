// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/freeport"
	"github.com/penstock/penstock/internal/redistest"
)

// operated is the head of a Caddyfile of which an operator asks; ADMIN stands for the endpoint's address.
const operated = `{
	admin ADMIN
	penstock {
		store redis {env.PENSTOCK_REDIS}
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

// clientTold is what a test reads of what is told of a client.
type clientTold struct {
	Client   string
	Counters []struct {
		Policy, Rule, Limit, Key string
		Remaining                int64
	}
	Penalties []struct {
		Key        string
		Violations int64
		In_force   bool //nolint:revive // as it stands in the JSON
	}
}

func startOperated(t *testing.T, admin string) (p *process, file *policyFile) {
	file = renamed(t, filepath.Join(t.TempDir(), "policy.yaml"))
	file.edit(operatedPolicy)
	p = startCaddy(t, strings.ReplaceAll(operated, "ADMIN", admin), "PENSTOCK_REDIS="+redistest.Start(t).URL(), "POLICY="+file.path)
	return p, file
}

// statuses asks as a user, n times.
func (p *process) statuses(user string, n int) (all []int) {
	for range n {
		all = append(all, p.ask(p.t.Context(), "GET", "/api", "X-User", user).status)
	}
	return all
}

// TestOperatingACaddy: what an operator asks and does, over TCP and over a Unix socket.
func TestOperatingACaddy(t *testing.T) {
	t.Run("over TCP", func(t *testing.T) {
		p, file := startOperated(t, "ADMIN")
		operates(t, p, file, p.admin)
	})
	t.Run("over a socket", func(t *testing.T) {
		dir, err := os.MkdirTemp("", "adm") // not t.TempDir: a socket's path is at most 107 bytes
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		address := "unix/" + filepath.Join(dir, "s")
		p, file := startOperated(t, address)
		operates(t, p, file, address)
	})
}

func operates(t *testing.T, p *process, file *policyFile, admin string) {
	ask := func(args ...string) said { return penstock(t, append(args, "--admin", admin)...) }
	const ann = "header.x-user:ann"
	about := func(verb string, more ...string) (told clientTold) {
		t.Helper()
		ask(append([]string{verb, "--client", ann}, more...)...).read(t, &told)
		if told.Client != ann {
			t.Errorf("%s tells of %q", verb, told.Client)
		}
		return told
	}
	var rules rulesTold
	ask("rules").read(t, &rules)
	if len(rules.Policies) != 1 || rules.Policies[0].Name != "shop" || rules.Policies[0].File != file.path ||
		len(rules.Policies[0].Version) != 12 || len(rules.Policies[0].Policy.Rules) != 2 {
		t.Errorf("rules: %+v", rules)
	}
	p.statuses("ann", 4)
	p.statuses("bob", 2)
	told := about("client")
	if len(told.Counters) != 2 || told.Counters[0].Key != "rl1:shop:api:{header.x-user:ann}:3600s:fw" || told.Counters[0].Remaining != 0 ||
		len(told.Penalties) != 1 || !told.Penalties[0].In_force || told.Penalties[0].Violations != 1 {
		t.Errorf("client: %+v", told)
	}
	var same clientTold
	if ask("client", "--client", "header.X-User:ann").read(t, &same); len(same.Counters) != 2 || same.Counters[0].Remaining != 0 {
		t.Errorf("the client by its header as it is written: %+v", same)
	}
	if reset := about("reset"); len(reset.Counters) != 1 || reset.Counters[0].Rule != "api" {
		t.Errorf("reset of what is the client's own: %+v", reset)
	}
	if got := p.statuses("ann", 1); got[0] != 429 {
		t.Errorf("under its penalty: %v", got)
	}
	about("lift")
	if got := p.statuses("ann", 4); got[0] != 200 || got[2] != 200 || got[3] != 429 {
		t.Errorf("after reset and lift: %v", got)
	}
	if told := about("client", "--rule", "everyone"); len(told.Counters) != 1 || told.Counters[0].Remaining != 1000-3-2-3 {
		t.Errorf("the counter of everyone: %+v", told)
	}
	var top struct {
		Clients []struct {
			Client  string
			Refused int
		}
	}
	ask("top", "-n", "1").read(t, &top)
	if len(top.Clients) != 1 || top.Clients[0].Client != ann || top.Clients[0].Refused != 3 {
		t.Errorf("top: %+v", top)
	}
	file.edit(strings.Replace(operatedPolicy, "3/1h fixed_window", "3/hour", 1))
	ask("reload").refuses(t, "policy.yaml:5: rules[0].limit[0]: ", `"3/hour"`, "1h")
	file.edit(strings.Replace(operatedPolicy, "3/1h fixed_window", "9/1h fixed_window", 1))
	var reloaded rulesTold
	ask("reload").read(t, &reloaded)
	if reloaded.Policies[0].Version == rules.Policies[0].Version {
		t.Error("reload tells of the version before")
	}
	about("lift")
	if got := p.ask(t.Context(), "GET", "/api", "X-User", "ann"); got.status != 200 || got.number("X-RateLimit-Remaining") != 5 {
		t.Errorf("after a reload that raised the limit by six: %d with %d left", got.status, got.number("X-RateLimit-Remaining"))
	}
	mistakes(t, ask)
}

// mistakes are questions that mean nothing: each is refused, and what to do instead is said.
func mistakes(t *testing.T, ask func(args ...string) said) {
	ask("client").refuses(t, `"client"`)
	ask("client", "--client", "ann").refuses(t, `client "ann" names nobody`, "user:u_42")
	ask("client", "--client", "ip:nowhere").refuses(t, `"ip:nowhere" is no address`, "ip:192.0.2.7")
	ask("client", "--client", "user:ann", "--policy", "shp").refuses(t, `"shp"`, `there are: ["shop"]`)
	ask("reset", "--client", "user:ann", "--rule", "apii").refuses(t, `"apii"`, "/penstock/rules")
	ask("lift", "--client", "user:ann", "--rule", "api").refuses(t, "leave it out")
	ask("top", "-n", "0").refuses(t, `"0"`, "1 to 1024")
	ask("top", "-n", "many").refuses(t, `"many"`, "penstock top --help")
	ask("rules", "shop").refuses(t, `"shop"`, "penstock rules --help")
	ask("reset", "--clint", "user:ann").refuses(t, "--clint", "penstock reset --help")
	ask("client", "--client", "usr:ann").refuses(t, `"usr:ann"`, "write user:ID")
	penstock(t, "ruels").refuses(t, `"ruels"`, "penstock --help")
}

// TestOperatingWhatIsNotThere: a Caddy without an admin endpoint, none at all, and one that limits nothing.
func TestOperatingWhatIsNotThere(t *testing.T) {
	address := freeport.Address(t)
	p := startCaddy(t, strings.ReplaceAll(operated, "ADMIN", "off"), "PENSTOCK_REDIS="+redistest.Start(t).URL(),
		"POLICY="+operatedFile(t))
	if got := p.statuses("ann", 1); got[0] != 200 {
		t.Errorf("without an admin endpoint: %v", got)
	}
	for _, admin := range []string{address, "unix//nowhere/socket"} {
		penstock(t, "rules", "--admin", admin).refuses(t, "asking Caddy", "is it running, and is its admin endpoint on?")
	}
	penstock(t, "rules", "--admin", "not an address").refuses(t, `"not an address"`, "host:port")
	bare := startCaddy(t, "{\n\tadmin ADMIN\n}\n:SITE {\n\trespond \"ok\"\n}\n")
	penstock(t, "rules", "--admin", bare.admin).refuses(t, "404", "the running configuration has no penstock")
	penstock(t, "rules", "--admin", bare.address).refuses(t, bare.address, "is not the admin endpoint of Caddy")
}

func operatedFile(t *testing.T) string {
	file := renamed(t, filepath.Join(t.TempDir(), "policy.yaml"))
	file.edit(operatedPolicy)
	return file.path
}
