// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestModuleVerifiesCredentials tests that the module itself fetches a key set and follows edits of
// a keys file. Tokens and API keys identify clients and their tiers until the issuer replaces its
// key or the API key is revoked. A request with an invalid token or an unknown API key is denied.
func TestModuleVerifiesCredentials(t *testing.T) {
	t.Parallel()
	former, next, stranger := newEC(t, "one"), newRSA(t, "two"), newEC(t, "one")
	i, keys := newIssuer(t, former), newKeysFile(t, map[string]string{"steady": `tier = "gold"`, "revoked": ""})
	_, sites := startModule(t, module(t), nil, `name: shop
identify:
  - jwt: {jwks_url: "http://`+i.address+`/keys", refresh: 1s, issuer: login, audience: shop, tier_claim: plan, on_invalid: deny}
  - api_key: {keys_file: "`+keys.path+`", header: X-API-Key, on_invalid: deny}
  - ip
rules: [{name: api, limit: 1000/31d, tiers: {gold: 2000/31d}}]
`+inRedis(redistest.Start(t)))
	answers := func(status int, limit int64, field, value string) func() bool {
		return func() bool {
			a := sites[0].get(t, "/", field, value)
			return a.status == status && (limit == 0 || a.number("X-RateLimit-Limit") == limit)
		}
	}
	has := func(what string, answers func() bool) { t.Helper(); eventually.Until(t, patience, what, answers) }
	bearer := func(s *signer) string { return "Bearer " + s.token(t, "ann") }
	has("a token has the tier of its claim", answers(http.StatusOK, 2000, "Authorization", bearer(former)))
	has("a key has its tier", answers(http.StatusOK, 2000, "X-API-Key", keyOf("steady")))
	has("a key without a tier", answers(http.StatusOK, 1000, "X-API-Key", keyOf("revoked")))
	for field, value := range map[string]string{"Authorization": bearer(stranger), "X-API-Key": keyOf("unknown")} {
		if a := sites[0].get(t, "/", field, value); a.status != http.StatusUnauthorized {
			t.Errorf("%s %s: status %d", field, value, a.status)
		}
	}
	i.publish(next)
	keys.edit(map[string]string{"steady": "", "revoked": "revoked = true"})
	has("a token of the next key is valid", answers(http.StatusOK, 2000, "Authorization", bearer(next)))
	has("a token of the former key is denied", answers(http.StatusUnauthorized, 0, "Authorization", bearer(former)))
	has("the edited tier", answers(http.StatusOK, 1000, "X-API-Key", keyOf("steady")))
	has("the revoked key is denied", answers(http.StatusUnauthorized, 0, "X-API-Key", keyOf("revoked")))
}
