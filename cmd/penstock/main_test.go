// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"
)

// run runs the command and returns its output.
func run(t *testing.T, input string, args ...string) (out, diagnostics string, err error) {
	t.Helper()
	var o, d bytes.Buffer
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(strings.NewReader(input))
	root.SetOut(&o)
	root.SetErr(&d)
	err = root.Execute()
	return o.String(), d.String(), err
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestValidatePrintsEveryErrorAndWarning(t *testing.T) {
	bad := file(t, "bad.yaml", "rules:\n  - {name: a, limit: 10/minute}\n  - {name: b, limit: 0/1s}\n")
	doubtful := file(t, "doubtful.yaml", "rules: [{name: a, limit: 10/day}]\n")
	good := file(t, "good.yaml", "rules: [{name: a, limit: 10/1m}]\n")
	out, _, err := run(t, "", "validate", bad, doubtful, good)
	if !errors.Is(err, errSaid) {
		t.Errorf("error %v", err)
	}
	for _, want := range []string{"error: bad.yaml:2: rules[0] \"a\".limit[0]: \"10/minute\"", "error: bad.yaml:3: rules[1] \"b\".limit[0]: \"0/1s\"",
		"warning: doubtful.yaml:1: rules[0] \"a\".limit[0]", doubtful + ": valid, 1 warning\n", good + ": valid, no warnings\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("want %q in\n%s", want, out)
		}
	}
	if _, _, err := run(t, "", "validate", doubtful); err != nil {
		t.Errorf("a warning fails: %v", err)
	}
	if _, _, err := run(t, "", "validate", "--strict", doubtful); !errors.Is(err, errSaid) {
		t.Errorf("a warning with --strict: %v", err)
	}
}

func TestValidateForAFront(t *testing.T) {
	policy := file(t, "policy.yaml", "rules: [{name: a, per: ['attr:xds.route_name'], limit: 1/1s, refund_on: {status: 5xx}}]\n")
	for front, want := range map[string]string{"caddy": `error: policy.yaml:1: rules[0] "a".per[0]: "xds.route_name": is an attribute of Envoy`,
		"envoy": "valid", "rls": `error: policy.yaml:1: rules[0] "a".refund_on: cannot be done over Envoy's rate limit protocol`, "nginx": "is unknown; write caddy"} {
		out, diagnostics, err := run(t, "", "validate", "--front", front, policy)
		if !strings.Contains(out+diagnostics+fmt.Sprint(err), want) || (err == nil) != (front == "envoy") {
			t.Errorf("%s: %v\n%s", front, err, out)
		}
	}
}

