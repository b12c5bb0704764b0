// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/pgtest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// usedKeysPolicy takes API keys from the directory. Its limit is so high that the filter leases
// units.
const usedKeysPolicy = `name: shop
lease: auto
identify: [{api_key: {keys: directory, on_invalid: deny}}]
rules: [{name: api, limit: 1000000/31d fixed_window}]
`

// keyUser is a control plane whose API keys a test creates and uses.
type keyUser struct {
	*controlPlane
	t     *testing.T
	begun time.Time
}

func startKeyUser(t *testing.T, redis string) *keyUser {
	return &keyUser{startControl(t, pgtest.Database(t), redis, ""), t, time.Now().Truncate(time.Second)}
}

// keyUser.run runs "penstock key".
func (u *keyUser) run(args ...string) commandResult {
	u.t.Helper()
	token := filepath.Join(u.t.TempDir(), "token")
	writeFile(u.t, token, u.token+"\n")
	return penstock(u.t, append(append([]string{"key"}, args...), "--control", "http://"+u.address, "--control-token-file", token)...)
}

// keyUser.make creates two keys with one name: the second is the successor of the first.
func (u *keyUser) make(name string) (first, second string) {
	u.t.Helper()
	var made, next keysMade
	u.run("create", "--client", "user:"+name, "--name", name, "--json", "--reason", "a test").read(u.t, &made)
	u.run("rotate", name, "--overlap", "24h", "--json", "--reason", "a test").read(u.t, &next)
	return made.Key, next.Key
}

// keyUser.uses returns when each key with a name was last used, by the hashes of the keys.
func (u *keyUser) uses(name string) map[string]time.Time {
	u.t.Helper()
	var shown struct {
		Keys []struct {
			Hash       string
			LastUsedAt time.Time `json:"last_used_at"`
		}
	}
	status, text := u.send("GET", "/v1/keys/"+name, "")
	if err := json.Unmarshal([]byte(text), &shown); err != nil || status != http.StatusOK {
		u.t.Fatalf("the keys of %s: %d %s: %v", name, status, text, err)
	}
	uses := map[string]time.Time{}
	for _, key := range shown.Keys {
		uses[key.Hash] = key.LastUsedAt
	}
	return uses
}

// keyUser.test tests that the control plane soon knows that the first key of a name was used, and
// then that the second key was used as well.
func (u *keyUser) test(name string, ask func(key string) (status int)) {
	u.t.Helper()
	first, second := u.make(name)
	use := func(key string, used int) {
		u.t.Helper()
		eventually.Until(u.t, controlPatience, "the key of "+name+" is valid", func() bool { return ask(key) == http.StatusOK })
		eventually.Until(u.t, controlPatience, "the use of the key of "+name+" is known", func() bool {
			known := 0
			for _, at := range u.uses(name) {
				if at.After(u.begun.Add(-10*time.Second)) && !at.After(time.Now()) {
					known++
				} else if !at.IsZero() {
					u.t.Fatalf("the key of %s was used at %v", name, at)
				}
			}
			return known == used
		})
	}
	use(first, 1)
	if status := ask(keyOf("made-up-" + name)); status != http.StatusUnauthorized {
		u.t.Errorf("a made-up key has status %d", status)
	}
	use(second, 2)
}

// TestWhenKeysWereUsed tests that the control plane knows when each API key was last used, and so
// which key of a rotation is still in use. The keys are used at a Caddy, at an Envoy with the
// filter, and at an Envoy with the native module.
func TestWhenKeysWereUsed(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	u := startKeyUser(t, redis.URL())
	spool := func(name string) string { return filepath.Join(t.TempDir(), name) }
	file := newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml"))
	file.edit(usedKeysPolicy)
	token := u.nodeToken()
	node := startCaddy(t, strings.Replace(directed, "\t\tdirectory\n", "\t\tdirectory\n\t\tcontrol http://"+u.address+" {\n\t\t\ttoken_file "+token+
		"\n\t\t\tspool "+spool("caddy")+"\n\t\t}\n", 1), "PENSTOCK_REDIS="+redis.URL(), "POLICY="+file.path)
	u.test("caddy", func(key string) int { return node.ask(t.Context(), http.MethodGet, "/", "X-API-Key", key).status })

	filtered := &site{set: "on_error: deny\ndeadline: 10s"}
	useEnvoy(t, nil, filtered)
	filtered.startBridge(t, usedKeysPolicy, "--redis", redis.URL(), "--redis-timeout", "5s", "--control", "http://"+u.address,
		"--control-token-file", token, "--spool", spool("bridge"))
	u.test("filter", func(key string) int { return filtered.get(t, "/", "X-API-Key", key).status })

	_, sites := startModule(t, module(t), nil, usedKeysPolicy+"directory: {}\ncontrol: {url: \"http://"+u.address+"\", token_file: "+token+", spool: "+
		spool("module")+"}\n"+inRedis(redis))
	u.test("module", func(key string) int { return sites[0].get(t, "/", "X-API-Key", key).status })

	unused, _ := u.make("unused")
	_ = unused
	lines := strings.Split(u.run("list").mustSucceed(t), "\n")
	if !strings.Contains(lines[0], "  LAST USED  ") {
		t.Errorf("the list has the columns %q", lines[0])
	}
	for _, line := range lines[1:] {
		if fields := strings.Fields(line); len(fields) > 6 && (fields[6] == "-") != (fields[0] == "unused") {
			t.Errorf("the list has %q", line)
		}
	}
}
