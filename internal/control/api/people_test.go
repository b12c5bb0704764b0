// SPDX-License-Identifier: Apache-2.0

package api

import (
	"crypto/elliptic"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/credential"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/signer"
)

// patience is how long a busy machine may take for what happens in the background.
const patience = 30 * time.Second

// issuer is an OpenID issuer whose tokens [People] verifies.
type issuer struct {
	t    *testing.T
	url  string
	keys atomic.Pointer[string]
	away atomic.Bool // it answers 502
}

func newIssuer(t *testing.T, keys ...signer.Key) *issuer {
	t.Helper()
	i := &issuer{t: t}
	i.publish(keys...)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if i.away.Load() {
			http.Error(w, "away", http.StatusBadGateway)
			return
		}
		if r.URL.Path == "/.well-known/openid-configuration" {
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, i.url, i.url+"/keys")
			return
		}
		_, _ = w.Write([]byte(*i.keys.Load()))
	}))
	t.Cleanup(server.Close)
	i.url = server.URL
	return i
}

func (i *issuer) publish(keys ...signer.Key) {
	var set []string
	for _, key := range keys {
		set = append(set, key.JWK)
	}
	text := `{"keys":[` + strings.Join(set, ",") + `]}`
	i.keys.Store(&text)
}

// issuer.token returns a token that a key signs. The token's claims are those of a person who may
// do nothing, with the given changes; nil removes a claim.
func (i *issuer) token(by signer.Key, change map[string]any) string {
	i.t.Helper()
	claims := jwt.MapClaims{"iss": i.url, "aud": "penstock", "sub": "ann", "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(claims, change)
	maps.DeleteFunc(claims, func(_ string, value any) bool { return value == nil })
	token := jwt.NewWithClaims(jwt.SigningMethodES256, claims)
	token.Header["kid"] = by.Name
	text, err := token.SignedString(by.Signer)
	if err != nil {
		i.t.Fatal(err)
	}
	return text
}

// acceptTokens sets the option to accept the issuer's tokens. Members of the group NAMEs have the
// role NAME.
func (i *issuer) acceptTokens(o *Options) {
	i.t.Helper()
	verifier, err := credential.NewJWT(credential.JWTOptions{IssuerURL: i.url, Audience: []string{"penstock"}, TierClaim: "groups", Refresh: time.Second,
		LifeMax: 24 * time.Hour, Logger: slog.New(slog.DiscardHandler), ChooseTier: func(groups []string) string {
			greatest := ledger.Role("")
			for _, group := range groups {
				if role, ok := strings.CutSuffix(group, "s"); ok && ledger.Role(role).OfPeople() && !greatest.May(ledger.Role(role)) {
					greatest = ledger.Role(role)
				}
			}
			return string(greatest)
		}})
	if err != nil {
		i.t.Fatal(err)
	}
	i.t.Cleanup(func() { _ = verifier.Close() })
	o.People = verifier
}

func (s *served) ready() {
	s.t.Helper()
	eventually.Until(s.t, patience, "the issuer's keys arrive", func() bool {
		select {
		case <-s.api.o.People.Ready():
			return true
		default:
			return false
		}
	})
}

// addresses is the number of addresses that newAddressClient has used.
var addresses atomic.Uint32

// newAddressClient returns a client with an address of its own. The time for verifying tokens is
// bounded for each address, and all tests of the process share that bound.
func newAddressClient(t *testing.T) *http.Client {
	n := addresses.Add(1)
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 7, byte(n>>8), byte(n))}}
	transport := &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 16}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// askAsPerson sends a request with a token of the issuer, from a new address.
func (s *served) askAsPerson(token, method, path, body string) answer {
	s.t.Helper()
	return s.send(newAddressClient(s.t), token, method, path, body)
}