func TestValidateReadsNamedFilesOnRequest(t *testing.T) {
	policy := file(t, "policy.yaml", "identify: [{api_key: {keys_file: keys.toml}}, {jwt: {secret_file: secret}}, {jwt: {jwks_file: set.json}}]\n"+
		"rules: [{name: a, limit: 10/1m}]\n")
	folder := filepath.Dir(policy)
	if out, _, err := run(t, "", "validate", policy); err != nil {
		t.Errorf("without its files: %v\n%s", err, out)
	}
	out, _, err := run(t, "", "validate", "--files", policy)
	for _, want := range []string{"keys.toml", "secret", "set.json"} {
		if !errors.Is(err, errSaid) || !strings.Contains(out, want) {
			t.Errorf("%v, want %q in\n%s", err, want, out)
		}
	}
	for name, text := range map[string]string{"keys.toml": "[[keys]]\nid = 'a'\nhash = 'pk_0123456789abcdef'\n", "secret": strings.Repeat("s", 32),
		"set.json": `{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, _, err = run(t, "", "validate", "--files", policy)
	if !errors.Is(err, errSaid) || !strings.Contains(out, "error: keys.toml:3: identify[0].api_key.keys_file: keys[0].hash") || strings.Contains(out, "pk_0") {
		t.Errorf("%v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(folder, "keys.toml"), []byte("keys = []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, _, err = run(t, "", "validate", "--files", policy); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestExplain(t *testing.T) {
	keys := file(t, "keys.toml", "")
	entry, said, err := run(t, "", "hash-key", "acme", "--tier", "premium")
	if err != nil {
		t.Fatal(err)
	}
	key := strings.TrimSpace(said[strings.LastIndex(said, ":")+1:])
	if err := os.WriteFile(keys, []byte(entry), 0o600); err != nil {
		t.Fatal(err)
	}
	policy := filepath.Join(filepath.Dir(keys), "policy.yaml")
	if err := os.WriteFile(policy, []byte(`name: shop
identify: [{api_key: {keys_file: keys.toml}}, ip]
rules:
  - {name: api, group: g, limit: 100/1m, tiers: {premium: [1000/1m]}}
  - {name: search, group: g, match: {path: /search}, limit: 10/1m}
block: [{ip: [203.0.113.0/24], reason: scraper}]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"--path", "/", "--header", "X-API-Key: " + key},
			[]string{"client    api_key:acme (tier premium)", "limit 1000/1m of tier premium, cost 1",
				"key rl1:shop:api:{api_key:acme}:60s:sw"}},
		{[]string{"--path", "/search", "--ip", "192.0.2.7", "--header", "X-API-Key: pk_" + strings.Repeat("ab", 20)},
			[]string{"api_key: unknown", "ip: found ip 192.0.2.7", "rule      api: lost to search", "rule      search: applies",
				"key rl1:shop:search:{ip:192.0.2.7}:60s:sw"}},
		{[]string{"--ip", "203.0.113.9"}, []string{"scraper", "decision  denied with 403: blocked by block[0]"}},
	} {
		out, _, err := run(t, "", append([]string{"explain", "--policy", policy}, c.args...)...)
		for _, want := range c.want {
			if err != nil || !strings.Contains(out, want) {
				t.Errorf("%v: error %v, want %q in\n%s", c.args, err, want, out)
			}
		}
	}
}

// TestExplainOfTheExamples runs explain with the example policies as they are.
func TestExplainOfTheExamples(t *testing.T) {
	for _, format := range []string{"yaml", "toml", "json"} {
		for key, want := range map[string]string{
			"try-business-2f6d0c1ab9":  "limit 3000/1m of tier business, cost 1",
			"try-partner-3-77b0e4c5d8": "denied with 403: blocked by block[0]",
			"try-revoked-0d9e8a7c6b":   "rejected: revoked: the laptop was stolen",
		} {
			out, _, err := run(t, "", "explain", "--policy", filepath.Join("..", "..", "examples", "tiers."+format), "--method", "GET",
				"--path", "/v1/search", "--header", "X-API-Key: "+key, "--ip", "192.0.2.7")
			if err != nil || !strings.Contains(out, want) {
				t.Errorf("%s, %s: error %v, want %q in\n%s", format, key, err, want, out)
			}
		}
	}
}

