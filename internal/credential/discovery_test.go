// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/core/policy"
)

// discoveryIssuer is an issuer that serves a discovery document.
type discoveryIssuer struct {
	url         string
	document    atomic.Pointer[string] // with $ for the issuer's URL
	first, next string                 // key sets at /first and /next
}

func discover(t *testing.T, first, next string) *discoveryIssuer {
	t.Helper()
	d := &discoveryIssuer{first: first, next: next}
	mux := http.NewServeMux()
	mux.HandleFunc("/realm/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, strings.ReplaceAll(*d.document.Load(), "$", d.url))
	})
	mux.HandleFunc("/first", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, d.first) })
	mux.HandleFunc("/next", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, d.next) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	d.url = server.URL
	return d
}

func (d *discoveryIssuer) say(document string) { d.document.Store(&document) }

// TestKeysOfAnIssuer tests that the keys come from the URL in the issuer's discovery document, also
// after the issuer has changed that URL. If a later document is not valid, the last keys remain in
// force.
func TestKeysOfAnIssuer(t *testing.T) {
	one, two := &issuer{rsa: theIssuer.rsa, ec: newEC(t)}, &issuer{rsa: theIssuer.rsa, ec: newEC(t)}
	a, b := ecJWK("a", &one.ec.PublicKey), ecJWK("b", &two.ec.PublicKey)
	d, log := discover(t, setOf(a), setOf(b)), &lines{}
	d.say(`{"issuer":"$/realm/","jwks_uri":"$/first"}`)
	claims := fmt.Sprintf(`{"iss":%q,"sub":"u","exp":1700000600}`, d.url+"/realm/")
	tokenA, tokenB := one.token(t, tokenHeaderA, claims, "ec"), two.token(t, tokenHeaderB, claims, "ec")
	j, err := newJWT(JWTOptions{IssuerURL: d.url + "/realm/", Now: testClock, Logger: log.Logger()}, testPace, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	waitUntil(t, "the issuer's key is in force", stateIs(j, tokenA, policy.CredentialValid))
	if _, state := j.Verify(one.token(t, tokenHeaderA, `{"iss":"https://other.example","sub":"u","exp":1700000600}`, "ec")); state != policy.CredentialInvalid {
		t.Errorf("a token that names another issuer is %s", state)
	}
	for text, says := range map[string]string{
		`{"issuer":"https://other.example","jwks_uri":"$/next"}`:   "it is the document of the issuer",
		`{"issuer":"$/realm/","jwks_uri":"http://192.0.2.1/next"}`: "is not encrypted",
		`{"issuer":"$/realm/"}`:                                    "has no host",
		`<html>`:                                                   "is not JSON",
		`{"issuer":"$/realm/","jwks_uri":"$/nowhere"}`:             "404",
		`{"issuer":"$/realm/","jwks_uri":"$/first","x":"` + strings.Repeat("x", setBytesMax) + `"}`: "more than",
	} {
		d.say(text)
		waitUntil(t, "the log reports: "+says, func() bool {
			j.Verify(tokenB) // its key is unknown, so the document is fetched again
			return log.count(says) > 0
		})
		if !stateIs(j, tokenA, policy.CredentialValid)() {
			t.Errorf("after %.80s the last key is not in force", text)
		}
	}
	d.say(`{"issuer":"$/realm/","jwks_uri":"$/next"}`)
	waitUntil(t, "the moved key is in force", stateIs(j, tokenB, policy.CredentialValid))
	waitUntil(t, "the removed key is not", stateIs(j, tokenA, policy.CredentialInvalid))
}

// TestATierIsChosenFromAList tests that ChooseTier receives the texts of the claim, and that a
// claim that is neither a text nor a list of texts makes the token invalid. For a claim that is
// absent or null, ChooseTier receives nil.
func TestATierIsChosenFromAList(t *testing.T) {
	var got [][]string
	j := openTest(t, JWTOptions{JWKSFile: write(t, "k.json", theIssuer.set), TierClaim: "realm.groups",
		ChooseTier: func(values []string) string {
			got = append(got, values)
			return fmt.Sprint(len(values))
		}})
	verify := func(claim string) (*policy.Identity, policy.CredentialState) {
		return j.Verify(theIssuer.token(t, `{"alg":"RS256"}`, `{"sub":"u","exp":1700000600`+claim+`}`, "rsa"))
	}
	for _, c := range []struct {
		claim string
		want  []string
	}{
		{`,"realm":{"groups":["a","b c"]}`, []string{"a", "b c"}},
		{`,"realm.groups":"one"`, []string{"one"}},
		{`,"realm":{"groups":[]}`, []string{}},
		{`,"groups":["a"]`, nil},
		{`,"realm":{"groups":null}`, nil},
	} {
		got = nil
		id, state := verify(c.claim)
		if state != policy.CredentialValid || len(got) != 1 || !slices.Equal(got[0], c.want) || id.Tier != fmt.Sprint(len(c.want)) {
			t.Errorf("%s: %s %+v of %q, want %q", c.claim, state, id, got, c.want)
		}
	}
	for _, claim := range []string{`,"realm.groups":7`, `,"realm.groups":["a",7]`, `,"realm.groups":[["a"]]`, `,"realm.groups":{"a":true}`} {
		if _, state := verify(claim); state != policy.CredentialInvalid {
			t.Errorf("%s: %s", claim, state)
		}
	}
}

// TestATokenThatLivesTooLongIsInvalid tests the bound of LifeMax.
func TestATokenThatLivesTooLongIsInvalid(t *testing.T) {
	j := openTest(t, JWTOptions{JWKSFile: write(t, "k.json", theIssuer.set), LifeMax: time.Hour})
	for expires, want := range map[int64]policy.CredentialState{
		testNow.Unix() + 3600: policy.CredentialValid,
		testNow.Unix() + 3601: policy.CredentialInvalid,
		instantMax:            policy.CredentialInvalid,
	} {
		if _, state := j.Verify(theIssuer.token(t, `{"alg":"RS256"}`, fmt.Sprintf(`{"sub":"u","exp":%d}`, expires), "rsa")); state != want {
			t.Errorf("a token that expires at %d is %s, want %s", expires, state, want)
		}
	}
}
