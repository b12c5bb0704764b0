// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/redistest"
)

// caddyfiles are the Caddyfiles of a document, with what they name put in the place of what they call it.
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

// Every Caddyfile in the documents runs and limits.
func TestReferenceCaddyfiles(t *testing.T) {
	folder, redis := t.TempDir(), redistest.Start(t)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) }))
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
	replaced := strings.NewReplacer(":8080", ":PORT", "policy policy.yaml", "policy "+filepath.Join(folder, "policy.yaml"),
		"/etc/penstock", folder, "redis://localhost:6379", redis.URL(), "@redis.internal:6379/0", "@"+redis.Addr,
		"redis://limiter", "unix://limiter", "localhost:9000", upstream.Listener.Addr().String())
	for document, want := range map[string]int{"docs/policy.md": 2, "README.md": 3, "docs/operations.md": 1} {
		all := caddyfiles(t, document, replaced)
		if len(all) < want {
			t.Fatalf("%s has %d Caddyfiles, want at least %d", document, len(all), want)
		}
		for _, text := range all {
			if !strings.Contains(text, ":PORT") { // global options alone
				text += "\n:PORT {\n\tpenstock 100/1m\n\trespond \"ok\"\n}\n"
			}
			t.Run(document, func(t *testing.T) {
				if got := start(t, text).get("/api/x"); got.StatusCode != 200 || got.body != "ok" || got.Header.Get("X-Ratelimit-Limit") == "" {
					t.Errorf("%d %q %v of\n%s", got.StatusCode, got.body, got.Header, text)
				}
			})
		}
	}
}
