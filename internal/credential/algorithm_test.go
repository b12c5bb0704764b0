// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	_ "crypto/sha512" // linked for crypto.SHA384 and crypto.SHA512
	"strings"
	"testing"

	"github.com/penstock/penstock/core/policy"
)

// sign signs a text as RFC 7518 specifies, using only the standard library.
func sign(t *testing.T, algorithm, text, secret string) []byte {
	t.Helper()
	if algorithm == "EdDSA" {
		return ed25519.Sign(theIssuer.ed, []byte(text))
	}
	hash := map[string]crypto.Hash{"256": crypto.SHA256, "384": crypto.SHA384, "512": crypto.SHA512}[algorithm[2:]]
	h := hash.New()
	h.Write([]byte(text))
	switch algorithm[:2] {
	case "HS":
		mac := hmac.New(hash.New, []byte(secret))
		mac.Write([]byte(text))
		return mac.Sum(nil)
	case "RS":
		signature, err := rsa.SignPKCS1v15(rand.Reader, theIssuer.rsa, hash, h.Sum(nil))
		if err != nil {
			t.Fatal(err)
		}
		return signature
	}
	key := map[string]*ecdsa.PrivateKey{"ES256": theIssuer.ec, "ES384": theIssuer.ec384}[algorithm]
	r, s, err := ecdsa.Sign(rand.Reader, key, h.Sum(nil))
	if err != nil {
		t.Fatal(err)
	}
	half := (key.Params().BitSize + 7) / 8
	return append(r.FillBytes(make([]byte, half)), s.FillBytes(make([]byte, half))...)
}

// TestEveryAlgorithmVerifies tests that each documented algorithm accepts its own signatures. A
// token that names one algorithm but is signed with another is rejected.
func TestEveryAlgorithmVerifies(t *testing.T) {
	secret := strings.Repeat(testSecret, 2)
	set := setOf(rsaJWK("r1", &theIssuer.rsa.PublicKey), ecJWK("e1", &theIssuer.ec.PublicKey), ecJWK("e3", &theIssuer.ec384.PublicKey),
		`{"kty":"OKP","crv":"Ed25519","kid":"d1","x":"`+encode(theIssuer.ed.Public().(ed25519.PublicKey))+`"}`)
	withSecret, bySet := []string{"HS256", "HS384", "HS512"}, []string{"RS256", "RS384", "RS512", "ES256", "ES384", "EdDSA"}
	for _, c := range []struct {
		names   []string
		options JWTOptions
	}{
		{withSecret, JWTOptions{Secret: secret, Algorithms: withSecret}},
		{bySet, JWTOptions{JWKSFile: write(t, "k.json", set)}},
	} {
		j := openTest(t, c.options)
		for _, said := range c.names {
			for _, signed := range c.names {
				text := encode([]byte(`{"alg":"`+said+`"}`)) + "." + encode([]byte(tokenClaims))
				id, state := j.Verify(text + "." + encode(sign(t, signed, text, secret)))
				if good := said == signed; good != (state == policy.CredentialValid) || good != (id != nil) {
					t.Errorf("a token that says %s and is signed by %s: %s, identity %v", said, signed, state, id)
				}
			}
		}
		for _, said := range c.names { // only this algorithm is allowed
			only := c.options
			only.Algorithms = []string{said}
			j := openTest(t, only)
			for _, signed := range c.names {
				text := encode([]byte(`{"alg":"`+signed+`"}`)) + "." + encode([]byte(tokenClaims))
				if _, state := j.Verify(text + "." + encode(sign(t, signed, text, secret))); (said == signed) != (state == policy.CredentialValid) {
					t.Errorf("algorithms [%s], a token by %s: %s", said, signed, state)
				}
			}
		}
	}
}
