// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/policy"
)

func TestClaimsByPath(t *testing.T) {
	j := openTest(t, JWTOptions{JWKSFile: write(t, "k.json", theIssuer.set), Claim: "org.user", TenantClaim: "org.id",
		TierClaim: "https://shop.example/tier"})
	for _, c := range []struct {
		name, claims string
		want         *policy.Identity
	}{
		{"nested", `{"org":{"user":"u","id":7},"https://shop.example/tier":"premium"}`,
			&policy.Identity{Kind: "user", ID: "u", User: "u", Tenant: "7", Tier: "premium"}},
		{"a name with a dot goes first", `{"org.user":"dotted","org":{"user":"nested"}}`,
			&policy.Identity{Kind: "user", ID: "dotted", User: "dotted"}},
		{"null is not there", `{"org":{"user":"u","id":null}}`, &policy.Identity{Kind: "user", ID: "u", User: "u"}},
		{"a large number keeps its digits", `{"org":{"user":9007199254740993}}`,
			&policy.Identity{Kind: "user", ID: "9007199254740993", User: "9007199254740993"}},
		{"a level is no object", `{"org":["user"]}`, nil},
		{"dotted is null", `{"org.user":null,"org":{"user":"u"}}`, nil},
	} {
		token := theIssuer.token(t, `{"alg":"RS256","kid":"r1"}`, strings.Replace(c.claims, "{", `{"exp":1700000600,`, 1), "rsa")
		got, _ := j.Verify(token)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", c.name, diff)
		}
	}
}

func TestLongUserCountsByHash(t *testing.T) {
	j := openTest(t, JWTOptions{JWKSFile: write(t, "k.json", theIssuer.set)})
	fits, _ := j.Verify(theIssuer.goodToken(t, strings.Repeat("x", 255)))
	if fits == nil || fits.Kind != "user" || len(fits.ID) != 255 {
		t.Errorf("255 bytes: %+v", fits)
	}
	long, _ := j.Verify(theIssuer.goodToken(t, strings.Repeat("x", 256)))
	if long == nil || long.Kind != "user-sha256" || len(long.ID) != 64 || long.User != strings.Repeat("x", 256) {
		t.Errorf("256 bytes: %+v", long)
	}
	// A token that names the hash of the long name belongs to a different client and user.
	hash, _ := j.Verify(theIssuer.goodToken(t, long.ID))
	if hash == nil || hash.Kind == long.Kind || hash.User == long.User {
		t.Errorf("the hash as a name: %+v, the long name: %+v", hash, long)
	}
}

func TestLimitsOfAClaim(t *testing.T) {
	j := openTest(t, JWTOptions{JWKSFile: write(t, "k.json", theIssuer.set), LimitsClaim: "limits"})
	verify := func(limits string) (*policy.Identity, policy.CredentialState) {
		return j.Verify(theIssuer.token(t, `{"alg":"RS256"}`, `{"sub":"u","exp":1700000600,"limits":`+limits+`}`, "rsa"))
	}
	for _, good := range []string{`{"api":"10/1m"}`, `{"api":["10/1m","100/1d"],"*":["unlimited"]}`, `null`} {
		id, state := verify(good)
		if state != policy.CredentialValid || (id.Overrides != nil) != (good != "null") {
			t.Errorf("%s: %s %+v", good, state, id)
		}
	}
	for _, bad := range []string{`[]`, `"10/1m"`, `{"api":10}`, `{"api":[]}`, `{"api":["10/1m",5]}`, `{"api":["unlimited","10/1m"]}`,
		`{"api":["0/1m"]}`, `{"api":"010/1m"}`, `{"api":["1/1m","1/2m","1/3m","1/4m","1/5m","1/6m","1/7m","1/8m","1/9m"]}`} {
		if _, state := verify(bad); state != policy.CredentialInvalid {
			t.Errorf("%s: %s", bad, state)
		}
	}
}

// TestSeen: an operator can see the contents of a client's tokens until they expire. The token
// that expires last comes first.
func TestSeen(t *testing.T) {
	now := testNow
	j := openTest(t, JWTOptions{JWKSFile: write(t, "k.json", theIssuer.set), TierClaim: "plan", Now: func() time.Time { return now }})
	for _, claims := range []string{`"sub":"u","plan":"free","exp":1700000100`, `"sub":"u","plan":"pro","exp":1700000600`,
		`"sub":"v","plan":"gold","exp":1700000900`} {
		if _, state := j.Verify(theIssuer.token(t, `{"alg":"RS256"}`, "{"+claims+"}", "rsa")); state != policy.CredentialValid {
			t.Fatal(state)
		}
	}
	tiers := func() (tiers []string) {
		for _, id := range j.Seen("user", "u") {
			tiers = append(tiers, id.Tier)
		}
		return tiers
	}
	if got := fmt.Sprint(tiers()); got != "[pro free]" {
		t.Errorf("seen: %s, want [pro free]", got)
	}
	now = now.Add(time.Hour)
	if got := tiers(); len(got) != 0 {
		t.Errorf("of expired tokens: %v", got)
	}
}

