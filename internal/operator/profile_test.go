// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/credential"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store/memstore"
)

// policyOf compiles a policy. In the text, KEYS stands for a file with the keys of shopKeys.
func policyOf(t *testing.T, text string) *Policy {
	t.Helper()
	keys := filepath.Join(t.TempDir(), "keys.toml")
	if err := os.WriteFile(keys, []byte(shopKeys), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := policyfile.Decode("policy.yaml", policyfile.YAML, []byte(strings.ReplaceAll(text, "KEYS", keys)))
	if err != nil {
		t.Fatal(err)
	}
	verifiers, closer, err := credential.OpenAll(d, credential.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = closer.Close() }) // never fails
	rs, err := d.CompileWith(verifiers)
	if err != nil {
		t.Fatal(err)
	}
	return &Policy{Ruleset: rs, Document: d, Verifiers: verifiers}
}

var shopKeys = entry("acme", `tier = "gold"`, `user = "u_1"`) + entry("own", `limits = { api = "7/1h" }`) + entry("plain") +
	entry("old", `revoked = true`, `tier = "gold"`, `user = "u_2"`) + entry("two", `tier = "silver"`, `user = "u_2"`) +
	entry("x", `tier = "silver"`, `user = "u_3"`) + entry("y", `tier = "gold"`, `user = "u_3"`)

func entry(id string, lines ...string) string {
	hash, err := credential.HashKey("pk_the_key_of_the_client_" + id)
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf("[[keys]]\nid = %q\nhash = %q\n%s\n", id, hash, strings.Join(lines, "\n"))
}

const (
	shopText = `
name: shop
identify: [{api_key: {keys_file: KEYS}}, ip]
rules:
- {name: api, limit: 2/1m, tiers: {gold: 10/1h, silver: 5/1h}}
- {name: address, per: ip, limit: 3/1m}
- {name: all, per: [], limit: 100/1m}
`
	tokensText = `
name: app
identify: [{jwt: {secret: 0123456789abcdef0123456789abcdef, tier_claim: plan, limits_claim: limits}}, ip]
rules:
- {name: api, limit: 2/1m, tiers: {gold: 10/1h}}
- {name: address, per: [client, ip], limit: 3/1m}
`
	headersText = `
name: edge
identify: [{header: {name: X-User, unverified: true}}, ip]
tier: {header: {name: X-Plan, unverified: true}}
rules: [{name: api, limit: 2/1m, tiers: {gold: 10/1h}}]
`
)

// deskOf returns a desk over policies, with counters in memory.
func deskOf(t *testing.T, texts ...string) *Desk {
	t.Helper()
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() }) // never fails
	var policies []Policy
	for _, text := range texts {
		policies = append(policies, *policyOf(t, text))
	}
	return &Desk{Store: store, Policies: func() []Policy { return policies }}
}

// TestLookFindsWhoTheClientIs tests that a look shows the client's limits even if the operator does
// not state the tier, and that it reports the properties that cannot be known.
func TestLookFindsWhoTheClientIs(t *testing.T) {
	desk := deskOf(t, shopText, tokensText, headersText)
	for _, c := range []struct {
		words Words
		want  string
	}{
		{Words{Client: "api_key:acme"}, "shop(gold from keys.toml): api 10/1h all 100/1m"},
		{Words{Client: "api_key:acme", Tier: "gold"}, "shop(gold from keys.toml): api 10/1h all 100/1m"},
		{Words{Client: "api_key:own"}, "shop( from keys.toml own [api]): api 7/1h all 100/1m"},
		{Words{Client: "api_key:plain"}, "shop( from keys.toml): api 2/1m all 100/1m"},
		{Words{Client: "api_key:old"}, "shop(gold from keys.toml revoked): api 10/1h all 100/1m"},
		{Words{Client: "user:u_1"}, "shop(gold from keys.toml): app( unknown tier unknown limits): all 100/1m api 2/1m"},
		{Words{Client: "user:u_2"}, "shop(silver from keys.toml): app( unknown tier unknown limits): all 100/1m api 2/1m"},
		{Words{Client: "user:u_3"}, "shop( from keys.toml unknown tier): app( unknown tier unknown limits): all 100/1m api 2/1m"},
		{Words{Client: "user:u_9", Tier: "gold"}, "app(gold unknown limits): all 100/1m api 10/1h"},
		{Words{Client: "header.x-user:ann"}, "edge( unknown tier): all 100/1m api 2/1m"},
		{Words{Client: "header.x-user:ann", Tier: "gold"}, "edge(gold): all 100/1m api 10/1h"},
	} {
		client, err := Parse(c.words)
		if err != nil {
			t.Fatal(err)
		}
		r, err := desk.Look(t.Context(), client, Selection{})
		if err != nil {
			t.Errorf("%+v: %v", c.words, err)
			continue
		}
		if got := formatProfiles(r); got != c.want {
			t.Errorf("%+v:\n%s, want\n%s", c.words, got, c.want)
		}
	}
}

