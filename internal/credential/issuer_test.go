// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// testNow is the time at which the verifiers' clocks stand in the tests.
var testNow = time.Unix(1700000000, 0)

func testClock() time.Time { return testNow }

const testSecret = "a shared secret of 32 characters"

// issuer signs tokens as real issuers do.
type issuer struct {
	rsa, other *rsa.PrivateKey
	ec, ec384  *ecdsa.PrivateKey
	ed         ed25519.PrivateKey
	set        string // the JWK set of r1, e1, e3 and d1
}

// theIssuer is the issuer that the tests share, because generating RSA keys takes time.
var theIssuer = newIssuer()

func newIssuer() *issuer {
	s := &issuer{}
	var errs [5]error
	s.rsa, errs[0] = rsa.GenerateKey(rand.Reader, 2048)
	s.other, errs[1] = rsa.GenerateKey(rand.Reader, 2048)
	s.ec, errs[2] = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	s.ec384, errs[3] = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	_, s.ed, errs[4] = ed25519.GenerateKey(rand.Reader)
	for _, err := range errs {
		if err != nil {
			panic(err)
		}
	}
	r1 := rsaJWK("r1", &s.rsa.PublicKey)
	s.set = setOf(strings.Replace(r1, "{", `{"alg":"RS256","use":"sig",`, 1), ecJWK("e1", &s.ec.PublicKey),
		ecJWK("e3", &s.ec384.PublicKey), fmt.Sprintf(`{"kty":"OKP","crv":"Ed25519","kid":"d1","x":%q}`,
			encode(s.ed.Public().(ed25519.PublicKey))))
	return s
}

func setOf(keys ...string) string { return `{"keys":[` + strings.Join(keys, ",") + `]}` }

func encode(data []byte) string { return base64.RawURLEncoding.EncodeToString(data) }

func rsaJWK(kid string, k *rsa.PublicKey) string {
	return fmt.Sprintf(`{"kty":"RSA","kid":%q,"n":%q,"e":"AQAB"}`, kid, encode(k.N.Bytes()))
}

func ecJWK(kid string, k *ecdsa.PublicKey) string {
	point, err := k.Bytes()
	if err != nil {
		panic(err)
	}
	half := len(point) / 2
	return fmt.Sprintf(`{"kty":"EC","crv":%q,"kid":%q,"x":%q,"y":%q}`, k.Params().Name, kid, encode(point[1:1+half]),
		encode(point[1+half:]))
}

// issuer.token makes a token from a header and claims in JSON.
func (s *issuer) token(t testing.TB, header, claims, how string) string {
	t.Helper()
	signed := encode([]byte(header)) + "." + encode([]byte(claims))
	signature, err := s.sign(signed, how)
	if err != nil {
		t.Fatalf("sign %s: %v", how, err)
	}
	return signed + "." + encode(signature)
}

func (s *issuer) sign(text, how string) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(&s.rsa.PublicKey)
	if err != nil {
		return nil, err
	}
	digest := sha256.Sum256([]byte(text))
	hs := func(secret []byte) ([]byte, error) { return jwt.SigningMethodHS256.Sign(text, secret) }
	switch how {
	case "rsa":
		return jwt.SigningMethodRS256.Sign(text, s.rsa)
	case "other":
		return jwt.SigningMethodRS256.Sign(text, s.other)
	case "ec":
		return jwt.SigningMethodES256.Sign(text, s.ec)
	case "ec384":
		return jwt.SigningMethodES384.Sign(text, s.ec384)
	case "ed":
		return jwt.SigningMethodEdDSA.Sign(text, s.ed)
	case "pss":
		return rsa.SignPSS(rand.Reader, s.rsa, crypto.SHA256, digest[:], nil)
	case "asn1":
		return ecdsa.SignASN1(rand.Reader, s.ec, digest[:])
	case "zero":
		return make([]byte, 64), nil
	case "none":
		return nil, nil
	case "secret":
		return hs([]byte(testSecret))
	case "hmac:pem":
		return hs(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	case "hmac:der":
		return hs(der)
	case "hmac:jwks":
		return hs([]byte(s.set))
	case "hmac:n":
		return hs(s.rsa.N.Bytes())
	case "hmac:empty":
		return hs([]byte{})
	}
	return nil, fmt.Errorf("unknown way %q", how)
}

// goodToken returns a valid token for a user, signed with the key r1.
func (s *issuer) goodToken(t testing.TB, user string) string {
	t.Helper()
	name, err := json.Marshal(user)
	if err != nil {
		t.Fatal(err)
	}
	return s.token(t, `{"alg":"RS256","kid":"r1"}`, fmt.Sprintf(`{"sub":%s,"exp":1700000600}`, name), "rsa")
}

// write writes a file to a temporary directory of the test and returns its path.
func write(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// openTest returns a verifier that is closed when the test ends.
func openTest(t testing.TB, o JWTOptions) *JWT {
	t.Helper()
	if o.Now == nil {
		o.Now = testClock
	}
	j, err := NewJWT(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return j
}

func newEC(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}
