// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net/http"
	"strings"
	"testing"
)

// tokenAttacks holds attacks by invalid credentials that are expensive to check.
var tokenAttacks = []attack{
	{name: "random signatures of ES384 over 200 connections", path: "/each", limit: 5, inFlight: 200, run: func(a *attackRun) {
		a.steadyLoad(200, chooseLength(1_500, 10_000), func(int) (from, fields string) { return a.from, bearer(garbageToken("ES384", "p384", 96)) })
	}},
	{name: "random signatures of RS256 by a key of 4,096 bits", path: "/each", limit: 5, inFlight: 64, run: func(a *attackRun) {
		a.steadyLoad(64, chooseLength(500, 5_000), func(int) (from, fields string) { return a.from, bearer(garbageToken("RS256", "r4096", 512)) })
	}},
	{name: "random signatures from 20 addresses", path: "/each", limit: 20 * 5, loses: true, inFlight: 80, run: func(a *attackRun) {
		addresses := make([]string, 20)
		for i := range addresses {
			attackers++
			addresses[i] = loopback(2*attackers + 1)
		}
		addresses[0] = a.from
		a.steadyLoad(80, chooseLength(1_000, 10_000), func(i int) (from, fields string) { return addresses[i%20], bearer(garbageToken("ES384", "p384", 96)) })
	}},
	{name: "tokens of 8 KB and of 60 KB", path: "/each", limit: 5, run: func(a *attackRun) {
		for _, size := range []int{8 << 10, 60 << 10} {
			a.steadyLoad(8, chooseLength(50, 500), func(int) (from, fields string) { return a.from, bearer(garbageToken("ES384", "p384", size)) })
		}
	}},
	{name: "tokens with an unknown kid", path: "/each", limit: 5, inFlight: 16, run: func(a *attackRun) {
		a.steadyLoad(16, chooseLength(200, 5_000), func(i int) (from, fields string) {
			return a.from, bearer(garbageToken("ES384", fmt.Sprint("nobody-", i), 96))
		})
	}},
	{name: "tokens that are none", path: "/each", limit: 5, run: func(a *attackRun) {
		for _, t := range oddTokens() {
			a.each(a.request(http.MethodGet, "/each", bearer(t)+"Connection: close\r\n"))
		}
	}},
	{name: "unknown API keys", path: "/each", limit: 5, run: func(a *attackRun) {
		a.steadyLoad(8, chooseLength(200, 2_000), func(i int) (from, fields string) {
			return a.from, "X-API-Key: pk_0123456789abcdef" + fmt.Sprint(i) + "\r\n"
		})
	}},
	{name: "a bearer token behind a tab, or in another spelling", path: "/each", limit: 0, strict: true, run: func(a *attackRun) {
		for i, scheme := range []string{"Bearer\t", "Bearer \t", "Bearer\t ", "bearer\t", "BEARER ", "Bearer  ", "\tBearer ", "Bearer\t\t", "bEARER ", "Bearer , "} {
			for range 3 {
				a.each(a.request(http.MethodGet, "/each", fmt.Sprintf("X-Forwarded-For: 203.0.%d.%d\r\nAuthorization: %s%s\r\nConnection: close\r\n",
					a.number, i, scheme, garbageToken("ES384", "p384", 96))))
			}
		}
	}, plain: func(a *attackRun) int {
		status, _ := a.exchange(a.request(http.MethodGet, "/each", "X-Forwarded-For: "+a.newForwarded()+"\r\nConnection: close\r\n"+bearer("not.a.token")))
		return status
	}},
}

// bearer returns the header field that contains a token.
func bearer(token string) string { return "Authorization: Bearer " + token + "\r\n" }

// garbageToken returns a token with a random signature. Its head names the given algorithm and key.
// The argument size is about the length of the signature.
func garbageToken(algorithm, kid string, size int) string {
	text := base64.RawURLEncoding.EncodeToString
	signature := make([]byte, size*3/4)
	if size <= 512 {
		signature = make([]byte, size)
	}
	for i := range signature {
		signature[i] = byte(mathrand.Uint32())
	}
	claims := fmt.Sprintf(`{"sub":"mallory","iss":"login","aud":"shop","exp":4102444800,"jti":"%d"}`, mathrand.Uint64())
	return text([]byte(`{"alg":"`+algorithm+`","kid":"`+kid+`"}`)) + "." + text([]byte(claims)) + "." + text(signature)
}

// oddTokens returns texts that are no tokens, or no valid ones.
func oddTokens() []string {
	text := base64.RawURLEncoding.EncodeToString
	tokens := []string{"", ".", "..", "...", "a.b.c", strings.Repeat(".", 4<<10), strings.Repeat("a", 4<<10), "\xff\xfe.\xff.\xff"}
	for _, head := range []string{`{"alg":"none"}`, `{"alg":"None"}`, `{"alg":""}`, `{}`, `[]`, `null`, `{"alg":"HS256","kid":"p384"}`, `{"alg":"HS384","kid":"r4096"}`,
		`{"alg":"ES256","kid":"p384"}`, `{"alg":"RS512","kid":"p384"}`, `{"alg":"ES384","kid":"../p384"}`, `{"alg":"ES384","jku":"http://127.0.0.1:1/"}`,
		`{"alg":"ES384","crit":["exp"]}`, `{"alg":"ES384","b64":false}`, `{"alg":["ES384"]}`, `{"alg":"ES384","alg":"none"}`, strings.Repeat("[", 2000)} {
		claims := `{"sub":"mallory","iss":"login","aud":"shop","exp":4102444800}`
		tokens = append(tokens, text([]byte(head))+"."+text([]byte(claims))+".", text([]byte(head))+"."+text([]byte(claims))+"."+text(make([]byte, 96)))
	}
	return tokens
}

// attackKeySet returns a key set whose keys make verification expensive.
func attackKeySet(t testing.TB) string {
	t.Helper()
	text := base64.RawURLEncoding.EncodeToString
	curve, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point, err := curve.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	modulus, err := rsa.GenerateKey(rand.Reader, 4096)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`{"keys":[{"kty":"EC","crv":"P-384","use":"sig","kid":"p384","x":%q,"y":%q},{"kty":"RSA","use":"sig","kid":"r4096","n":%q,"e":%q}]}`,
		text(point[1:49]), text(point[49:]), text(modulus.N.Bytes()), text(big.NewInt(int64(modulus.E)).Bytes()))
}
