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

// run runs the command and returns what it printed.
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
	for _, want := range []string{"error: bad.yaml:2: rules[0].limit[0]: \"10/minute\"", "error: bad.yaml:3: rules[1].limit[0]: \"0/1s\"",
		"warning: doubtful.yaml:1: rules[0].limit[0]", doubtful + ": valid, 1 warning\n", good + ": valid, no warnings\n"} {
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
	for front, want := range map[string]string{"caddy": `error: policy.yaml:1: rules[0].per[0]: "xds.route_name": is an attribute of Envoy's`,
		"envoy": "valid", "rls": "error: policy.yaml:1: rules[0].refund_on: cannot be done over Envoy's rate limit protocol", "nginx": "is unknown; write caddy"} {
		out, diagnostics, err := run(t, "", "validate", "--front", front, policy)
		if !strings.Contains(out+diagnostics+fmt.Sprint(err), want) || (err == nil) != (front == "envoy") {
			t.Errorf("%s: %v\n%s", front, err, out)
		}
	}
}

func TestValidateReadsWhatPoliciesNameIfItIsTold(t *testing.T) {
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

func TestExplainSaysWhoWhichAndWhy(t *testing.T) {
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
			[]string{"api_key: unknown", "ip: found ip 192.0.2.7", "rule      api: lost to search", "rule      search: in play",
				"key rl1:shop:search:{ip:192.0.2.7}:60s:sw"}},
		{[]string{"--ip", "203.0.113.9"}, []string{"scraper", "decision  refused with 403: blocked by block[0]"}},
	} {
		out, _, err := run(t, "", append([]string{"explain", "--policy", policy}, c.args...)...)
		for _, want := range c.want {
			if err != nil || !strings.Contains(out, want) {
				t.Errorf("%v: error %v, want %q in\n%s", c.args, err, want, out)
			}
		}
	}
}

// The examples can be asked about as they are.
func TestExplainTellsOfTheExamples(t *testing.T) {
	for _, format := range []string{"yaml", "toml", "json"} {
		for key, want := range map[string]string{
			"try-business-2f6d0c1ab9":  "limit 3000/1m of tier business, cost 1",
			"try-partner-3-77b0e4c5d8": "refused with 403: blocked by block[0]",
			"try-revoked-0d9e8a7c6b":   "refused: revoked: the laptop was stolen",
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
	// Signed by the key of RFC 8037, without a claim of a token: what is said of it shows that the keys were there.
	const token = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg"
	for header, want := range map[string]string{"A: b": "jwt: absent", "Authorization: Bearer " + token: "jwt: malformed"} {
		out, _, err := run(t, "", "explain", "--policy", policy, "--ip", "192.0.2.7", "--header", header)
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%s: error %v, want %q in\n%s", header, err, want, out)
		}
	}
}

// TestSecretsOverlap: while a secret is rotated, tokens by either are good, and a token by neither is still refused.
func TestSecretsOverlap(t *testing.T) {
	secrets := map[string]string{"new": strings.Repeat("n", 32), "old": strings.Repeat("o", 32), "another": strings.Repeat("x", 32)}
	policy := file(t, "policy.yaml", "identify:\n  - jwt: {secret: "+secrets["new"]+", claim: sub}\n  - jwt: {secret: "+secrets["old"]+
		", claim: sub, on_invalid: deny}\nrules: [{name: a, limit: 10/1m}]\n")
	for by, want := range map[string]string{"new": "found user ann", "old": "found user ann", "another": "refused: invalid"} {
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

func TestExplainRefusesFlagsThatMeanNothing(t *testing.T) {
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

// TestValidateNamesTheFrontsThatRefuse: a policy that is right may be more than a bridge with --rls-listen can do.
func TestValidateNamesTheFrontsThatRefuse(t *testing.T) {
	policy := file(t, "policy.yaml", "rules: [{name: a, limit: 10/1m, refund_on: {status: [5xx]}}]\n")
	out, _, err := run(t, "", "validate", policy)
	if want := policy + ": valid, no warnings; rls would refuse it: --front rls says why\n"; err != nil || out != want {
		t.Errorf("%v: %q, want %q", err, out, want)
	}
	out, _, err = run(t, "", "validate", "--front", "envoy", "--front", "rls", policy)
	if err == nil || !strings.Contains(out, "rules[0].refund_on") || !strings.Contains(out, "a bridge with --rls-listen") {
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
		if out, _, err := run(t, text, "explain", "--policy", "-", "--ip", "192.0.2.7"); err != nil || !strings.Contains(out, "rule      a: in play") {
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

func TestWhatMeansNothingIsRefused(t *testing.T) {
	for _, c := range [][]string{{`"foo" is no command; see penstock --help`, "foo"}, {"unknown flag", "explain", "--polic", "x"}, {"explain --help", "explain", "--polic", "x"},
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

func TestHashKeyTakesAndRefusesKeys(t *testing.T) {
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
		{"", "--revoked", "", "add --stdin"},
		{"", "--reason", "why", "add --revoked"},
		{"short\n", "--stdin", "", "could be guessed"},
		{"", "--stdin", "", "is no key"},
		{"", "--limit", "50/1m", "has no rule"},
		{"", "--limit", "a=50/minute", "write 1m"},
		{"", "--expires", "tomorrow", "is no date"},
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
		{[]string{"rules"}, "GET /penstock/rules"},
		{[]string{"client", "--client", "user:u 1", "--tier", "premium"}, "GET /penstock/client?client=user%3Au+1&tier=premium"},
		{[]string{"reset", "--client", "ip:192.0.2.7", "--rule", "api"}, "POST /penstock/reset?client=ip%3A192.0.2.7&rule=api"},
		{[]string{"lift", "--client", "ip:192.0.2.7"}, "POST /penstock/lift?client=ip%3A192.0.2.7"},
		{[]string{"top", "-n", "5"}, "GET /penstock/top?n=5"},
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
