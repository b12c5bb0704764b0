// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
	"github.com/penstock/penstock/internal/test/pgtest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// controlPatience is how long each step of these tests may take on a busy machine.
const controlPatience = 60 * time.Second

// controlPlane is a running "penstock control".
type controlPlane struct {
	*server
	address, token string
}

// startControl starts a process with a database and a Redis. If args name regions, redis is "". If
// the database already has tokens, the argument token is one of them. Otherwise it is "", and the
// process creates the first token. The argument args holds further flags.
func startControl(t *testing.T, database, redis, token string, args ...string) *controlPlane {
	t.Helper()
	return startControlAt(t, freeport.Address(t), database, redis, token, args...)
}

// startControlAt is startControl at a given address.
func startControlAt(t *testing.T, address, database, redis, token string, args ...string) *controlPlane {
	t.Helper()
	c := &controlPlane{address: address, token: token}
	file := filepath.Join(t.TempDir(), "token")
	command := exec.Command(penstockProgram(t), "control", "serve", "--listen", c.address, "--first-token-file", file)
	command.Env = append(os.Environ(), "PENSTOCK_DATABASE="+database, "REDIS_URL="+redis)
	if redis != "" {
		command.Args = append(command.Args, "--redis", "{env.REDIS_URL}")
	}
	command.Args = append(command.Args, args...)
	c.server = startServer(t, command)
	eventually.Until(t, controlPatience, "penstock control is ready", func() bool {
		c.mustRun()
		status, _ := c.ready()
		return status == http.StatusOK
	})
	if token == "" {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		c.token = strings.TrimSpace(string(text))
	}
	return c
}

// readiness is the answer of /readyz.
type readiness struct{ Database, Schema, Redis, Publisher, OIDC string }

// controlPlane.ready requests /readyz. The status is 0 if there is no answer.
func (c *controlPlane) ready() (status int, r readiness) {
	response, err := http.Get("http://" + c.address + "/readyz")
	if err != nil {
		return 0, r
	}
	defer response.Body.Close()
	_ = json.NewDecoder(response.Body).Decode(&r)
	return response.StatusCode, r
}

// controlPlane.send sends a request with the token, and returns the status and the body of the
// answer.
func (c *controlPlane) send(method, path, body string) (status int, text string) {
	c.t.Helper()
	r, err := http.NewRequest(method, "http://"+c.address+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+c.token)
	r.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return response.StatusCode, string(answer)
}

// controlPlane.edit makes an edit of a client through the API.
func (c *controlPlane) edit(client, action string) {
	c.t.Helper()
	path := "/v1/clients/" + url.PathEscape(client) + "/edits"
	if status, text := c.send("POST", path, `{"action":"`+action+`","reason":"a test"}`); status != http.StatusOK {
		c.t.Fatalf("%s %s: %d %s", action, client, status, text)
	}
}

// controlPlane.client runs "penstock client" with the arguments, and with the flags that make it
// call the control plane.
func (c *controlPlane) client(args ...string) commandResult {
	c.t.Helper()
	file := filepath.Join(c.t.TempDir(), "token")
	writeFile(c.t.(*testing.T), file, c.token+"\n")
	return penstock(c.t, append([]string{"client", "--control", "http://" + c.address, "--control-token-file", file}, args...)...)
}

// startControlled starts a Caddy with the configuration of "make run-control". Only addresses and
// paths are changed.
func startControlled(t *testing.T, redis string) *process {
	t.Helper()
	folder, err := filepath.Abs("../examples/control")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(folder, "Caddyfile"))
	if err != nil {
		t.Fatal(err)
	}
	caddyfile := strings.NewReplacer("admin localhost:2020", "admin ADMIN", ":8070 {", ":SITE {", "policy policy.yaml",
		"policy "+filepath.Join(folder, "policy.yaml")).Replace(string(text))
	return startCaddy(t, caddyfile, "PENSTOCK_REDIS="+redis)
}

