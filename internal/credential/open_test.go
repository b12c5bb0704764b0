// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile"
)

func document(t testing.TB, text string) *policyfile.Document {
	t.Helper()
	d, err := policyfile.Decode("policy.yaml", policyfile.YAML, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestOpenAllOpensNamedVerifiers(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, theIssuer.set) }))
	t.Setenv("KEYS_URL", server.URL)
	t.Cleanup(server.Close)
	keys := write(t, "keys.yaml", "keys: [{id: a, hash: "+hashOf(t, presented)+", tier: premium}]")
	d := document(t, `
identify:
  - jwt: { jwks_url: "{env.KEYS_URL}", algorithms: RS256, claim: org.user, leeway: 1m, refresh: 1m }
  - ip
  - api_key: { keys_file: keys.yaml }
  - jwt: { secret: "`+testSecret+`" }
rules: [{ name: r, limit: 1/1m }]
`)
	verifiers, closer, err := OpenAll(d, OpenOptions{Folder: filepath.Dir(keys), Now: testClock, Wait: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := closer.Close(); err != nil {
			t.Error(err)
		}
	})
	if len(verifiers) != 4 || verifiers[1] != nil {
		t.Fatalf("%v", verifiers)
	}
	// The first token expired 50 s ago, which is within its leeway of a minute.
	token := theIssuer.token(t, `{"alg":"RS256"}`, `{"org":{"user":"u"},"exp":1699999950}`, "rsa")
	for i, credential := range map[int]string{0: token, 2: presented, 3: theIssuer.token(t, `{"alg":"HS256"}`, tokenClaims, "secret")} {
		if id, state := verifiers[i].Verify(credential); state != policy.CredentialValid || id.ID == "" {
			t.Errorf("identify[%d]: %v %s", i, id, state)
		}
	}
	if _, err := d.CompileWith(verifiers); err != nil {
		t.Error(err)
	}
}

func TestOpenAllReportsEveryProblem(t *testing.T) {
	keys := write(t, "keys.yaml", "keys: [{id: a, hash: oops}]")
	d := document(t, `
identify:
  - jwt: { jwks_file: nowhere.json }
  - api_key: { keys_file: keys.yaml }
  - jwt: { secret: short }
  - api_key: { keys_file: gone.toml }
rules: [{ name: r, limit: 1/1m }]
`)
	verifiers, closer, err := OpenAll(d, OpenOptions{Folder: filepath.Dir(keys)})
	var problems policy.Problems
	if !errors.As(err, &problems) || len(problems) != 4 || verifiers != nil || closer != nil {
		t.Fatalf("%v", err)
	}
	for i, wants := range []string{"policy.yaml:3: identify[0].jwt: cannot be used", "keys.yaml:1: identify[1].api_key.keys_file: keys[0].hash",
		"the secret has 5 bytes", "policy.yaml:6: identify[3].api_key: cannot be used"} {
		if text := problems[i].String(); !strings.Contains(text, wants) {
			t.Errorf("%q, want %q", text, wants)
		}
	}
}

func TestOpenAllWaitsNoLongerThanAsked(t *testing.T) {
	stuck := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-stuck }))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(stuck) })
	d := document(t, `
identify: [{ jwt: { jwks_url: "`+server.URL+`" } }, { jwt: { jwks_url: "`+server.URL+`" } }]
rules: [{ name: r, limit: 1/1m }]
`)
	start := time.Now()
	_, closer, err := OpenAll(d, OpenOptions{Wait: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 20*time.Millisecond || took > 5*time.Second {
		t.Errorf("it waited %s", took)
	}
	if err := closer.Close(); err != nil {
		t.Error(err)
	}
}
