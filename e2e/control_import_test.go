// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/pgtest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestTablesAreImported imports the tables of a company that kept its limits in a database. Rules
// from a CSV file are added to an existing policy, and clients from a CSV file become records of a
// control plane. The keys file of the policy is imported as well. A repeated import changes
// nothing.
func TestTablesAreImported(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	control := startControl(t, pgtest.Database(t), redis.URL(), "")
	at, folder := "--control=http://"+control.address, t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(folder, name)
		writeFile(t, path, text)
		return path
	}
	base := file("base.yaml", "name: shop\nidentify: [{api_key: {keys_file: keys.toml}}, ip]\n")
	rules := file("rules.csv", "rule_name,priority,user_tier,endpoint_pattern,algorithm,requests_per_second,requests_per_hour,burst_size,action\n"+
		"api_v1_limit,600,,/api/v1/*,sliding_window,100,,,throttle\nfree_tier_limit,700,free,,token_bucket,,1000,20,throttle\n")
	imported := penstock(t, "import-rules", rules, "--into", base, "--enforce", "first")
	if imported.status != 0 || strings.Count(imported.diagnostics, "not carried over") != 2 {
		t.Fatalf("%+v", imported)
	}
	if r := penstock(t, "import-rules", rules, "--into", base, "--strict"); r.status != 1 {
		t.Errorf("with --strict: %+v", r)
	}
	policy := file("policy.json", imported.out)
	control.run("", "policy", "put", policy, at, "--reason=the table").mustSucceed(t)
	if out := control.run("", "policy", "get", at).mustSucceed(t); strings.Index(out, "free_tier_limit") > strings.Index(out, "api_v1_limit") ||
		!strings.Contains(out, "1000/1h burst 20 token_bucket") || !strings.Contains(out, "keys.toml") {
		t.Errorf("the policy is %s", out)
	}

	clients := file("clients.csv", "user_id,tier,custom_limit_per_hour,custom_limit_per_day,custom_burst_size,is_blocked,block_reason,blocked_until,total_requests_today\n"+
		"42,gold,500,,20,f,,,7\nuser_001,free,,,,t,abuse,2999-01-01 00:00:00,0\nbob@example.com,,,9,,true,old,2001-01-01 00:00:00+00,0\nquiet,,,,,,,,0\n")
	for _, want := range []string{"3 clients have records now, 0 had one already", "0 clients have records now, 3 had one already"} {
		if out := control.run("", "import-clients", clients, at, "--reason=the table").mustSucceed(t); !strings.Contains(out, want) {
			t.Errorf("the import prints %s; want %q", out, want)
		}
	}
	for client, want := range map[string]string{"user:42": `"record":{"tier":"gold","limits":{"*":{"limits":["500/1h burst 20"]`,
		"user:user_001": `"block":{"until":"2999-01-01T00:00:00Z","reason":"abuse"}`, "user:bob@example.com": `"limits":["9/1d"]`} {
		if status, text := control.send("GET", "/v1/clients/"+client, ""); status != 200 || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s; want %s", client, status, text, want)
		}
	}
	wrong := file("wrong.csv", "user_id,custom_limit_per_hour\nann,many\n")
	control.run("", "import-clients", wrong, at, "--reason=x").mustFail(t, "line 2", `custom_limit_per_hour "many"`)

	keys := file("keys.toml", "[[keys]]\nid = \"acme\"\nhash = \"sha256:"+strings.Repeat("ab", 32)+"\"\ntier = \"gold\"\n")
	penstock(t, "key", "import", keys, "--redis", redis.URL(), "--reason", "x").mustFail(t, "a control plane owns this directory")
	token := file("token", control.token+"\n")
	for _, want := range []string{"1 keys imported", "0 keys imported"} {
		out := penstock(t, "key", "import", keys, at, "--control-token-file", token, "--reason", "in the directory now")
		if out.status != 0 || !strings.Contains(out.out, want) {
			t.Errorf("the import of keys prints %+v; want %q", out, want)
		}
	}
}
