// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// directedKeys is a policy that takes API keys from a file and from the directory.
const directedKeys = `name: shop
identify:
  - api_key: {keys_file: keys.toml, keys: directory, on_invalid: deny}
rules:
  - {name: api, limit: 50/31d fixed_window, tiers: {gold: 100/31d fixed_window}}
`

// keyedNodes is a group of Caddys that share a Redis, with API keys in its directory.
type keyedNodes struct {
	t     *testing.T
	redis *redistest.Server
	nodes []*process
}

// startKeyed starts n Caddys. The argument fileEntries is the text of their keys file.
func startKeyed(t *testing.T, n int, text, fileEntries string) *keyedNodes {
	t.Helper()
	k := &keyedNodes{t: t, redis: redistest.Start(t)}
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "keys.toml"), []byte("keys = []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if fileEntries != "" {
		if err := os.WriteFile(filepath.Join(folder, "keys.toml"), []byte(fileEntries), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := newRenamedFile(t, filepath.Join(folder, "policy.yaml"))
	file.edit(text)
	for range n {
		k.nodes = append(k.nodes, startCaddy(t, directed, "PENSTOCK_REDIS="+k.redis.URL(), "POLICY="+file.path))
	}
	return k
}

// keysMade is the output, with --json, of a command that creates or shows keys.
type keysMade struct {
	Key   string
	After string
	Keys  []struct {
		Hash, State string
		Record      struct{ Name, Client, Tier string }
	}
}

// keyedNodes.run runs "penstock key", which calls the node, or Redis if node is nil.
func (k *keyedNodes) run(node *process, args ...string) commandResult {
	args = append([]string{"key"}, args...)
	if node == nil {
		return penstock(k.t, append(args, "--redis", k.redis.URL())...)
	}
	return penstock(k.t, append(args, "--admin", node.admin)...)
}

// keyedNodes.change is like the method named run, for a change that must succeed.
func (k *keyedNodes) change(node *process, args ...string) (shown keysMade) {
	k.t.Helper()
	k.run(node, append(args, "--json", "--reason", "a test", "--actor", "ops")...).read(k.t, &shown)
	return shown
}

// awaitStatus waits until every node answers a request with the key with the given status. This
// should take a second at most, but a busy machine may take longer.
func (k *keyedNodes) awaitStatus(what, key string, status int) {
	k.t.Helper()
	began := time.Now()
	for i, node := range k.nodes {
		eventually.Until(k.t, 20*time.Second, what, func() bool {
			return node.ask(k.t.Context(), http.MethodGet, "/", "X-API-Key", key).status == status
		})
		k.t.Logf("%s: node %d after %v", what, i, time.Since(began))
	}
}

// TestKeysAsData tests that a new key is valid at once on every node. A rotated key stays valid
// beside its successor until the overlap ends, and a revoked key is denied on every node. Neither
// Redis nor a log contains a key itself.
func TestKeysAsData(t *testing.T) {
	t.Parallel()
	k := startKeyed(t, 2, directedKeys, "")
	k.awaitStatus("a key that does not exist is denied", keyOf("nobody"), 401)

	made := k.change(k.nodes[0], "create", "--client", "api_key:acme", "--tier", "gold")
	if len(made.Keys) != 1 || made.Keys[0].Record.Name != "acme" || made.Keys[0].State != "valid" {
		t.Fatalf("created: %+v", made)
	}
	k.awaitStatus("a new key is valid", made.Key, 200)
	if limit := k.nodes[1].ask(t.Context(), http.MethodGet, "/", "X-API-Key", made.Key).number("X-RateLimit-Limit"); limit != 100 {
		t.Errorf("a new key of the tier gold has the limit %d", limit)
	}
	if out := penstock(t, "client", "--json", "--client", "api_key:acme", "--admin", k.nodes[1].admin).mustSucceed(t); !strings.Contains(out, "the directory") ||
		!strings.Contains(out, `"limit": "100/31d`) {
		t.Errorf("the counters of the client of a key are %s", out)
	}
	rotated := k.change(nil, "rotate", "acme", "--overlap", "24h")
	k.awaitStatus("the next key is valid", rotated.Key, 200)
	k.awaitStatus("the key before is valid during the overlap", made.Key, 200)
	k.change(k.nodes[1], "rotate", "acme", "--overlap", "0s")
	k.awaitStatus("a key without an overlap has ended", rotated.Key, 401)
	k.awaitStatus("so has the first one", made.Key, 401)

	other := k.change(k.nodes[1], "create", "--client", "user:u_42", "--name", "u_42-ci", "--for", "90d")
	k.awaitStatus("a key of a user is valid", other.Key, 200)
	k.change(k.nodes[0], "revoke", "u_42-ci")
	k.awaitStatus("a revoked key is denied", other.Key, 401)
	if a := k.nodes[1].ask(t.Context(), http.MethodGet, "/", "X-API-Key", other.Key); !strings.Contains(a.body, "The credential was revoked.") {
		t.Errorf("a revoked key is told %q", a.body)
	}
	k.holdsNoKey(made.Key, rotated.Key, other.Key)
	k.checkCommands()
}

// keyedNodes.holdsNoKey fails the test if one of the keys is in Redis, in a log or in the metrics.
func (k *keyedNodes) holdsNoKey(keys ...string) {
	k.t.Helper()
	texts := []string{k.nodes[0].log.String(), k.nodes[1].log.String(), k.nodes[0].scrape()}
	dump, err := k.redis.Client().Keys(k.t.Context(), "*").Result()
	if err != nil {
		k.t.Fatal(err)
	}
	for _, name := range dump {
		value, _ := k.redis.Client().Dump(k.t.Context(), name).Result()
		texts = append(texts, name, value)
	}
	history, _ := k.redis.Client().XRange(k.t.Context(), "rl1:~history:{~directory}", "-", "+").Result()
	texts = append(texts, fmt.Sprint(history))
	for _, text := range texts {
		for _, key := range keys {
			if strings.Contains(text, key) {
				k.t.Errorf("a key is in %.200q", text)
			}
		}
	}
}

// checkCommands checks the output of commands, and which arguments they reject.
func (k *keyedNodes) checkCommands() {
	t := k.t
	var page keysMade
	k.run(k.nodes[0], "list", "--json", "-n", "1").read(t, &page)
	if len(page.Keys) != 3 || page.After != "acme" {
		t.Errorf("the first page is %+v", page)
	}
	k.run(nil, "list", "--json", "--after", "acme").read(t, &page)
	if len(page.Keys) != 1 || page.Keys[0].Record.Client != "user:u_42" || page.Keys[0].State != "revoked" {
		t.Errorf("the last page is %+v", page)
	}
	for _, node := range []*process{k.nodes[0], nil} {
		k.run(node, "list", "--json", "--client", "api_key:acme", "-n", "2").read(t, &page)
		if len(page.Keys) != 3 || page.Keys[0].Record.Client != "api_key:acme" || page.Keys[2].Record.Client != "api_key:acme" {
			t.Errorf("the keys of the client api_key:acme are %+v", page)
		}
		if out := k.run(node, "list", "--client", "user:u_42").mustSucceed(t); !strings.Contains(out, "u_42-ci") || strings.Contains(out, "acme") {
			t.Errorf("the keys of the client user:u_42 are %q", out)
		}
		if out := k.run(node, "list", "--client", "user:nobody").mustSucceed(t); out != "there are no keys\n" {
			t.Errorf("the keys of a client without keys are %q", out)
		}
		k.run(node, "list", "--client", "tenant:t").mustFail(t, `client "tenant:t" cannot have a key`)
		k.run(node, "list", "--client", "").mustFail(t, "--client is empty")
	}
	if out := k.run(k.nodes[1], "show", "acme").mustSucceed(t); strings.Count(out, "lapsed") != 2 || !strings.Contains(out, "gold") {
		t.Errorf("show prints %q", out)
	}
	if out := penstock(t, "client", "history", "user:u_42", "--redis", k.redis.URL()).mustSucceed(t); !strings.Contains(out, "key revoke u_42-ci") ||
		!strings.Contains(out, "ops") {
		t.Errorf("the history is %q", out)
	}
	why := []string{"--reason", "x"}
	k.run(k.nodes[0], "show", "nobody").endsWith(t, 3, `there is no API key of the name "nobody"`)
	k.run(nil, append([]string{"revoke", "nobody"}, why...)...).endsWith(t, 3, `there is no API key of the name "nobody"`)
	k.run(nil, append([]string{"revoke", "u_42-ci"}, why...)...).mustFail(t, "no key of", "revoked")
	k.run(k.nodes[0], append([]string{"create", "--client", "api_key:acme"}, why...)...).mustFail(t, "choose another name, or rotate that key")
	k.run(k.nodes[0], append([]string{"create", "--client", "user:u", "--tier", "golden"}, why...)...).mustFail(t, `has a tier "golden"`)
	k.run(k.nodes[0], append([]string{"create", "--client", "user:u", "--limit", "apy=5/1m"}, why...)...).mustFail(t, `a rule "apy"`)
	k.run(nil, append([]string{"create", "--client", "tenant:t"}, why...)...).mustFail(t, "cannot have a key")
	k.run(nil, append([]string{"create", "--client", "user:u", "--expires-at", "2020-01-01"}, why...)...).mustFail(t, "is not in the future")
	k.run(nil, "create", "--client", "user:u").mustFail(t, "a reason is missing")
	k.run(nil, append([]string{"rotate", "acme"}, why...)...).mustFail(t, "--overlap is missing")
}

// TestKeysOfAFileAndOfTheDirectory tests keys in a file and in the directory. If a key is in both,
// the file takes precedence. An import copies the entries of the file to the directory, and may be
// repeated.
func TestKeysOfAFileAndOfTheDirectory(t *testing.T) {
	t.Parallel()
	sum := func(name string) string {
		hash := sha256.Sum256([]byte(keyOf(name)))
		return hex.EncodeToString(hash[:])
	}
	k := startKeyed(t, 1, directedKeys, "[[keys]]\nid = \"both\"\nhash = \"sha256:"+sum("both")+"\"\ntier = \"gold\"\n")
	imported := filepath.Join(t.TempDir(), "keys.toml")
	entries := "[[keys]]\nid = \"both\"\nhash = \"sha256:" + sum("both") + "\"\nrevoked = true\n" +
		"[[keys]]\nid = \"two\"\nuser = \"u\"\nhash = [\"sha256:" + sum("old") + "\", \"sha256:" + sum("new") + "\"]\nlimits = {api = [\"7/31d fixed_window\"]}\n" +
		"[[keys]]\nid = \"gone\"\nhash = \"sha256:" + sum("gone") + "\"\nexpires = 2020-01-01T00:00:00Z\n"
	if err := os.WriteFile(imported, []byte(entries), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"4 keys imported, 0 were", "0 keys imported, 4 were"} {
		if out := k.run(k.nodes[0], "import", imported, "--reason", "a test").mustSucceed(t); !strings.Contains(out, want) {
			t.Errorf("import prints %q, want %q", out, want)
		}
	}
	for name, want := range map[string]struct {
		status int
		limit  int64
	}{"both": {200, 100}, "old": {200, 7}, "new": {200, 7}, "gone": {401, -1}} {
		k.awaitStatus("the key "+name+" of an import", keyOf(name), want.status)
		if limit := k.nodes[0].ask(t.Context(), http.MethodGet, "/", "X-API-Key", keyOf(name)).number("X-RateLimit-Limit"); limit != want.limit {
			t.Errorf("%s: the limit is %d; want %d", name, limit, want.limit)
		}
	}
	k.change(nil, "revoke", "two")
	k.awaitStatus("a key of an import is revoked", keyOf("old"), 401)
	k.run(nil, "import", imported, "--reason", "a test").mustFail(t, "with another record")
}

// TestKeysWhileRedisIsAway tests keys while Redis does not answer. A key that a node has read
// before stays valid. Any other key counts as invalid, so on_invalid determines whether the request
// is denied or counted by its address.
func TestKeysWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	for _, onInvalid := range []string{"deny", "next"} {
		k := startKeyed(t, 1, strings.Replace(directedKeys, "on_invalid: deny}", "on_invalid: "+onInvalid+"}\n  - ip", 1)+"on_error: allow\n", "")
		seen := k.change(nil, "create", "--client", "api_key:seen", "--tier", "gold")
		unseen := k.change(nil, "create", "--client", "api_key:unseen", "--tier", "gold")
		k.awaitStatus("a key is valid", seen.Key, 200)
		k.redis.Kill()
		ask := func(key string) answer { return k.nodes[0].ask(t.Context(), http.MethodGet, "/", "X-API-Key", key) }
		want := map[string]int{"deny": 401, "next": 200}[onInvalid]
		for range 3 {
			if a, b := ask(seen.Key), ask(unseen.Key); a.status != 200 || b.status != want {
				t.Errorf("on_invalid: %s: %d for a key that was seen, %d for another; want 200 and %d", onInvalid, a.status, b.status, want)
			}
		}
		if n := k.nodes[0].metric(`penstock_credentials_total{method="api_key",policy="shop",state="invalid"}`); n != 3 {
			t.Errorf("on_invalid: %s: %v keys were invalid, want 3", onInvalid, n)
		}
		k.redis.Restart()
		k.run(nil, "create", "--client", "api_key:unseen", "--name", "later", "--reason", "x").mustSucceed(t)
	}
}

