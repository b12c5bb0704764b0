// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// signingKey is a key of a token issuer.
type signingKey struct {
	id  string
	key *ecdsa.PrivateKey
}

func newSigningKey(t *testing.T, id string) signingKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return signingKey{id, key}
}

// signingKey.public returns the key as a key set contains it.
func (k signingKey) public(t *testing.T) string {
	t.Helper()
	point, err := k.key.PublicKey.Bytes() // 4, then both coordinates
	if err != nil {
		t.Fatal(err)
	}
	text := base64.RawURLEncoding.EncodeToString
	return fmt.Sprintf(`{"kty":"EC","crv":"P-256","kid":%q,"x":%q,"y":%q}`, k.id, text(point[1:33]), text(point[33:]))
}

// signingKey.token returns a token of a user. The serial number makes the token unique.
func (k signingKey) token(t *testing.T, user string, serial int64) string {
	t.Helper()
	token := jwt.NewWithClaims(jwt.SigningMethodES256, jwt.MapClaims{"sub": user, "aud": "shop", "iss": "issuer",
		"jti": fmt.Sprint(serial), "exp": time.Now().Add(time.Hour).Unix(), "tier": "premium", "org": map[string]any{"id": "acme"}})
	token.Header["kid"] = k.id
	text, err := token.SignedString(k.key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// issuer publishes a key set.
type issuer struct {
	set   atomic.Pointer[string]
	fails atomic.Bool
	asked atomic.Int64
}

func (i *issuer) publish(t *testing.T, keys ...signingKey) {
	t.Helper()
	var all []string
	for _, k := range keys {
		all = append(all, k.public(t))
	}
	text := `{"keys":[` + strings.Join(all, ",") + `]}`
	i.set.Store(&text)
}

func (i *issuer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	i.asked.Add(1)
	if i.fails.Load() {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte(*i.set.Load()))
}

const rotating = `:PORT {
	penstock {
		name rotate
		identify jwt {
			jwks_url http://ISSUER/keys
			issuer issuer
			audience shop
			tier_claim tier
			tenant_claim org.id
			refresh 1s
			on_invalid deny
		}
		rule api 1000000/30d {
			tiers premium COUNT/30d
		}
	}
	respond "{http.penstock.client} {http.penstock.identity} {http.penstock.tier} {http.penstock.tenant}"
}`

// TestKeysRotateUnderLoad: an issuer adds a key, signs with it, and removes the old one, while
// requests with known and new tokens continue. No valid token is denied, even while the issuer
// fails and during a reload. Tokens of the removed key are denied.
func TestKeysRotateUnderLoad(t *testing.T) {
	old, fresh := newSigningKey(t, "old"), newSigningKey(t, "fresh")
	published := &issuer{}
	published.publish(t, old)
	config := strings.Replace(rotating, "ISSUER", upstream(t, published.ServeHTTP), 1)
	s := start(t, strings.Replace(config, "COUNT", "2000000", 1))
	r := s.get("/", "Authorization", "Bearer "+old.token(t, "ann", 0))
	equal(t, "the first token", r.body, "ann user premium acme")
	r.wantField(t, "X-RateLimit-Limit", "2000000")

	var signs atomic.Pointer[signingKey] // the key that signs the clients' tokens
	signs.Store(&old)
	var denied, serial atomic.Int64
	done := make(chan struct{})
	var load sync.WaitGroup
	for worker := range 4 {
		load.Go(func() {
			kept := map[string]string{}
			for {
				select {
				case <-done:
					return
				default:
				}
				k := signs.Load()
				text := kept[k.id]
				if n := serial.Add(1); text == "" || n%3 == 0 {
					text = k.token(t, fmt.Sprintf("user-%d", worker), n)
					kept[k.id] = text
				}
				if r := s.get("/", "Authorization", "Bearer "+text); r.StatusCode != http.StatusOK {
					denied.Add(1)
				}
			}
		})
	}
	accepted := func(k signingKey) func() bool {
		return func() bool {
			return s.get("/", "Authorization", "Bearer "+k.token(t, "bob", serial.Add(1))).StatusCode == http.StatusOK
		}
	}
	published.publish(t, old, fresh)
	waitUntil(t, "the new key is known", accepted(fresh))
	signs.Store(&fresh)
	if err := s.load(strings.Replace(config, "COUNT", "3000000", 1)); err != nil {
		t.Fatal(err)
	}
	published.fails.Store(true)
	before := published.asked.Load()
	waitUntil(t, "the issuer has failed twice", func() bool { return published.asked.Load() > before+1 })
	published.publish(t, fresh)
	published.fails.Store(false)
	waitUntil(t, "the old key is gone", func() bool { return !accepted(old)() })
	close(done)
	load.Wait()
	if denied.Load() > 0 || serial.Load() < 100 {
		t.Errorf("%d of %d requests with a good token were refused", denied.Load(), serial.Load())
	}
	r = s.get("/", "Authorization", "Bearer "+fresh.token(t, "ann", 0))
	r.wantField(t, "X-RateLimit-Limit", "3000000")
}
