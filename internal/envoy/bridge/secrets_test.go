// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// TestFiltersGetNoSecrets: the policy for filters has no verification keys, and no files,
// addresses or reasons meant for operators. Anyone who can read Envoy's configuration, or ask the
// bridge, can read that policy.
func TestFiltersGetNoSecrets(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{
		"hidden-secret.txt": "a secret of 32 bytes that signs all",
		"hidden-keys.toml":  "[[keys]]\nid = \"hidden-key-id\"\nhash = \"sha256:5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8\"\ntier = \"hidden-tier\"\n",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h := open(t, `
name: shop
identify:
  - jwt: { secret_file: `+filepath.Join(folder, "hidden-secret.txt")+`, algorithms: [HS256], issuer: hidden-issuer, audience: [hidden-audience] }
  - jwt: { secret: "hidden secret, which is in the policy itself", algorithms: [HS256], cookie: shown-cookie }
  - api_key: { keys_file: `+filepath.Join(folder, "hidden-keys.toml")+` }
  - ip: {}
block: [{ ip: [192.0.2.7], reason: "hidden-reason" }]
rules: [{ name: shown-rule, limit: 2/1h }]
`, nil)
	w := httptest.NewRecorder()
	h.b.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/v1/policy", nil))
	told := w.Body.Bytes()
	for _, shown := range []string{"shown-rule", "shown-cookie"} {
		if !bytes.Contains(told, []byte(shown)) {
			t.Errorf("%q is not told: look for what is hidden in another way", shown)
		}
	}
	for _, hidden := range []string{"hidden", "secret", "5e884898", folder} {
		if at := bytes.Index(told, []byte(hidden)); at >= 0 {
			t.Errorf("filters are told %q", told[at:min(len(told), at+40)])
		}
	}
}
