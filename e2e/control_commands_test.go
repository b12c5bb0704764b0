// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/pgtest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestCommandsOfTiersTokensAndEvents tests commands that call a single operation of the API each.
// They create, list and delete a tier, print events, forget the client of these events, and revoke
// a token.
func TestCommandsOfTiersTokensAndEvents(t *testing.T) {
	t.Parallel()
	control := startControl(t, pgtest.Database(t), redistest.Start(t).URL(), "")
	run := func(args ...string) string {
		t.Helper()
		return control.run("", append(args, "--control=http://"+control.address)...).mustSucceed(t)
	}
	has := func(text string, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if !strings.Contains(text, part) {
				t.Errorf("%q is not in:\n%s", part, text)
			}
		}
	}
	run("tier", "put", "gold", "--note=49 a month", "--display-name=Gold", "--price-cents=4905", "--currency=USD", "--reason=sold")
	has(run("tier", "list"), "gold", "49 a month", "Gold", "49.05 USD")
	run("tier", "delete", "gold", "--reason=no longer sold")
	if out := run("tier", "list"); strings.Contains(out, "gold") {
		t.Errorf("a tier that was deleted is listed:\n%s", out)
	}

	node, err := os.ReadFile(control.nodeToken())
	if err != nil {
		t.Fatal(err)
	}
	admin := control.token
	control.token = strings.TrimSpace(string(node))
	event := `{"time":"` + time.Now().UTC().Format(time.RFC3339) + `","kind":"denied","policy":"shop","rule":"api","decision":"denied","client":"user:ann","count":7}`
	batch := "/v1/batches/" + strings.Repeat("a", 32) + "/1"
	if status, text := control.send("PUT", batch, event+"\n"+strings.ReplaceAll(event, "ann", "bob")); status != http.StatusOK {
		t.Fatal(status, text)
	}
	control.token = admin
	has(run("events", "--since=1h"), `"client":"user:ann"`, `"client":"user:bob"`, `"count":7`)
	if out := run("events", "--client=user:ann", "-n", "5"); strings.Count(out, "\n") != 1 {
		t.Errorf("one client's events are:\n%s", out)
	}
	if out := run("events", "-n", "1"); strings.Count(out, "\n") != 1 {
		t.Errorf("one event was asked for, and these are printed:\n%s", out)
	}
	has(run("forget", "user:ann", "--reason=asked to be"), "1 events, 0 rows of usage and 0 of denials have no name now")
	if out := run("events"); strings.Contains(out, "ann") || strings.Count(out, "\n") != 2 {
		t.Errorf("the events of a forgotten client are:\n%s", out)
	}

	tokens := run("token", "list")
	has(tokens, "TOKEN", "node", "admin")
	for line := range strings.Lines(tokens) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[2] == "node" {
			run("token", "revoke", fields[0], "--reason=lost")
		}
	}
	control.token = strings.TrimSpace(string(node))
	if status, text := control.send("PUT", batch, event); status != http.StatusUnauthorized {
		t.Errorf("a token that was revoked is answered %d %s", status, text)
	}
}

// TestCommandsThatExplainLimits tests the commands that print the limits of a client and the
// remaining units. The control plane reads the counters from Redis.
func TestCommandsThatExplainLimits(t *testing.T) {
	t.Parallel()
	key := filepath.Join(t.TempDir(), "policy.key")
	if out, err := exec.Command(penstockProgram(t), "control", "policy", "key", key).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	control := startControl(t, pgtest.Database(t), redistest.Start(t).URL(), "", "--policy-key", key)
	run := func(args ...string) string {
		t.Helper()
		return control.run("", append(args, "--control=http://"+control.address)...).mustSucceed(t)
	}
	file := filepath.Join(t.TempDir(), "policy.yaml")
	text := "name: shop\nidentify: [{header: {name: X-User, unverified: true}}, ip]\nrules: [{name: api, match: {path: /api/*}, limit: 100/1m}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	run("policy", "put", file, "--reason=a test")
	run("policy", "publish", "--all", "--reason=a test")
	if status, text := control.send("POST", "/v1/clients/header.x-user:ann/edits", `{"action":"set-limit","rule":"api","limits":["7/1d"],"reason":"a test"}`); status != http.StatusOK {
		t.Fatal(status, text)
	}
	for _, c := range []struct {
		wants []string
		args  []string
	}{
		{[]string{"rule      api: applies", "limit 7/1d of this client's record", "add --counters"}, []string{"policy", "explain", "--path=/api/a", "--client=header.x-user:ann"}},
		{[]string{"limit 100/1m of the rule", "100 of 100 left", "Redis: read, nothing was charged"}, []string{"policy", "explain", "--path=/api/a", "--ip=192.0.2.7", "--counters"}},
		{[]string{"rules     none matches"}, []string{"policy", "explain", "--path=/", "--ip=192.0.2.7"}},
		{[]string{`"limits_of": "this client's record"`, `"revision": 1`, `"header.x-user:ann"`}, []string{"policy", "explain", "--path=/api/a", "--header=X-User: ann", "--json"}},
		{[]string{"REMAINING", "7/1d", "this client's record"}, []string{"remaining", "header.x-user:ann"}},
		{[]string{`"remaining": 100`}, []string{"remaining", "header.x-user:bob", "--json", "--policy=shop"}},
	} {
		out := run(c.args...)
		for _, want := range c.wants {
			if !strings.Contains(out, want) {
				t.Errorf("%v: %q is not in:\n%s", c.args, want, out)
			}
		}
	}
}