// TestLookKnowsTheLastToken tests that the profile of a user has the claims of a token of that user
// that the process has verified.
func TestLookKnowsTheLastToken(t *testing.T) {
	desk := deskOf(t, tokensText)
	encode := base64.RawURLEncoding.EncodeToString
	token := encode([]byte(`{"alg":"HS256"}`)) + "." + encode(fmt.Appendf(nil, `{"sub":"ann","plan":"gold","limits":{"address":"8/1d"},"exp":%d}`,
		time.Now().Add(time.Hour).Unix()))
	mac := hmac.New(sha256.New, []byte("0123456789abcdef0123456789abcdef"))
	mac.Write([]byte(token))
	if _, state := desk.Policies()[0].Verifiers[0].Verify(token + "." + encode(mac.Sum(nil))); state != policy.CredentialValid {
		t.Fatal(state)
	}
	client, err := Parse(Words{Client: "user:ann"})
	if err != nil {
		t.Fatal(err)
	}
	r, err := desk.Look(t.Context(), client, Selection{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := formatProfiles(r), "app(gold from the last token seen by this process own [address]): api 10/1h"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// formatProfiles formats a report: the profiles, and the rules with their limits.
func formatProfiles(r *Report) string {
	var text []string
	for _, f := range r.Profiles {
		one := f.Policy + "(" + f.Tier
		if f.From != "" {
			one += " from " + f.From
		}
		if f.State != "" {
			one += " " + f.State
		}
		if f.OwnLimits != nil {
			one += fmt.Sprintf(" own %s", f.OwnLimits)
		}
		for _, gap := range f.Unknown {
			one += " unknown " + gap.What
		}
		text = append(text, one+"):")
	}
	for _, ctr := range r.Counters {
		text = append(text, ctr.Rule+" "+ctr.Limit)
	}
	return strings.Join(text, " ")
}

// TestLookRejectsAClientThatCannotExist tests that a wrong name or tier is an error, so that no
// limits of a client that does not exist are shown.
func TestLookRejectsAClientThatCannotExist(t *testing.T) {
	desk := deskOf(t, shopText)
	for _, c := range []struct {
		words Words
		kind  error
		says  string
	}{
		{Words{Client: "api_key:acne"}, ErrNobody, `there is no client api_key:acne: the policy "shop" has no key of that name in keys.toml`},
		{Words{Client: "user:u_9"}, ErrNobody, "has no key of that user, and identifies clients by api_key, ip"},
		{Words{Client: "header.x-user:ann"}, ErrNobody, "identifies clients by api_key, ip"},
		{Words{Client: "api_key:acme", Tier: "platinum"}, ErrUnknown, `no policy in force has a tier "platinum"; there are: ["gold" "silver"]`},
		{Words{Client: "api_key:acme", Tier: "silver"}, ErrSelection,
			`tier "silver" contradicts keys.toml, in which api_key:acme has the tier "gold"`},
		{Words{Client: "api_key:plain", Tier: "gold"}, ErrSelection, `in which api_key:plain has no tier`},
		{Words{Client: "api_key:acme", User: "u_2"}, ErrSelection, `user "u_2" contradicts keys.toml, in which api_key:acme has the user "u_1"`},
	} {
		client, err := Parse(c.words)
		if err != nil {
			t.Fatal(err)
		}
		for name, ask := range map[string]func() (*Report, error){
			"look":  func() (*Report, error) { return desk.Look(t.Context(), client, Selection{}) },
			"reset": func() (*Report, error) { return desk.Reset(t.Context(), client, Selection{}) },
		} {
			if r, err := ask(); !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s %+v: %v %v, want %q", name, c.words, r, err, c.says)
			}
		}
	}
}

// TestResetFindsTheCountersOfEveryTier tests that a reset of a client whose tier cannot be known
// resets its counters under each tier.
func TestResetFindsTheCountersOfEveryTier(t *testing.T) {
	desk := deskOf(t, headersText)
	client, err := Parse(Words{Client: "header.x-user:ann"})
	if err != nil {
		t.Fatal(err)
	}
	r, err := desk.Reset(t.Context(), client, Selection{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := formatProfiles(r), "edge( unknown tier): api 2/1m api 10/1h"; got != want {
		t.Errorf("reset: %s, want %s", got, want)
	}
	for _, ctr := range r.Counters {
		if !strings.Contains(ctr.Key, "{header.x-user:ann}") || ctr.Remaining != counterCapacity(t, ctr.Limit) {
			t.Errorf("%+v", ctr)
		}
	}
}

func counterCapacity(t *testing.T, limit string) int64 {
	t.Helper()
	l, err := counter.ParseLimit(limit)
	if err != nil {
		t.Fatal(err)
	}
	return l.Capacity()
}
