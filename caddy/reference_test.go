// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/test/redistest"
)

// caddyfiles returns the Caddyfiles in a document, with the given replacements.
func caddyfiles(t *testing.T, document string, replaced *strings.Replacer) (all []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(document)))
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range regexp.MustCompile("(?ms)^```caddyfile\n(.*?)^```$").FindAllSubmatch(text, -1) {
		all = append(all, replaced.Replace(string(found[1])))
	}
	return all
}

// TestReferenceIsTheSameInACaddyfile: the reference writes one policy in two ways, which must be
// equal.
func TestReferenceIsTheSameInACaddyfile(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "docs", "reference", "caddyfile.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## A whole policy\n")
	both := regexp.MustCompile("(?ms)^```(yaml|caddyfile)\n(.*?)^```$").FindAllStringSubmatch(section, 2)
	if len(both) != 2 || both[0][1] != "yaml" || both[1][1] != "caddyfile" {
		t.Fatal("docs/reference/caddyfile.md does not show a policy in both forms")
	}
	inFile, err := policyfile.Decode("policy.yaml", policyfile.YAML, []byte(both[0][2]))
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Apps struct {
			HTTP struct {
				Servers map[string]struct {
					Routes []struct{ Handle []map[string]any }
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(adapt(t, both[1][2])), &config); err != nil {
		t.Fatal(err)
	}
	handler := config.Apps.HTTP.Servers["srv0"].Routes[0].Handle[0]
	delete(handler, "handler")
	delete(handler, "site")
	words, err := json.Marshal(handler)
	if err != nil {
		t.Fatal(err)
	}
	var inCaddyfile policyfile.Document
	if err := json.Unmarshal(words, &inCaddyfile); err != nil {
		t.Fatal(err)
	}
	want, err := inFile.Policy()
	if err != nil {
		t.Fatal(err)
	}
	got, err := inCaddyfile.Policy()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" {
		t.Errorf("(-file +Caddyfile)\n%s", diff)
	}
}

// TestReferenceCaddyfiles: every Caddyfile in the documents runs and limits requests.
func TestReferenceCaddyfiles(t *testing.T) {
	folder, redis := t.TempDir(), redistest.Start(t)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := "ok"
		if r.URL.Path == "/keys" { // a key of RFC 8037
			answer = `{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`
		}
		_, _ = w.Write([]byte(answer))
	}))
	defer upstream.Close()
	for name, text := range map[string]string{"policy.yaml": "name: file\nrules: [{name: file, limit: 100/1m}]\n", "keys.toml": "keys = []\n"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("TOKEN_SECRET", strings.Repeat("s", 32))
	t.Setenv("REDIS_PASSWORD", "p@ss")
	if err := redis.Client().Do(t.Context(), "ACL", "SETUSER", "limiter", "on", ">p@ss", "~*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	const patient = " {\n\t\t\ttimeout 10s\n\t\t}" // because the machine may be busy
	replaced := strings.NewReplacer(":8080", ":PORT", ":{$PORT:8080}", ":PORT", "\tadmin localhost:{$ADMIN:2019}\n", "", "policy policy.yaml", "policy "+filepath.Join(folder, "policy.yaml"),
		"/etc/penstock", folder, "events.log", filepath.Join(folder, "events.log"), "redis://localhost:6379", redis.URL()+patient, "@redis.internal:6379/0", "@"+redis.Addr+patient,
		"redis://limiter", "unix://limiter", "localhost:9000", upstream.Listener.Addr().String(),
		"https://id.shop.example/keys", upstream.URL+"/keys")
	for document, want := range map[string]int{"docs/reference/caddyfile.md": 3, "README.md": 2, "docs/guides/redis.md": 1,
		"docs/guides/tokens.md": 1, "docs/guides/from-caddy-ratelimit.md": 1, "docs/tutorial.md": 3, "docs/guides/events.md": 1} {
		all := caddyfiles(t, document, replaced)
		if len(all) < want {
			t.Fatalf("%s has %d Caddyfiles, want at least %d", document, len(all), want)
		}
		for _, text := range all {
			if !strings.Contains(text, ":PORT") { // only global options
				text += "\n:PORT {\n\tpenstock 100/1m\n\trespond \"ok\"\n}\n"
			}
			t.Run(document, func(t *testing.T) {
				s := start(t, text)
				if strings.Contains(text, "\tmode ") {
					return // the Caddyfile was adapted; the servers that it names do not exist here
				}
				if strings.Contains(text, "penstock_status") {
					compareStatus(t, s.get("/quota").body)
				}
				if got := s.get("/api/x", "User-Agent", "ShopApp/2"); got.StatusCode != 200 || got.body != "ok" || got.Header.Get("X-Ratelimit-Limit") == "" {
					t.Errorf("%d %q %v of\n%s", got.StatusCode, got.body, got.Header, text)
				}
			})
		}
	}
}

// compareStatus checks that the answer has every field and every limit of the answer in the
// reference.
func compareStatus(t *testing.T, answer string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "docs", "reference", "caddyfile.md"))
	if err != nil {
		t.Fatal(err)
	}
	type status struct {
		Client, Identity string
		Limits           []map[string]any
	}
	shown, got := status{}, status{}
	for text, to := range map[string]*status{string(regexp.MustCompile("(?s)```json\n(.*?)```").FindSubmatch(text)[1]): &shown, answer: &got} {
		if err := json.Unmarshal([]byte(text), to); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
	}
	known := map[any]map[string]any{}
	for _, limit := range got.Limits {
		known[limit["policy"]] = limit
	}
	for _, limit := range shown.Limits {
		for word := range limit {
			if _, ok := known[limit["policy"]][word]; !ok && word != "retry_after" {
				t.Errorf("limit %v has no %s in %s", limit["policy"], word, answer)
			}
		}
	}
	if got.Identity != shown.Identity || got.Client == "" || len(shown.Limits) != 2 {
		t.Errorf("shown %+v, answered %s", shown, answer)
	}
}

// TestReadmeListsTheModules: the README shows the modules of this package as "make xcaddy" prints
// them.
func TestReadmeListsTheModules(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var listed strings.Builder
	for _, module := range caddy.Modules() {
		if strings.Contains(module, "penstock") && module != "events.handlers.penstock_test" {
			listed.WriteString(module + "\n")
		}
	}
	if !strings.Contains(string(text), "```console\n"+listed.String()+"```") {
		t.Errorf("README.md does not list these modules:\n%s", &listed)
	}
}
