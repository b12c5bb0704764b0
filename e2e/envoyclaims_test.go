// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const claimsKey = "a key that Envoy and this test know"

// authenticatedFilter has Envoy's own filter verify tokens first. Who shows none, or a false one, goes on without claims.
var authenticatedFilter = strings.ReplaceAll(`{name: envoy.filters.http.jwt_authn, typed_config: {
    "@type": type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication,
    providers: {shop: {issuer: shop, payload_in_metadata: jwt_payload, forward: true,
      local_jwks: {inline_string: '{"keys":[{"kty":"oct","alg":"HS256","kid":"a","k":"KEY"}]}'}}},
    rules: [{match: {prefix: /}, requires: {requires_any: {requirements: [{provider_name: shop}, {allow_missing_or_failed: {}}]}}}]}},
  `+wasmFilter, "KEY", base64.RawURLEncoding.EncodeToString([]byte(claimsKey)))

const claimsPolicy = `name: shop
on_error: deny
identify:
  - attr: "metadata.filter_metadata.[envoy.filters.http.jwt_authn].jwt_payload.sub"
  - ip: {}
tier: { attr: "metadata.filter_metadata.[envoy.filters.http.jwt_authn].jwt_payload.org.tier" }
rules: [{name: all, limit: 2/31d, tiers: {premium: 3/31d}}]
`

// TestEnvoyClaims: a client is who Envoy's own filter has verified, with the tier that its token gives it; nobody is who they only
// say they are.
func TestEnvoyClaims(t *testing.T) {
	s := &site{filter: authenticatedFilter, set: patient + "\non_error: deny"}
	startEnvoy(t, wasm(t), nil, s)
	s.startBridge(t, claimsPolicy)
	alice := claimsToken(t, claimsKey, jwt.MapClaims{"sub": "alice", "org": map[string]any{"tier": "premium"}})
	bob := claimsToken(t, claimsKey, jwt.MapClaims{"sub": "bob"})
	forged := claimsToken(t, "another key", jwt.MapClaims{"sub": "alice", "org": map[string]any{"tier": "premium"}})
	for i, c := range []struct {
		token            string
		limit, remaining int
		status           int
	}{
		{alice, 3, 2, http.StatusOK}, {bob, 2, 1, http.StatusOK}, {alice, 3, 1, http.StatusOK}, {"", 2, 1, http.StatusOK},
		{forged, 2, 0, http.StatusOK}, // by the address, as without a token
		{"", 2, 0, http.StatusTooManyRequests}, {forged, 2, 0, http.StatusTooManyRequests},
		{alice, 3, 0, http.StatusOK}, {alice, 3, 0, http.StatusTooManyRequests}, {bob, 2, 0, http.StatusOK},
	} {
		var header []string
		if c.token != "" {
			header = []string{"Authorization", "Bearer " + c.token}
		}
		a := s.get(t, "/", header...)
		limit, remaining := a.header.Get("X-RateLimit-Limit"), a.header.Get("X-RateLimit-Remaining")
		if a.status != c.status || limit != strconv.Itoa(c.limit) || remaining != strconv.Itoa(c.remaining) {
			t.Errorf("request %d: status %d, %s of %s remain, want %+v", i+1, a.status, remaining, limit, c)
		}
	}
}

// claimsToken returns a token of the shop's that is good for an hour.
func claimsToken(t *testing.T, key string, claims jwt.MapClaims) string {
	t.Helper()
	claims["iss"], claims["exp"] = "shop", time.Now().Add(time.Hour).Unix()
	token := jwt.NewWithClaims(jwt.SigningMethodHS256, claims)
	token.Header["kid"] = "a"
	text, err := token.SignedString([]byte(key))
	if err != nil {
		t.Fatal(err)
	}
	return text
}
