// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"bytes"
	"crypto/ed25519"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/published"
	"github.com/penstock/penstock/internal/test/freeport"
)

// TestAPolicyOverHTTP tests that a server without Redis takes its policy from a control plane, by
// the URL in the policy's own block or in the block control, and that each mistake is described.
func TestAPolicyOverHTTP(t *testing.T) {
	signer := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize))
	d := &policyfile.Document{Name: "shop", Rules: []policyfile.Rule{{Name: "api", Limit: policyfile.Words{"7/1m"}}}}
	text, err := (&published.Message{Policy: "shop", Generation: 1, Now: published.Content{Revision: 1, Document: d}}).Seal(signer)
	if err != nil {
		t.Fatal(err)
	}
	control := "http://" + upstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer pst_x" || r.URL.Path != "/v1/policies/shop/published" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = w.Write(text)
	})
	t.Cleanup(func() { _ = caddy.Stop() })
	folder := t.TempDir()
	token, wrong := filepath.Join(folder, "token"), filepath.Join(folder, "wrong")
	for file, text := range map[string]string{token: "pst_x\n", wrong: "pst_y\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	key := "key " + published.PublicText(signer.Public().(ed25519.PublicKey))
	own := "url " + control + "\ntoken_file " + token + "\nstate_dir " + filepath.Join(folder, "state")
	told := "control " + control + " {\ntoken_file " + token + "\nspool " + filepath.Join(folder, "spool") + "\n}"
	t.Setenv("PENSTOCK_TEST_CONTROL", control)
	for _, c := range []struct{ name, global, site, want string }{
		{"in a site", "", "policy http shop {\n" + own + "\n" + key + "\n}", ""},
		{"in the global options", "policy http shop {\n" + own + "\n" + key + "\n}", "", ""},
		{"as the block control", told, "policy http shop {\nstate_dir " + folder + "\n" + key + "\n}", ""},
		{"by the environment", "", "policy http shop {\nurl {env.PENSTOCK_TEST_CONTROL}\ntoken_file " + token + "\nstate_dir " + folder + "\n" + key + "\n}", ""},
		{"without a URL", "", "policy http shop {\n" + key + "\n}", "policy http shop: url is missing: write the address of the API"},
		{"without a token", "", "policy http shop {\nurl " + control + "\n" + key + "\n}", "token_file is missing"},
		{"the token of another URL", told, "policy http shop {\nurl http://127.0.0.1:1\n" + key + "\n}", "token_file is missing"},
		{"no URL", "", "policy http shop {\nurl control:7070\ntoken_file " + token + "\n" + key + "\n}", `"control:7070" is no URL`},
		{"no key", "", "policy http shop {\n" + own + "\n}", "has no key"},
		{"a key of another kind", "", "policy http shop {\n" + own + "\nkey rsa:x\n}", `policy http shop: the key "rsa:x" is not of the form`},
		{"no token in the file", "", "policy http shop {\nurl " + control + "\ntoken_file " + folder + "/none\nstate_dir " + folder + "/2\n" + key + "\n}",
			"the token of the control plane: open"},
		{"a wrong token", "", "policy http shop {\nurl " + control + "\ntoken_file " + wrong + "\nstate_dir " + folder + "/2\n" + key + "\n}", "answered 401"},
		{"another name", "", "policy http other {\n" + own + "\n" + key + "\n}", "answered 401"},
		{"nobody there", "", "policy http shop {\nurl http://" + freeport.Address(t) + "\ntoken_file " + token + "\nstate_dir " + folder + "/2\n" + key + "\n}",
			"did not answer for the policy"},
		{"twice", "", "policy http shop {\n" + own + "\n" + key + "\n}\npolicy redis shop {\n" + key + "\n}", "listed twice"},
		{"in Redis", "", "policy redis shop {\n" + key + "\n}", "or policy http"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &server{t: t, port: freePort(t), admin: freePort(t)}
			err := s.load("{\npenstock {\n" + c.global + "\n}\n}\n:PORT {\npenstock {\n" + c.site + "\n}\nrespond ok\n}")
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := s.do("GET", "/").Header.Get("X-RateLimit-Limit"); got != "7" {
				t.Errorf("the limit is %q", got)
			}
		})
	}
	s := &server{t: t, port: freePort(t), admin: freePort(t)}
	const places = `{"apps":{"penstock":{"policy":"x.yaml","policy_http":{"name":"shop","url":"http://127.0.0.1:1"}}}}`
	if err := s.loadJSON([]byte(places)); err == nil || !strings.Contains(err.Error(), "two of a file, Redis and HTTP") {
		t.Error(err)
	}
}