func TestExplainWaitsForKeysOnlyOfATokenThatIsThere(t *testing.T) {
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`))
	}))
	defer issuer.Close()
	policy := file(t, "policy.yaml", "identify: [{jwt: {jwks_url: \""+issuer.URL+"\"}}, ip]\nrules: [{name: a, limit: 10/1m}]\n")
	// This text is signed by the key of RFC 8037, but its content is no token. The message about it
	// shows that the keys were found.
	const token = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg"
	for header, want := range map[string]string{"A: b": "jwt: absent", "Authorization: Bearer " + token: "jwt: malformed"} {
		out, _, err := run(t, "", "explain", "--policy", policy, "--ip", "192.0.2.7", "--header", header)
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%s: error %v, want %q in\n%s", header, err, want, out)
		}
	}
}

// TestSecretsOverlap: while a secret is rotated, tokens signed with either of the two are valid,
// and a token signed with neither is invalid.
func TestSecretsOverlap(t *testing.T) {
	secrets := map[string]string{"new": strings.Repeat("n", 32), "old": strings.Repeat("o", 32), "another": strings.Repeat("x", 32)}
	policy := file(t, "policy.yaml", "identify:\n  - jwt: {secret: "+secrets["new"]+", claim: sub}\n  - jwt: {secret: "+secrets["old"]+
		", claim: sub, on_invalid: deny}\nrules: [{name: a, limit: 10/1m}]\n")
	for by, want := range map[string]string{"new": "found user ann", "old": "found user ann", "another": "rejected: invalid"} {
		token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"sub": "ann", "exp": 4102444800}).SignedString([]byte(secrets[by]))
		if err != nil {
			t.Fatal(err)
		}
		out, _, err := run(t, "", "explain", "--policy", policy, "--ip", "192.0.2.7", "--header", "Authorization: Bearer "+token)
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("by the secret %q: error %v, want %q in\n%s", by, err, want, out)
		}
	}
}

func TestExplainRejectsFlagsThatMeanNothing(t *testing.T) {
	policy := file(t, "policy.yaml", "rules: [{name: a, limit: 10/1m}]\n")
	for flag, text := range map[string]string{"--ip": "nowhere", "--attr": "novalue", "--now": "today", "--path": "search"} {
		if _, _, err := run(t, "", "explain", "--policy", policy, flag, text); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s %s: %v, want it named", flag, text, err)
		}
	}
}

func TestExplainNeverRepeatsAHeaderThatMayBeAKey(t *testing.T) {
	policy := file(t, "policy.yaml", "rules: [{name: a, limit: 10/1m}]\n")
	for _, text := range []string{"X-API-Key pk_geheim", ": pk_geheim"} {
		_, _, err := run(t, "", "explain", "--policy", policy, "--header", "A: b", "--header", text)
		if err == nil || strings.Contains(err.Error(), "geheim") || !strings.Contains(err.Error(), "--header number 2") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestValidateNamesTheFrontsThatReject: a valid policy may use features that a bridge with
// --rls-listen does not have.
func TestValidateNamesTheFrontsThatReject(t *testing.T) {
	policy := file(t, "policy.yaml", "rules: [{name: a, limit: 10/1m, refund_on: {status: [5xx]}}]\n")
	out, _, err := run(t, "", "validate", policy)
	if want := policy + ": valid, no warnings; rls cannot enforce it: --front rls explains\n"; err != nil || out != want {
		t.Errorf("%v: %q, want %q", err, out, want)
	}
	out, _, err = run(t, "", "validate", "--front", "envoy", "--front", "rls", policy)
	if err == nil || !strings.Contains(out, `rules[0] "a".refund_on`) || !strings.Contains(out, "a bridge with --rls-listen") {
		t.Errorf("%v: %s", err, out)
	}
	if out, _, err = run(t, "", "validate", "--front", "envoy", policy); err != nil || out != policy+": valid, no warnings\n" {
		t.Errorf("%v: %s", err, out)
	}
}

func TestPoliciesComeFromFilesAndTheStandardInput(t *testing.T) {
	const yaml, json = "rules: [{name: a, limit: 10/1m}]\n", ` {"rules": [{"name": "a", "limit": "10/1m"}]}`
	for _, text := range []string{yaml, json} {
		if out, _, err := run(t, text, "validate", "-"); err != nil || out != "-: valid, no warnings\n" {
			t.Errorf("%s: %v %s", text, err, out)
		}
		if out, _, err := run(t, text, "explain", "--policy", "-", "--ip", "192.0.2.7"); err != nil || !strings.Contains(out, "rule      a: applies") {
			t.Errorf("%s: %v %s", text, err, out)
		}
	}
	if out, _, err := run(t, "rules: [{name: a, limit: 10/minute}]\n", "validate", "-"); err == nil || !strings.Contains(out, "error: standard input:1: rules[0]") {
		t.Errorf("%v %s", err, out)
	}
	for path, want := range map[string]string{"": "--policy policy.yaml", t.TempDir(): "is a folder", "none.yaml": "no such file",
		"policy.txt": "the extension must be", file(t, "Caddyfile", ":80"): "Caddy alone can read", file(t, "x.caddyfile", ":80"): "\"policy FILE\""} {
		if _, _, err := run(t, "", "explain", "--policy", path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("explain --policy %q: %v, want %q", path, err, want)
		}
		if out, _, _ := run(t, "", "validate", path); path != "" && !strings.Contains(out, want) {
			t.Errorf("validate %q: %s, want %q", path, out, want)
		}
	}
}

func TestMeaninglessArgumentsAreRejected(t *testing.T) {
	for _, c := range [][]string{{`unknown command "foo"; see penstock --help`, "foo"}, {"unknown flag", "explain", "--polic", "x"}, {"explain --help", "explain", "--polic", "x"},
		{"takes no", "top", "x"}, {"takes no", "version", "x"}, {"hash-key acme-prod", "hash-key"}, {"hash-key acme-prod", "hash-key", "a", "b"},
		{"validate policy.yaml", "validate"}, {"--policy policy.yaml", "explain"}, {`"client" not set`, "lift"}} {
		if _, _, err := run(t, "", c[1:]...); err == nil || !strings.Contains(err.Error(), c[0]) {
			t.Errorf("%v: %v, want %q", c[1:], err, c[0])
		}
	}
	for _, c := range [][]string{{}, {"--help"}, {"help", "explain"}, {"version"}, {"--version"}} {
		if out, _, err := run(t, "", c...); err != nil || !strings.Contains(out, "penstock") {
			t.Errorf("%v: %v %s", c, err, out)
		}
	}
}

func TestHashKeyAcceptsAndRejectsKeys(t *testing.T) {
	const key = "0123456789abcdefghij"
	out, said, err := run(t, key+"\n", "hash-key", "acme", "--stdin", "--limit", "search=50/1m", "--expires", "2027-12-31")
	if err != nil || strings.Contains(out+said, key) || !strings.Contains(out, `"search" = ["50/1m"]`) ||
		!strings.Contains(out, "expires = 2027-12-31T00:00:00Z") {
		t.Errorf("%v\n%s%s", err, out, said)
	}
	out, said, err = run(t, key+"\n", "hash-key", "leaked", "--stdin", "--revoked", "--inactive", "--reason", "found in public")
	if err != nil || strings.Contains(out+said, key) ||
		!strings.Contains(out, "revoked = true\ninactive = true\nreason = \"found in public\"\n") {
		t.Errorf("%v\n%s%s", err, out, said)
	}
	for _, c := range []struct{ input, flag, value, want string }{
		{flag: "--revoked", want: "add --stdin"},
		{flag: "--reason", value: "why", want: "add --revoked"},
		{input: "short\n", flag: "--stdin", want: "could be guessed"},
		{flag: "--stdin", want: "is not a key"},
		{flag: "--limit", value: "50/1m", want: "has no rule"},
		{flag: "--limit", value: "a=50/minute", want: "write 1m"},
		{flag: "--expires", value: "tomorrow", want: "is not a date"},
	} {
		args := []string{"hash-key", "acme", c.flag}
		if c.value != "" {
			args = append(args, c.value)
		}
		if _, _, err := run(t, c.input, args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", args, err, c.want)
		}
	}
}

func TestAdminCommandsAsk(t *testing.T) {
	var got string
	caddy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Method + " " + r.URL.RequestURI()
		if r.URL.Path == "/penstock/reload" {
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = w.Write([]byte(`{"error":"policy.yaml:2: wrong"}`))
			return
		}
		_, _ = w.Write([]byte(`{"a":1}`))
	}))
	defer caddy.Close()
	address := strings.TrimPrefix(caddy.URL, "http://")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"rules", "--json"}, "GET /penstock/rules"},
		{[]string{"client", "--client", "user:u 1", "--tier", "premium", "--json"}, "GET /penstock/client?client=user%3Au+1&tier=premium"},
		{[]string{"reset", "--client", "ip:192.0.2.7", "--rule", "api", "--json"}, "POST /penstock/reset?client=ip%3A192.0.2.7&rule=api"},
		{[]string{"lift", "--client", "ip:192.0.2.7", "--json"}, "POST /penstock/lift?client=ip%3A192.0.2.7"},
		{[]string{"top", "-n", "5", "--json"}, "GET /penstock/top?n=5"},
	} {
		out, _, err := run(t, "", append(c.args, "--admin", address)...)
		if err != nil || got != c.want || out != "{\n  \"a\": 1\n}\n" {
			t.Errorf("%v asks %q, want %q; printed %q, error %v", c.args, got, c.want, out, err)
		}
	}
	if _, _, err := run(t, "", "reload", "--admin", address); err == nil || !strings.Contains(err.Error(), "policy.yaml:2: wrong") {
		t.Errorf("a refused reload: %v", err)
	}
	if _, _, err := run(t, "", "rules", "--admin", caddy.URL+"/"); err == nil || !strings.HasSuffix(err.Error(), "write --admin "+address) {
		t.Errorf("a URL for the admin endpoint: %v", err)
	}
	if _, _, err := run(t, "", "client", "--admin", address); err == nil {
		t.Error("client without --client: no error")
	}
}

// TestClientCommandsSayWhatIsNotKnown: the exit status is 3 for a client that does not exist.
// Properties that only the client's token contains cause a warning.
func TestClientCommandsSayWhatIsNotKnown(t *testing.T) {
	caddy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("client") == "api_key:acne" {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"error":"there is no client api_key:acne","reason":"no_such_client"}`))
			return
		}
		_, _ = w.Write([]byte(`{"client":"user:ann","profiles":[{"policy":"shop","unknown":[{"what":"tier","why":"it is a claim"}]}]}`))
	}))
	defer caddy.Close()
	for _, name := range []string{"client", "reset", "lift"} {
		_, _, err := run(t, "", name, "--client", "api_key:acne", "--admin", strings.TrimPrefix(caddy.URL, "http://"))
		if err == nil || exitStatus(err) != 3 || err.Error() != "there is no client api_key:acne" {
			t.Errorf("%s: %v", name, err)
		}
		out, diagnostics, err := run(t, "", name, "--client", "user:ann", "--json", "--admin", strings.TrimPrefix(caddy.URL, "http://"))
		if err != nil || !strings.Contains(out, `"what": "tier"`) ||
			diagnostics != "warning: the tier of user:ann under the policy \"shop\" cannot be known: it is a claim\n" {
			t.Errorf("%s: %v %q %q", name, err, out, diagnostics)
		}
	}
}

