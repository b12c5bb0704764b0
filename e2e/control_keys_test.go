// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/pgtest"
)

// TestKeysOfAControlPlane tests that a key in Redis stays valid after a control plane has taken
// over. A key that is created through the control plane is valid at a Caddy until it is revoked,
// even if it has a successor. The keys of a forgotten client are denied.
func TestKeysOfAControlPlane(t *testing.T) {
	t.Parallel()
	k := startKeyed(t, 1, directedKeys, "")
	old := k.change(nil, "create", "--client", "user:ann", "--name", "old")
	k.awaitStatus("a key of Redis alone is valid", old.Key, 200)

	c := startControl(t, pgtest.Database(t), k.redis.URL(), "")
	token := filepath.Join(t.TempDir(), "token")
	writeFile(t, token, c.token+"\n")
	control := func(args ...string) commandResult {
		return penstock(t, append(append([]string{"key"}, args...), "--control", "http://"+c.address, "--control-token-file", token)...)
	}
	change := func(args ...string) (shown keysMade) {
		control(append(args, "--json", "--reason", "a test")...).read(t, &shown)
		return shown
	}
	eventually.Until(t, controlPatience, "the key of Redis is in the database", func() bool {
		return strings.Contains(control("list").out, "old ")
	})
	k.awaitStatus("an imported key stays valid", old.Key, 200)
	eventually.Until(t, controlPatience, "keys of Redis alone are rejected", func() bool {
		return strings.Contains(k.run(nil, "disable", "old", "--reason", "x").diagnostics, "penstock key --control URL")
	})

	made := change("create", "--client", "user:ann", "--name", "ci")
	k.awaitStatus("a key of the control plane is valid", made.Key, 200)
	next := change("rotate", "ci", "--overlap", "24h")
	k.awaitStatus("its successor is valid", next.Key, 200)
	k.awaitStatus("and it is valid beside it", made.Key, 200)
	change("revoke", "ci", "--hash", made.Keys[0].Hash[:12])
	k.awaitStatus("a revoked key is denied", made.Key, 401)
	k.awaitStatus("its successor stays valid", next.Key, 200)
	control("show", "nobody").endsWith(t, 3, `there is no API key of the name "nobody"`)
	control("disable", "ci", "--reason", "x", "--actor", "root").mustFail(t, "--actor has no effect with --control")
	file := filepath.Join(t.TempDir(), "keys.toml")
	writeFile(t, file, penstock(t, "hash-key", "bob").out)
	for _, want := range []string{"1 keys imported, 0 were", "0 keys imported, 1 were"} {
		if out := control("import", file, "--reason", "a test").mustSucceed(t); !strings.Contains(out, want) {
			t.Errorf("an import prints %q, want %q", out, want)
		}
	}
	if out := c.client("forget", "user:ann", "--reason", "left").mustSucceed(t); !strings.Contains(out, "3 API keys of the client were removed") {
		t.Errorf("forget prints %q", out)
	}
	k.awaitStatus("a key of a forgotten client is denied", next.Key, 401)
	k.awaitStatus("so is the one that was in Redis", old.Key, 401)
}