func TestTokenEndsWhenItSays(t *testing.T) {
	now := testNow
	zero := time.Duration(0)
	j := openTest(t, JWTOptions{JWKSFile: write(t, "k.json", theIssuer.set), Leeway: &zero, Now: func() time.Time { return now }})
	token := theIssuer.token(t, `{"alg":"EdDSA","kid":"d1"}`, `{"sub":"u","nbf":1700000010,"exp":1700000020}`, "ed")
	for _, c := range []struct {
		at   int64
		want policy.CredentialState
	}{{0, policy.CredentialExpired}, {9, policy.CredentialExpired}, {10, policy.CredentialValid}, {19, policy.CredentialValid},
		{20, policy.CredentialExpired}, {15, policy.CredentialValid}, {5, policy.CredentialExpired}, {1e6, policy.CredentialExpired}} {
		now = testNow.Add(time.Duration(c.at) * time.Second)
		if _, state := j.Verify(token); state != c.want {
			t.Errorf("at %d s: %s, want %s", c.at, state, c.want)
		}
	}
}

// TestUsageIsReportedWithAnExpiredToken: a token that expires during a stream still names the
// client that the stream's usage is charged to, whether the token is remembered or not.
func TestUsageIsReportedWithAnExpiredToken(t *testing.T) {
	now, zero := testNow, time.Duration(0)
	token := theIssuer.token(t, `{"alg":"EdDSA","kid":"d1"}`, `{"sub":"u","nbf":1700000010,"exp":1700000020}`, "ed")
	for name, before := range map[string]int64{"a token that was valid": 10, "a token that was expired": 30, "an unknown token": -1} {
		j := openTest(t, JWTOptions{JWKSFile: write(t, "k.json", theIssuer.set), Leeway: &zero, Now: func() time.Time { return now }})
		if before >= 0 {
			now = testNow.Add(time.Duration(before) * time.Second)
			j.Verify(token)
		}
		const day = 24 * 60 * 60
		for _, c := range []struct {
			at   int64
			want policy.CredentialState
		}{{9, policy.CredentialExpired}, {20, policy.CredentialValid}, {20 + day - 1, policy.CredentialValid}, {20 + day, policy.CredentialExpired}} {
			now = testNow.Add(time.Duration(c.at) * time.Second)
			id, state := j.VerifyFor(&policy.Asker{Past: true}, token)
			if state != c.want || state == policy.CredentialValid && id.ID != "u" {
				t.Errorf("%s, at %d s: %s, %v, want %s", name, c.at, state, id, c.want)
			}
			if _, state := j.VerifyFor(new(policy.Asker), token); state != policy.CredentialExpired {
				t.Errorf("%s, at %d s, for a request: %s", name, c.at, state)
			}
		}
	}
}

func TestTokensWithoutExpiryWhereAllowed(t *testing.T) {
	j := openTest(t, JWTOptions{JWKSFile: write(t, "k.json", theIssuer.set), NoExpiry: true})
	if _, state := j.Verify(theIssuer.token(t, `{"alg":"RS256"}`, `{"sub":"u"}`, "rsa")); state != policy.CredentialValid {
		t.Error(state)
	}
}

func TestEmptyCredentialIsAbsent(t *testing.T) {
	j := openTest(t, JWTOptions{Secret: testSecret})
	if id, state := j.Verify(""); id != nil || state != policy.CredentialAbsent {
		t.Error(id, state)
	}
}

func TestSecretFromTheEnvironment(t *testing.T) {
	t.Setenv("IDENTITY_TEST_SECRET", testSecret)
	j := openTest(t, JWTOptions{Secret: "{env.IDENTITY_TEST_SECRET}", Audience: []string{"a"}})
	token := theIssuer.token(t, `{"alg":"HS256"}`, `{"sub":"u","aud":"a","exp":1700000600}`, "secret")
	if _, state := j.Verify(token); state != policy.CredentialValid {
		t.Error(state)
	}
}