// TestTopIsATable: the table shows the range in which the true number of denials is.
func TestTopIsATable(t *testing.T) {
	answer := `{"clients":[{"policy":"shop","client":"user:ann","refused":120,"over":0},{"policy":"api","client":"ip:192.0.2.7","refused":30,"over":4}]}`
	caddy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(answer)) }))
	defer caddy.Close()
	address := strings.TrimPrefix(caddy.URL, "http://")
	out, _, err := run(t, "", "top", "--admin", address)
	if want := "DENIED    POLICY  CLIENT\n120       shop    user:ann\n26 to 30  api     ip:192.0.2.7\n"; err != nil || out != want {
		t.Errorf("%v\n%s, want\n%s", err, out, want)
	}
	if out, _, err := run(t, "", "top", "--json", "--admin", address); err != nil || !strings.Contains(out, `"over": 4`) {
		t.Errorf("%v\n%s", err, out)
	}
	answer = `{"clients":[]}`
	if out, _, err := run(t, "", "top", "--admin", address); err != nil || out != "no client was denied\n" {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestValidateSaysWhatItDidNotRead: if validate has not read the keys file, its output mentions
// that, because the file may be wrong.
func TestValidateSaysWhatItDidNotRead(t *testing.T) {
	keys := file(t, "keys.toml", "[[keys]]\nid = \"acme\"\n")
	policy := file(t, "policy.yaml", "identify: [{api_key: {keys_file: "+keys+"}}, ip]\nrules: [{name: api, limit: 10/1m}]\n")
	out, _, err := run(t, "", "validate", policy)
	if want := policy + ": valid, no warnings; " + keys + " was not read: --files reads it\n"; err != nil || out != want {
		t.Errorf("%v %q, want %q", err, out, want)
	}
	if out, _, err = run(t, "", "validate", "--files", policy); err == nil || !strings.Contains(out, "keys[0].hash: is missing") {
		t.Errorf("--files: %v %q", err, out)
	}
}

// TestExplainOfANamedClient: a request of a client can be explained without the client's token or
// key.
func TestExplainOfANamedClient(t *testing.T) {
	keys := file(t, "keys.toml", "[[keys]]\nid = \"acme\"\ntier = \"gold\"\nhash = \"sha256:"+strings.Repeat("0a", 32)+"\"\n"+
		"[[keys]]\nid = \"gone\"\nrevoked = true\nhash = \"sha256:"+strings.Repeat("0b", 32)+"\"\n")
	policy := file(t, "policy.yaml", "name: shop\nidentify: [{jwt: {secret: '{env.NOT_SET_HERE}', tier_claim: plan}}, {api_key: {keys_file: "+keys+
		"}}, {header: {name: X-User, unverified: true}}, ip]\nrules: [{name: api, limit: 2/1m, tiers: {gold: 10/1h}}]\n")
	for _, c := range []struct {
		args  []string
		wants []string
	}{
		{[]string{"--client", "api_key:acme"}, []string{"client    api_key:acme (tier gold)\n", "limit 10/1h of tier gold", "{api_key:acme}"}},
		{[]string{"--client", "user:ann"}, []string{"client    user:ann (user ann)\n", "limit 2/1m of the rule"}},
		{[]string{"--client", "user:ann", "--tier", "gold", "--tenant", "t"}, []string{"user:ann (user ann, tier gold, tenant t)\n", "limit 10/1h of tier gold"}},
		{[]string{"--client", "header.x-user:ann"}, []string{"client    header.x-user:ann\n"}},
		{[]string{"--client", "ip:192.0.2.7"}, []string{"client    ip:192.0.2.7\n"}},
		{[]string{"--client", "api_key:gone"}, []string{"rejected: revoked", "denied with 401"}},
	} {
		out, _, err := run(t, "", append([]string{"explain", "--policy", policy}, c.args...)...)
		if err != nil {
			t.Errorf("%v: %v", c.args, err)
		}
		for _, want := range c.wants {
			if !strings.Contains(out, want) {
				t.Errorf("%v: nothing says %q in\n%s", c.args, want, out)
			}
		}
	}
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"--client", "api_key:acne"}, 3, "no key of that name in keys.toml"},
		{[]string{"--client", "cookie.sid:x"}, 3, "identifies clients by user, api_key, header.x-user, ip"},
		{[]string{"--client", "api_key:acme", "--tier", "silver"}, 1, `contradicts keys.toml, in which api_key:acme has the tier "gold"`},
		{[]string{"--client", "api_key:acme", "--header", "X-API-Key: k"}, 1, "leave one out"},
		{[]string{"--client", "header.x-user:ann", "--tier", "gold"}, 1, "by its header or attribute"},
		{[]string{"--tier", "gold"}, 1, "write --client"},
	} {
		_, _, err := run(t, "", append([]string{"explain", "--policy", policy}, c.args...)...)
		if err == nil || exitStatus(err) != c.status || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q and status %d", c.args, err, c.want, c.status)
		}
	}
}