// TestControlPlane tests a control plane and a Caddy under several faults. The control plane is
// killed, Redis is emptied, and PostgreSQL is killed. Limits stay in force under all of these
// faults.
func TestControlPlane(t *testing.T) {
	t.Parallel()
	database, redis := pgtest.Start(t), redistest.Start(t)
	node := startControlled(t, redis.URL())
	holds := func(what, user string, status int) {
		t.Helper()
		eventually.Until(t, controlPatience, what, func() bool { return node.statuses(user, 1)[0] == status })
	}
	first := startControl(t, database.URL(), redis.URL(), "")
	eventually.Until(t, controlPatience, "the first publishes", func() bool {
		_, r := first.ready()
		return r.Publisher == "publishes"
	})
	node.statuses("bob", 1)
	first.edit("header.x-user:bob", "block")
	holds("a client that the API blocks is denied", "bob", 403)

	second := startControl(t, database.URL(), redis.URL(), first.token)
	if _, r := second.ready(); r.Publisher != "stands by" {
		t.Errorf("of two processes the second %s", r.Publisher)
	}
	first.kill()
	if got := node.statuses("bob", 2); !slices.Equal(got, []int{403, 403}) {
		t.Errorf("after a control plane was killed: %v", got)
	}
	second.edit("header.x-user:ann", "block")
	holds("the second publishes after the first was killed", "ann", 403)

	if err := redis.Client().FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	eventually.Until(t, controlPatience, "an emptied Redis is filled", func() bool {
		return redis.Client().Exists(t.Context(), "rl1:~who:header.x-user:bob", "rl1:~generation:{~directory}").Val() == 2
	})
	holds("a block outlives an emptied Redis", "bob", 403)
	second.edit("header.x-user:bob", "unblock")
	holds("a change after that is published", "bob", 200)

	database.Kill()
	eventually.Until(t, controlPatience, "/readyz reports that PostgreSQL is away", func() bool {
		status, r := second.ready()
		return status == http.StatusServiceUnavailable && r.Database != "ok" && r.Redis == "ok"
	})
	if status, text := second.send("GET", "/v1/clients", ""); status != http.StatusServiceUnavailable || !strings.Contains(text, "the database does not answer") {
		t.Errorf("without PostgreSQL: %d %s", status, text)
	}
	if got := node.statuses("ann", 2); !slices.Equal(got, []int{403, 403}) {
		t.Errorf("without PostgreSQL: %v", got)
	}
	database.Restart()
	eventually.Until(t, controlPatience, "PostgreSQL is back", func() bool {
		status, _ := second.ready()
		return status == http.StatusOK
	})
	second.edit("header.x-user:ann", "unblock")
	holds("a change after that is published", "ann", 200)

	second.checkCommands(node)
	penstock(t, "client", "block", "header.x-user:cid", "--reason", "x", "--redis", redis.URL()).mustFail(t, "--control URL")
	verified := penstock(t, "control", "audit", "verify", "--database", database.URL()).mustSucceed(t)
	if !strings.Contains(verified, "changes are as they were written") {
		t.Error(verified)
	}
}

// checkCommands changes a client with the commands of "penstock client", and checks that the node
// applies the changes.
func (c *controlPlane) checkCommands(node *process) {
	t := c.t
	t.Helper()
	out := c.client("set-limit", "header.x-user:cid", "api", "1000/31d fixed_window", "--for", "1h", "--reason", "a test").mustSucceed(t)
	if !strings.Contains(out, "limits of api  1000/31d fixed_window until") {
		t.Error(out)
	}
	eventually.Until(t, controlPatience, "limits that the command sets apply", func() bool {
		return node.ask(node.t.Context(), "GET", "/api", "X-User", "cid").header.Get("X-RateLimit-Limit") == "1000"
	})
	c.client("grant", "header.x-user:cid", "api", "7", "--reason", "a test").mustSucceed(t)
	eventually.Until(t, controlPatience, "a grant of the command applies", func() bool {
		return node.ask(node.t.Context(), "GET", "/api", "X-User", "cid").header.Get("X-RateLimit-Limit") == "1007"
	})
	if out := c.client("history", "header.x-user:cid").mustSucceed(t); !strings.Contains(out, "admin  set-limit api 1000/31d fixed_window until") {
		t.Error(out)
	}
	c.client("show", "header.x-user:nobody").endsWith(t, 3, "there is no record of")
	c.client("set-tier", "header.x-user:cid", "golden", "--reason", "x").mustFail(t, `there is no tier "golden"`)
	if table := c.client("list", "-n", "1").mustSucceed(t); strings.Count(table, "\n") > 3 || !strings.HasPrefix(table, "CLIENT ") {
		t.Errorf("the list is %q", table)
	}
	if all := c.client("list", "--kind", "header.x-user", "--json").mustSucceed(t); !strings.Contains(all, `"client": "header.x-user:`) {
		t.Errorf("the list is %s", all)
	}
}
