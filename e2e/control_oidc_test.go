// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/pgtest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestPeopleUseTheCommands tests that commands work with the token of a person, that the person's
// groups determine the role, and that the history names the person.
func TestPeopleUseTheCommands(t *testing.T) {
	t.Parallel()
	key, url := newEC(t, "one"), ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/.well-known/openid-configuration" {
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, url, url+"/keys")
			return
		}
		fmt.Fprintf(w, `{"keys":[%s]}`, key.JWK)
	}))
	t.Cleanup(server.Close)
	url = server.URL
	token := func(groups ...string) string {
		claims := jwt.MapClaims{"iss": url, "aud": "penstock", "sub": "8f3a", "email": "admin", "exp": time.Now().Add(time.Hour).Unix(),
			"realm": map[string]any{"roles": groups}}
		text := jwt.NewWithClaims(key.method, claims)
		text.Header["kid"] = key.Name
		signed, err := text.SignedString(key.Signer)
		if err != nil {
			t.Fatal(err)
		}
		return signed
	}
	database, redis := pgtest.Database(t), redistest.Start(t)
	c := startControl(t, database, redis.URL(), "", "--oidc-issuer", url, "--oidc-audience", "penstock", "--oidc-role", "support=help desk",
		"--oidc-role", "viewer=staff", "--oidc-groups-claim", "realm.roles", "--oidc-name-claim", "email")
	eventually.Until(t, controlPatience, "the issuer's keys have arrived", func() bool {
		_, r := c.ready()
		return r.OIDC == "ok"
	})
	own := c.token
	c.token = token("staff")
	c.client("block", "user:bob", "--reason", "abuse").mustFail(t, `needs a token of the role support, and the token has the role viewer`)
	c.token = token("staff", "help desk")
	c.client("block", "user:bob", "--reason", "abuse").mustSucceed(t)
	c.token = token("others")
	c.client("show", "user:bob").mustFail(t, "the token of oidc:admin is valid, and names no group that has a role here")
	c.token = own
	if history := c.client("history", "user:bob").mustSucceed(t); !strings.Contains(history, "oidc:admin  block") {
		t.Error(history)
	}
}
