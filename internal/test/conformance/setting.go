// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// The secrets with which tokens of the kinds "secret" and "stranger" are signed. Policies can write
// the first one as @secret@.
const (
	secret   = "the secret of the corpus, which is long enough for HS256 and for HS512 too"
	stranger = "the secret of somebody else, which is also long enough for HS256"
)

// keyID is the kid of the key in the corpus' key set.
const keyID = "corpus"

func privateKey() ed25519.PrivateKey {
	seed := sha256.Sum256([]byte("conformance"))
	return ed25519.NewKeyFromSeed(seed[:])
}

// keySet is the JSON Web Key Set of the corpus.
func keySet() []byte {
	public := privateKey().Public().(ed25519.PublicKey)
	return fmt.Appendf(nil, `{"keys":[{"kty":"OKP","crv":"Ed25519","alg":"EdDSA","use":"sig","kid":%q,"x":%q}]}`, keyID,
		base64.RawURLEncoding.EncodeToString(public))
}

// Setting is the environment in which a front runs stories.
type Setting struct {
	Now time.Time // the time at which tokens are issued
	// Attrs maps the attribute names of the corpus to those of the front.
	Attrs map[string]string
	// KeySetURL is the URL of the key set.
	KeySetURL string
}

// ServeKeySet serves the corpus' key set until the test ends.
func ServeKeySet(t testing.TB) (url string) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(keySet()) }))
	t.Cleanup(server.Close)
	return server.URL + "/keys.json"
}

// Write writes the story's files into a folder and returns the path of the policy file. In the
// story's requests, it replaces the names of tokens and keys by their values.
func (s *Story) Write(t testing.TB, dir string, o Setting) (file string) {
	t.Helper()
	file = filepath.Join(dir, "policy.yaml")
	for name, text := range map[string]string{"policy.yaml": s.Text(o), "keys.toml": s.keys(), "keys.json": string(keySet()),
		"secret.txt": secret} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.name(t, o.Now)
	return file
}

// Namespace returns the name of the story's policy.
func (s *Story) Namespace() string {
	for line := range strings.Lines(s.Policy) {
		if name, ok := strings.CutPrefix(line, "name: "); ok {
			return strings.TrimSpace(name)
		}
	}
	return s.ID
}

// Text returns the policy as the front reads it.
func (s *Story) Text(o Setting) string {
	var head string
	if name := s.Namespace(); name == s.ID {
		head += "name: " + name + "\n"
	}
	if !strings.Contains(s.Policy, "trusted_") {
		// The client's address is to come from X-Forwarded-For.
		head += "trusted_proxies: [127.0.0.0/8]\n"
	}
	changes := []string{"@keys_url@", o.KeySetURL, "@secret@", secret}
	for name, known := range o.Attrs {
		changes = append(changes, "@"+name+"@", known)
	}
	return head + strings.NewReplacer(changes...).Replace(s.Policy)
}

func apiKey(id string) string { return "the-key-of-" + id + "-in-the-corpus" }

func (s *Story) keys() string {
	var b strings.Builder
	for _, k := range s.Keys {
		hash := sha256.Sum256([]byte(apiKey(k.ID)))
		fmt.Fprintf(&b, "[[keys]]\nid = %q\nhash = %q\n%s\n", k.ID, "sha256:"+hex.EncodeToString(hash[:]), k.Text)
	}
	return b.String()
}

// Story.name replaces the names of tokens and keys in the story's requests by their values.
func (s *Story) name(t testing.TB, now time.Time) {
	t.Helper()
	var changes []string
	for _, token := range s.Tokens {
		text, err := token.sign(now)
		if err != nil {
			t.Fatalf("%s: token %s: %v", s.Place, token.Name, err)
		}
		changes = append(changes, "<"+token.Name+">", text)
	}
	for _, k := range s.Keys {
		changes = append(changes, "<"+k.ID+">", apiKey(k.ID))
	}
	replacer := strings.NewReplacer(changes...)
	for i := range s.Exchanges {
		r := &s.Exchanges[i].Request
		r.Target = replacer.Replace(r.Target)
		for j := range r.Header {
			r.Header[j][1] = replacer.Replace(r.Header[j][1])
		}
	}
}

func (k *Token) sign(now time.Time) (string, error) {
	claims := jwt.MapClaims{}
	if err := json.Unmarshal([]byte(k.Claims), &claims); err != nil {
		return "", err
	}
	if k.Expiry != "never" {
		span, err := time.ParseDuration(k.Expiry)
		if err != nil {
			return "", err
		}
		claims["exp"] = now.Add(span).Unix()
	}
	switch k.Kind {
	case "secret":
		return jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte(secret))
	case "secret512":
		return jwt.NewWithClaims(jwt.SigningMethodHS512, claims).SignedString([]byte(secret))
	case "stranger":
		return jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte(stranger))
	case "none":
		return jwt.NewWithClaims(jwt.SigningMethodNone, claims).SignedString(jwt.UnsafeAllowNoneSignatureType)
	case "jwks":
		token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims)
		token.Header["kid"] = keyID
		return token.SignedString(privateKey())
	}
	return "", fmt.Errorf("%q is no kind of token: secret, secret512, jwks, stranger or none", k.Kind)
}
