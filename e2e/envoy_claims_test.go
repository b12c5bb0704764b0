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

// authenticatedFilter puts Envoy's own JWT filter in front of the filter. A request without a valid
// token continues without claims.
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

// TestEnvoyClaims tests that claims which Envoy's own filter has verified identify a client and
// determine its tier. Unverified claims have no effect.
func TestEnvoyClaims(t *testing.T) {
	t.Parallel()
	s := &site{filter: authenticatedFilter, set: longDeadline + "\non_error: deny"}
	useEnvoy(t, nil, s)
	s.startBridge(t, claimsPolicy)
	alice := claimsToken(t, claimsKey, jwt.MapClaims{"sub": "alice", "org": map[string]any{"tier": "premium"}})
	bob := claimsToken(t, claimsKey, jwt.MapClaims{"sub": "bob"})
	forged := claimsToken(t, "another key", jwt.MapClaims{"sub": "alice", "org": map[string]any{"tier": "premium"}})
	for i, c := range []struct {
		token                 string
		limit, firstRemaining int
		status                int
	}{
		{token: alice, limit: 3, firstRemaining: 2, status: http.StatusOK},
		{token: bob, limit: 2, firstRemaining: 1, status: http.StatusOK},
		{token: alice, limit: 3, firstRemaining: 1, status: http.StatusOK}, {limit: 2, firstRemaining: 1, status: http.StatusOK},
		{token: forged, limit: 2, status: http.StatusOK}, // counted by address, as without a token
		{limit: 2, status: http.StatusTooManyRequests}, {token: forged, limit: 2, status: http.StatusTooManyRequests},
		{token: alice, limit: 3, status: http.StatusOK}, {token: alice, limit: 3, status: http.StatusTooManyRequests},
		{token: bob, limit: 2, status: http.StatusOK},
	} {
		var header []string
		if c.token != "" {
			header = []string{"Authorization", "Bearer " + c.token}
		}
		a := s.get(t, "/", header...)
		limit, remaining := a.header.Get("X-RateLimit-Limit"), a.header.Get("X-RateLimit-Remaining")
		if a.status != c.status || limit != strconv.Itoa(c.limit) || remaining != strconv.Itoa(c.firstRemaining) {
			t.Errorf("request %d: status %d, %s of %s remain, want %+v", i+1, a.status, remaining, limit, c)
		}
	}
}

// claimsToken returns a token with the issuer shop that is valid for an hour.
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