// TestValidateSaysWhatCaddyLogs: validate warns that Caddy's access log contains keys from custom
// header fields.
func TestValidateSaysWhatCaddyLogs(t *testing.T) {
	for identify, want := range map[string]string{
		"api_key: {keys_file: k.toml}":                              "(header X-Api-Key)",
		"api_key: {keys_file: k.toml, header: x-token, query: key}": "(header X-Token, query key)",
		"api_key: {keys_file: k.toml, bearer: true}":                "",
		"jwt: {secret: '{env.S}'}":                                  "",
		"jwt: {secret: '{env.S}', header: X-Token}":                 "(header X-Token)",
		"api_key: {keys_file: k.toml, cookie: key}":                 "",
	} {
		policy := file(t, "policy.yaml", "identify: [{"+identify+"}]\nrules: [{name: api, limit: 10/1m}]\n")
		out, _, err := run(t, "", "validate", "--front", "caddy", policy)
		if err != nil || strings.Contains(out, "in clear") != (want != "") || !strings.Contains(out, want) {
			t.Errorf("%s: %v %q, want %q", identify, err, out, want)
		}
		if out, _, _ := run(t, "", "validate", "--front", "envoy", policy); strings.Contains(out, "in clear") {
			t.Errorf("%s: behind Envoy: %q", identify, out)
		}
	}
}