// TestPeopleHaveTheRoleOfTheirGroups tests that a person may do what a token of the control plane
// with the same role may do, and that the history names people in a way in which no token can be
// named.
func TestPeopleHaveTheRoleOfTheirGroups(t *testing.T) {
	t.Parallel()
	key := signer.EC(t, "one", elliptic.P256())
	i := newIssuer(t, key)
	s := serve(t, i.acceptTokens)
	s.ready()
	calls := []struct {
		needed             ledger.Role
		method, path, body string
	}{
		{ledger.Viewer, "GET", "/v1/clients", ""},
		{ledger.Support, "POST", client("user:bob") + "/edits", `{"action":"block",` + reason + `}`},
		{ledger.Editor, "PUT", "/v1/tiers/gold", `{` + reason + `}`},
		{ledger.Admin, "GET", "/v1/tokens", ""},
		{ledger.Node, "PUT", "/v1/batches/usage/1", "x"},
	}
	for _, role := range []ledger.Role{"", ledger.Viewer, ledger.Support, ledger.Editor, ledger.Admin, ledger.Node} {
		token := i.token(key, map[string]any{"sub": "an " + string(role), "groups": []string{"all", string(role) + "s"}})
		for _, c := range calls {
			a := s.askAsPerson(token, c.method, c.path, c.body)
			if may := role.OfPeople() && role.May(c.needed); may != (a.status < 300) || !may && a.status != http.StatusForbidden {
				t.Errorf("%q: %s %s: %d %s", role, c.method, c.path, a.status, a.body)
			}
		}
	}
	admin := i.token(key, map[string]any{"sub": "admin", "groups": "admins"})
	s.checkAnswer(s.askAsPerson(admin, "PUT", "/v1/tiers/silver", `{`+reason+`}`), 200)
	s.checkAnswer(s.askAsPerson(i.token(key, map[string]any{"groups": []string{"viewers", "editors"}}), "PUT", "/v1/tiers/gold", `{`+reason+`}`), 200)
	var changes struct{ Changes []ledger.Change }
	history := s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/changes", ""), 200)
	if err := json.Unmarshal([]byte(history.body), &changes); err != nil {
		t.Fatal(err)
	}
	var actors []string
	for _, change := range changes.Changes {
		if change.Actor != "test" {
			actors = append(actors, change.Actor)
		}
	}
	slices.Reverse(actors)
	if want := []string{"oidc:an support", "oidc:an editor", "oidc:an editor", "oidc:an admin", "oidc:an admin", "oidc:admin", "oidc:ann"}; len(actors) < 5 ||
		!slices.Equal(actors[len(actors)-2:], want[len(want)-2:]) || slices.ContainsFunc(actors, func(a string) bool { return !slices.Contains(want, a) }) {
		t.Errorf("the history has the names %q", actors)
	}
	expires := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	for _, name := range []string{"oidc:admin", "OIDC:admin", "oidc:", "a\u202eb"} {
		s.checkAnswer(s.askAsPerson(admin, "POST", "/v1/tokens", fmt.Sprintf(`{"name":"%s","role":"viewer","expires_at":%q,%s}`, name, expires, reason)), 422, "body.name")
	}
	s.checkAnswer(s.askAsPerson(admin, "POST", "/v1/tokens", fmt.Sprintf(`{"name":"admin","role":"viewer","expires_at":%q,%s}`, expires, reason)), 201, `"created_by":"oidc:admin"`)
}