func TestBadJWTOptions(t *testing.T) {
	second, minute, negative := time.Second, 6*time.Minute, -time.Second
	set := write(t, "k.json", theIssuer.set)
	for _, c := range []struct {
		o     JWTOptions
		wants string // the text of the error
	}{
		{JWTOptions{}, "one of jwks_file, jwks_url, secret_file and secret is needed"},
		{JWTOptions{Secret: testSecret, JWKSFile: set}, "several keys"},
		{JWTOptions{Secret: "short"}, "the secret has 5 bytes, HS256 needs 32: make one with openssl rand"},
		{JWTOptions{Secret: testSecret, Algorithms: []string{"HS512"}}, "the secret has 32 bytes, HS512 needs 64"},
		{JWTOptions{Secret: strings.Repeat("x", 5000)}, "longer than 4096"},
		{JWTOptions{Secret: "-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG"}, "PEM"},
		{JWTOptions{Secret: "{env.IDENTITY_TEST_UNSET}"}, `secret: environment variable "IDENTITY_TEST_UNSET" is not set`},
		{JWTOptions{Secret: testSecret, Algorithms: []string{"RS256"}}, "RS256 does not go with this kind of key"},
		{JWTOptions{JWKSFile: set, Algorithms: []string{"HS256"}}, "HS256 does not go with this kind of key"},
		{JWTOptions{JWKSFile: set, Algorithms: []string{"none"}}, `"none" is not verified`},
		{JWTOptions{JWKSFile: set, Algorithms: []string{"PS256"}}, `"PS256" is not verified`},
		{JWTOptions{JWKSFile: set, Algorithms: []string{"RS256", "RS256"}}, "twice"},
		{JWTOptions{JWKSFile: set, Leeway: &minute}, "leeway 6m0s is out of bounds"},
		{JWTOptions{JWKSFile: set, Leeway: &negative}, "leeway -1s is out of bounds"},
		{JWTOptions{JWKSFile: set, Refresh: second}, "no effect"},
		{JWTOptions{JWKSURL: "https://h.example/k", Refresh: second / 2}, "refresh 500ms is out of bounds"},
		{JWTOptions{JWKSURL: "http://id.example/keys"}, "is not encrypted"},
		{JWTOptions{JWKSURL: "http://user:hush@id.example/keys"}, "user:xxxxx@"},
		{JWTOptions{JWKSURL: "ftp://id.example/keys"}, "neither https"},
		{JWTOptions{JWKSURL: "/keys.json"}, "no host"},
		{JWTOptions{IssuerURL: "http://id.example"}, "is not encrypted"},
		{JWTOptions{IssuerURL: "https://id.example?x"}, "has a query"},
		{JWTOptions{IssuerURL: "https://me:hush@id.example"}, "has a query, a fragment or a user"},
		{JWTOptions{IssuerURL: "https://id.example", Issuer: "https://other.example"}, "leave one out"},
		{JWTOptions{IssuerURL: "https://id.example", JWKSURL: "https://id.example/keys"}, "several keys"},
		{JWTOptions{IssuerURL: "https://id.example", LifeMax: -second}, "is negative"},
		{JWTOptions{JWKSFile: "/nowhere/keys.json"}, "no such file"},
		{JWTOptions{JWKSFile: write(t, "a", "<html>")}, "is not a JWK set"},
		{JWTOptions{JWKSFile: write(t, "b", "{}")}, "has no keys"},
		{JWTOptions{JWKSFile: write(t, "c", "-----BEGIN PUBLIC KEY-----")}, "is PEM"},
		{JWTOptions{JWKSFile: write(t, "d", setOf(`{"kty":"oct","k":"c2VjcmV0"}`))}, "is a secret"},
		{JWTOptions{JWKSFile: write(t, "e", setOf(`{"kty":"RSA","n":"AQAB","e":"AQAB"}`))}, "RSA key of 17 bits"},
		{JWTOptions{JWKSFile: write(t, "f", strings.Repeat(" ", setBytesMax+1))}, "larger than 1048576"},
		{JWTOptions{JWKSFile: write(t, "g", setOf(ecJWK("x", &theIssuer.ec.PublicKey))), Algorithms: []string{"RS256"}},
			"none of the algorithms"},
		{JWTOptions{JWKSFile: write(t, "h", `{"keys":[`+strings.Repeat("{},", 256)+`{}]}`)}, "257 keys"},
	} {
		j, err := NewJWT(c.o)
		if err == nil {
			j.Close()
			t.Errorf("%+v is accepted", c.o)
		} else if !strings.Contains(err.Error(), c.wants) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%q, want one with %q", err, c.wants)
		}
	}
}

func TestKeysThatCannotBeUsedAreLeftOut(t *testing.T) {
	set := setOf(`{"kty":"oct","k":"c2VjcmV0"}`, `{"kty":"RSA","use":"enc","n":"AQAB","e":"AQAB"}`, `{"kty":"what"}`, `7`,
		`{"kty":"EC","crv":"P-256","x":"AQ","y":"AQ"}`, strings.Replace(rsaJWK("r1", &theIssuer.rsa.PublicKey), "{",
			`{"x5u":"http://127.0.0.1:1/","x5c":["junk"],"key_ops":["verify"],`, 1))
	j := openTest(t, JWTOptions{JWKSFile: write(t, "k.json", set)})
	if got := len(j.set.Load().keys); got != 1 {
		t.Errorf("%d keys are used", got)
	}
	if _, state := j.Verify(theIssuer.goodToken(t, "u")); state != policy.CredentialValid {
		t.Error(state)
	}
}

func TestTokensWithoutKidTryFewKeys(t *testing.T) {
	keys := make([]string, 0, 8)
	for range 8 {
		k := newEC(t)
		keys = append(keys, ecJWK("", &k.PublicKey))
	}
	j := openTest(t, JWTOptions{JWKSFile: write(t, "k.json", setOf(keys...))})
	found, _ := j.set.Load().candidates("", algorithmByName("ES256"))
	if len(found) != keysTriedMax {
		t.Errorf("%d keys would be tried", len(found))
	}
}