// TestAFloodOfMadeUpKeys tests a flood of keys that do not exist. It takes bounded memory, and
// causes a bounded number of reads from Redis. Meanwhile a request with a valid key is served, or
// answered with 503.
func TestAFloodOfMadeUpKeys(t *testing.T) {
	t.Parallel()
	k := startKeyed(t, 1, strings.Replace(directedKeys, "limit: 50/31d", "limit: 1000000/31d", 1), "")
	valid := k.change(nil, "create", "--client", "api_key:acme")
	const senders, each = 20, 200
	var group sync.WaitGroup
	for s := range senders {
		group.Go(func() {
			for i := range each {
				key, want := keyOf(fmt.Sprintf("%d-%d", s, i)), 401
				if i%20 == 0 {
					key, want = valid.Key, 200
				}
				if a := k.nodes[0].ask(t.Context(), http.MethodGet, "/", "X-API-Key", key); a.status != want && a.status != 503 {
					t.Errorf("status %d, want %d or 503", a.status, want)
				}
			}
		})
	}
	group.Wait()
	if n := k.nodes[0].metric("penstock_directory_keys"); n < 2 || n > 1<<16 {
		t.Errorf("%v keys are remembered", n)
	}
	if reads := k.nodes[0].metric("penstock_directory_reads_total"); reads > senders*each {
		t.Errorf("%v reads of Redis", reads)
	}
}

// TestKeysNeedADirectory tests that a front without a directory rejects a policy that takes keys
// from the directory.
func TestKeysNeedADirectory(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	path := filepath.Join(folder, "policy.yaml")
	text := "name: shop\nidentify: [{api_key: {keys: directory}}]\nrules: [{name: api, limit: 3/1m}]\n"
	caddyfile := filepath.Join(folder, "Caddyfile")
	for name, content := range map[string]string{path: text, caddyfile: ":0 {\n\tpenstock {\n\t\tpolicy " + path + "\n\t}\n}\n"} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command(caddyProgram(t), "validate", "--config", caddyfile).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "keys: directory needs a directory") {
		t.Errorf("Caddy says %v, %s", err, out)
	}
	for _, front := range []string{"caddy", "envoy", "rls"} {
		penstock(t, "validate", "--front", front, path).mustSucceed(t)
	}
	penstock(t, "bridge", "--policy", path, "--listen", "127.0.0.1:0").mustFail(t, "keys: directory needs a directory, and this bridge counts in memory")
}