// TestTokensOfPeopleAreChecked tests that a token is rejected if any part of it is wrong.
func TestTokensOfPeopleAreChecked(t *testing.T) {
	t.Parallel()
	key, foreign := signer.EC(t, "one", elliptic.P256()), signer.EC(t, "one", elliptic.P256())
	i := newIssuer(t, key)
	s := serve(t, i.acceptTokens)
	s.ready()
	at := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
	with := func(claim string, value any) map[string]any {
		return map[string]any{claim: value, "groups": []string{"admins"}}
	}
	for _, c := range []struct {
		name   string
		change map[string]any
		want   int
		says   string
	}{
		{"good", with("x", 1), 200, "tokens"},
		{"good, one of several audiences", with("aud", []string{"other", "penstock"}), 200, "tokens"},
		{"good, expired within the leeway", with("exp", at(-5*time.Second)), 200, "tokens"},
		{"good, not before, within the leeway", with("nbf", at(5*time.Second)), 200, "tokens"},
		{"another audience", with("aud", "other"), 401, "audience"},
		{"no audience", with("aud", nil), 401, "audience"},
		{"another issuer", with("iss", i.url+"/"), 401, "issuer"},
		{"no issuer", with("iss", nil), 401, "issuer"},
		{"expired", with("exp", at(-time.Minute)), 401, "has expired"},
		{"no expiry", with("exp", nil), 401, "lifetime"},
		{"an expiry in milliseconds", with("exp", at(time.Hour)*1000), 401, "lifetime"},
		{"lives too long", with("exp", at(25*time.Hour)), 401, "lifetime"},
		{"not valid yet", with("nbf", at(time.Minute)), 401, "not valid yet"},
		{"no name", with("sub", nil), 401, "name"},
		{"a name that is a list", with("sub", []string{"ann"}), 401, "name"},
		{"a name of two lines", with("sub", "ann\nadmin"), 401, "name"},
		{"a name that turns the text", with("sub", "ann\u202e"), 403, "cannot be printed"},
		{"a long name", with("sub", strings.Repeat("x", 256)), 403, "more than 255 bytes"},
		{"groups of another type", map[string]any{"groups": []any{"admins", 7}}, 401, "groups"},
		{"no groups", nil, 403, "no group that has a role"},
		{"groups without a role", map[string]any{"groups": []string{"admin", "nodes", ""}}, 403, "no group that has a role"},
	} {
		if a := s.askAsPerson(i.token(key, c.change), "GET", "/v1/tokens", ""); a.status != c.want || !strings.Contains(a.body, c.says) {
			t.Errorf("%s: %d %s; want %d with %q", c.name, a.status, a.body, c.want, c.says)
		}
	}
	good := i.token(key, with("x", 2))
	header, rest, _ := strings.Cut(good, ".")
	payload, signature, _ := strings.Cut(rest, ".")
	none := "eyJhbGciOiJub25lIn0"
	for name, token := range map[string]string{
		"signed by another key": i.token(foreign, with("x", 1)),
		"an unknown key":        i.token(signer.Key{Name: "two", Signer: foreign.Signer}, with("x", 1)),
		"no algorithm":          none + "." + payload + ".",
		"no signature":          header + "." + payload,
		"an empty signature":    header + "." + payload + ".",
		"another header":        none + "." + payload + "." + signature,
		"too long":              good + strings.Repeat("A", credential.TokenBytesMax),
		"garbage":               "x.y.z",
		"a word":                "admin",
	} {
		a := s.askAsPerson(token, "GET", "/v1/tokens", "")
		if a.status != 401 || a.header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	s.checkAnswer(s.askAsPerson("pst_"+good, "GET", "/v1/tokens", ""), 401)
	if a := serve(t).askAsPerson(good, "GET", "/v1/tokens", ""); a.status != 401 || strings.Contains(a.body, "issuer") {
		t.Errorf("a control plane without an issuer: %d %s", a.status, a.body)
	}
}

// TestAnIssuerThatIsAway tests that requests with tokens of people never wait for the issuer.
// Before the issuer's first answer, such requests get 503. Afterwards, the tokens are accepted even
// while the issuer is away. Meanwhile, tokens of the control plane work. Keys that the issuer
// removes are no longer accepted.
func TestAnIssuerThatIsAway(t *testing.T) {
	t.Parallel()
	first, second := signer.EC(t, "one", elliptic.P256()), signer.EC(t, "two", elliptic.P256())
	i := newIssuer(t, first)
	i.away.Store(true)
	s := serve(t, i.acceptTokens)
	old, fresh := i.token(first, map[string]any{"groups": "viewers"}), i.token(second, map[string]any{"groups": "viewers"})
	if a := s.checkAnswer(s.askAsPerson(old, "GET", "/v1/tiers", ""), 503, "has not sent its keys yet"); a.header.Get("Retry-After") != "1" {
		t.Errorf("the answer has the header %v", a.header)
	}
	s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/tiers", ""), 200)
	i.away.Store(false)
	s.ready()
	s.checkAnswer(s.askAsPerson(old, "GET", "/v1/tiers", ""), 200)
	i.away.Store(true)
	s.checkAnswer(s.askAsPerson(i.token(first, map[string]any{"sub": "bob", "groups": "viewers"}), "GET", "/v1/tiers", ""), 200)
	s.checkAnswer(s.askAsPerson(fresh, "GET", "/v1/tiers", ""), 401)
	i.publish(second)
	i.away.Store(false)
	eventually.Until(t, patience, "the new key is accepted", func() bool { return s.askAsPerson(fresh, "GET", "/v1/tiers", "").status == 200 })
	s.checkAnswer(s.askAsPerson(old, "GET", "/v1/tiers", ""), 401)
}

// TestGarbageTokensTakeNoTurnsOfPeople sends many tokens with wrong signatures from one address. It
// tests that the tokens of this address are soon not verified any more, and that everyone else is
// answered meanwhile.
func TestGarbageTokensTakeNoTurnsOfPeople(t *testing.T) {
	t.Parallel()
	key := signer.RSA(t, "one", 4096, "RS256")
	i := newIssuer(t, key)
	s := serve(t, i.acceptTokens)
	s.ready()
	sign := func(sub string) string {
		token := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.MapClaims{"iss": i.url, "aud": "penstock", "sub": sub, "groups": "viewers",
			"exp": time.Now().Add(time.Hour).Unix()})
		text, err := token.SignedString(key.Signer)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	good := sign("ann")
	header, _, _ := strings.Cut(good, ".")
	var garbage sync.WaitGroup
	var unchecked, refused atomic.Int64
	attacker := newAddressClient(t)
	ended := make(chan struct{})
	for worker := range 8 {
		garbage.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-ended:
					return
				default:
				}
				payload := fmt.Sprintf("eyJzdWIiOiJ4%04dIn0", (worker*1000+n)%10_000)
				token := header + "." + payload + "." + strings.Repeat("A", 683)
				switch a := s.send(attacker, token, "GET", "/v1/tiers", ""); a.status {
				case http.StatusServiceUnavailable, http.StatusTooManyRequests:
					unchecked.Add(1)
				case http.StatusUnauthorized:
					refused.Add(1)
				default:
					t.Errorf("garbage is answered %d %s", a.status, a.body)
				}
			}
		})
	}
	eventually.Until(t, patience, "garbage is not checked any more", func() bool { return unchecked.Load() > 100 })
	for n := range 20 {
		s.checkAnswer(s.askAsPerson(good, "GET", "/v1/tiers", ""), 200)
		s.checkAnswer(s.askAsPerson(sign(fmt.Sprint(n)), "GET", "/v1/tiers", ""), 200)
		s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/tiers", ""), 200)
	}
	close(ended)
	garbage.Wait()
	if refused.Load() == 0 {
		t.Error("no garbage was checked")
	}
}
