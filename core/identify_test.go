// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// answers is a verifier that knows some credentials, and of every other says the same.
type answers struct {
	known map[string]Identity
	state map[string]CredentialState
	other CredentialState
	asked []string // what it was asked, copied
}

func (a *answers) Verify(credential string) (*Identity, CredentialState) {
	a.asked = append(a.asked, strings.Clone(credential))
	if who, ok := a.known[credential]; ok {
		return &who, CredentialValid
	}
	if state, ok := a.state[credential]; ok {
		return nil, state
	}
	return nil, a.other
}

// newAnswers knows "good" of user u_42, and of each state a credential of its name.
func newAnswers() *answers {
	a := &answers{other: CredentialUnknown, state: map[string]CredentialState{},
		known: map[string]Identity{"good": {Kind: "user", ID: "u_42", User: "u_42", Tier: "premium", Tenant: "acme"}}}
	for s := CredentialMalformed; s < credentialStateCount; s++ {
		if s != CredentialValid {
			a.state[s.String()] = s
		}
	}
	return a
}

// TestCredentialStates: each state has its result, with and without on_invalid: deny, and is told to metrics. 401 only
// where a rule is for the request.
func TestCredentialStates(t *testing.T) {
	const next, found, refused = "{ip:192.0.2.1}", "{user:u_42}", "401"
	for _, c := range []struct {
		token       string // "" is none
		state       CredentialState
		lax, strict string
	}{
		{"", CredentialAbsent, next, next},
		{"mal formed", CredentialMalformed, next, refused},
		{"malformed", CredentialMalformed, next, refused},
		{"invalid", CredentialInvalid, next, refused},
		{"expired", CredentialExpired, next, refused},
		{"unknown", CredentialUnknown, next, refused},
		{"good", CredentialValid, found, found},
		{"revoked", CredentialRevoked, refused, refused},
		{"inactive", CredentialInactive, refused, refused},
		{"lapsed", CredentialLapsed, refused, refused},
	} {
		for _, deny := range []bool{false, true} {
			want := c.lax
			if deny {
				want = c.strict
			}
			rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{{Name: "r", Limits: limits(t, "9/1m"), Match: Match{Path: []string{"/api"}}}},
				Identify: []Identify{{Kind: IdentifyJWT, Verifier: newAnswers(), DenyInvalid: deny}, {}}})
			a := get("192.0.2.1", "/api")
			if c.token != "" {
				a.header = map[string]string{"Authorization": "Bearer " + c.token}
			}
			plan, d := newCounters().ask(t, a, rs)
			t.Run(c.state.String(), func(t *testing.T) { wantState(t, plan, &d, c.state, want) })
			if a.path = "/other"; want == refused {
				if _, d := newCounters().ask(t, a, rs); d.Outcome != OutcomeNone {
					t.Errorf("%s where no rule is: %+v", c.state, d)
				}
			}
		}
	}
}

func wantState(t *testing.T, plan *Plan, d *Decision, state CredentialState, want string) {
	t.Helper()
	var used []CredentialState
	for _, use := range plan.Credentials() {
		used = append(used, use.State)
	}
	var wanted []CredentialState
	if state != CredentialAbsent {
		wanted = []CredentialState{state}
	}
	if diff := cmp.Diff(wanted, used); diff != "" {
		t.Errorf("credentials (-want +got):\n%s", diff)
	}
	if want == "401" {
		if d.Status != 401 || d.Outcome != OutcomeUnauthorized || d.Credential != state || len(plan.Checks()) != 0 {
			t.Errorf("%+v", d)
		}
		return
	}
	if plan.badCredential != CredentialAbsent || d.Status != 0 {
		t.Errorf("refused: %+v", d)
	}
	wantKeys(t, plan, "rl1:n:r:"+want+":60s:sw")
}

// TestVerifierThatMakesNoSense: what a verifier must not say is no identity.
func TestVerifierThatMakesNoSense(t *testing.T) {
	for name, answer := range map[string]struct {
		who   *Identity
		state CredentialState
	}{
		"valid without anybody": {nil, CredentialValid}, "valid of nobody": {&Identity{User: "u"}, CredentialValid},
		"no state": {&Identity{Kind: "user", ID: "u"}, credentialStateCount + 7},
	} {
		if who, state := askOf(func() (*Identity, CredentialState) { return answer.who, answer.state }); who != nil || state != CredentialInvalid {
			t.Errorf("%s: %v, %d", name, who, state)
		}
	}
	who := &Identity{Kind: "user", ID: "u"}
	if who, state := askOf(func() (*Identity, CredentialState) { return who, CredentialRevoked }); who != nil || state != CredentialRevoked {
		t.Errorf("revoked: %v, %s", who, state)
	}
}

func askOf(v verifierFunc) (*Identity, CredentialState) {
	return new(Plan).ask(&finder{verifier: v}, "x")
}

type verifierFunc func() (*Identity, CredentialState)

func (f verifierFunc) Verify(string) (*Identity, CredentialState) { return f() }

// TestCredentialPlaces: places are tried in order, one that does not verify hides none behind it, and nothing is kept.
func TestCredentialPlaces(t *testing.T) {
	const by = "{user:u_42}"
	key := func(value string) map[string]string { return map[string]string{"X-Api-Key": value} }
	both := func(key, token string) map[string]string {
		return map[string]string{"X-Api-Key": key, "Authorization": "Bearer " + token}
	}
	for name, c := range map[string]struct {
		from   []CredentialSource
		a      client
		want   string
		states []CredentialState
	}{
		"default: header":       {nil, client{header: key("good")}, by, []CredentialState{CredentialValid}},
		"default: bearer":       {nil, client{header: both("", "good")}, by, []CredentialState{CredentialValid}},
		"junk before the key":   {nil, client{header: both("junk", "good")}, by, []CredentialState{CredentialUnknown, CredentialValid}},
		"junk before a revoked": {nil, client{header: both("junk", "revoked")}, "401", []CredentialState{CredentialUnknown, CredentialRevoked}},
		"a good one first":      {nil, client{header: both("good", "revoked")}, by, []CredentialState{CredentialValid}},
		"query": {[]CredentialSource{{Kind: FromQuery, Name: "key"}}, client{query: "key=g%6fod", header: key("revoked")}, by,
			[]CredentialState{CredentialValid}},
		"cookie": {[]CredentialSource{{Kind: FromCookie, Name: "s"}}, client{header: map[string]string{"Cookie": "s=good"}}, by,
			[]CredentialState{CredentialValid}},
		"not there": {[]CredentialSource{{Kind: FromCookie, Name: "s"}}, client{header: key("good")}, "{ip:192.0.2.1}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{{Name: "r", Limits: limits(t, "9/1m")}},
				Identify: []Identify{{Kind: IdentifyAPIKey, Verifier: newAnswers(), From: c.from}, {}}})
			c.a.peer = netip.MustParseAddr("192.0.2.1")
			plan, d := newCounters().ask(t, &c.a, rs)
			var states []CredentialState
			for _, use := range plan.Credentials() {
				states = append(states, use.State)
			}
			if diff := cmp.Diff(c.states, states); diff != "" {
				t.Errorf("states (-want +got):\n%s", diff)
			}
			if c.want != "401" {
				wantKeys(t, plan, "rl1:n:r:"+c.want+":60s:sw")
			} else if d.Status != 401 || d.Credential != states[len(states)-1] {
				t.Errorf("%+v", d)
			}
		})
	}
}

// TestCredentialsAreNotKept: what was decoded to be verified does not stay in the plan's buffers, for plans are pooled.
func TestCredentialsAreNotKept(t *testing.T) {
	secret := strings.Repeat("s3cret/", 100)
	v := &answers{other: CredentialUnknown}
	rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{{Name: "r", Limits: limits(t, "9/1m")}},
		Identify: []Identify{{Kind: IdentifyAPIKey, Verifier: v, From: []CredentialSource{{Kind: FromQuery, Name: "key"}}}}})
	var plan Plan
	for range 2 { // the second time the buffer is large enough
		plan.Reset()
		plan.Add(rs, &client{query: "key=" + strings.ReplaceAll(secret, "/", "%2F")})
	}
	if len(v.asked) != 2 || v.asked[0] != secret {
		t.Fatalf("asked %q", v.asked)
	}
	if strings.Contains(string(plan.text[:cap(plan.text)]), "s3cret") {
		t.Error("the plan keeps the credential")
	}
}

// TestSeveralPoliciesRefuse: the decision names the credential for which the request is refused, and of several the first.
func TestSeveralPoliciesRefuse(t *testing.T) {
	by := func(path string, deny bool) *Ruleset {
		return mustCompile(t, Policy{Name: "n", Identify: []Identify{{Kind: IdentifyJWT, Verifier: newAnswers(), DenyInvalid: deny}},
			Rules: []Rule{{Name: "r", Limits: limits(t, "9/1m"), Match: Match{Path: []string{path}}}}})
	}
	key := func(path string) *Ruleset {
		return mustCompile(t, Policy{Name: "n", Identify: []Identify{{Kind: IdentifyAPIKey, Verifier: newAnswers(),
			From: []CredentialSource{{Kind: FromHeader, Name: "X-API-Key"}}}},
			Rules: []Rule{{Name: "r", Limits: limits(t, "9/1m"), Match: Match{Path: []string{path}}}}})
	}
	a := &client{path: "/a", header: map[string]string{"Authorization": "Bearer expired", "X-Api-Key": "revoked"}}
	for _, c := range []struct {
		policies []*Ruleset
		want     CredentialState
	}{
		{[]*Ruleset{by("/a", true), key("/a")}, CredentialExpired},
		{[]*Ruleset{key("/a"), by("/a", true)}, CredentialRevoked},
		{[]*Ruleset{by("/other", true), key("/a")}, CredentialRevoked}, // the first has no rule for it
		{[]*Ruleset{by("/a", true), key("/other")}, CredentialExpired},
		{[]*Ruleset{by("/a", false), key("/a")}, CredentialRevoked},
	} {
		if _, d := newCounters().ask(t, a, c.policies...); d.Status != 401 || d.Credential != c.want {
			t.Errorf("%+v, want %s", d, c.want)
		}
	}
}

// TestSeveralMethods: the first that finds somebody names the client; those after it are not asked.
func TestSeveralMethods(t *testing.T) {
	token, key := newAnswers(), newAnswers()
	key.known["good"] = Identity{Kind: "api_key", ID: "k-1", APIKey: "k-1", User: "owner"}
	rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{{Name: "r", Limits: limits(t, "9/1m")}}, Identify: []Identify{
		{Kind: IdentifyJWT, Verifier: token}, {Kind: IdentifyAPIKey, Verifier: key, From: []CredentialSource{{Kind: FromHeader, Name: "X-API-Key"}}},
		{Kind: IdentifyCookie, Name: "session", Unverified: true}, {Kind: IdentifyAttr, Name: "user"}, {}}})
	long := strings.Repeat("x", 256)
	const hash = "85e62acd750c4eb56b7b6a1d66dca5bfaac5f062608a1a893410d0288936c09a"
	for _, c := range []struct {
		header map[string]string
		attr   string
		want   Identity
	}{
		{map[string]string{"Authorization": "Bearer good", "X-Api-Key": "revoked"}, "a", token.known["good"]},
		{map[string]string{"Authorization": "Bearer junk", "X-Api-Key": "good", "Cookie": "session=s"}, "a", key.known["good"]},
		{map[string]string{"X-Api-Key": "junk", "Cookie": "session=s"}, "a", Identity{Kind: "cookie.session", ID: "s"}},
		{map[string]string{"Cookie": "session=" + long}, "a", Identity{Kind: "cookie.session-sha256", ID: hash}},
		{map[string]string{"Cookie": "session=s; session=t"}, "a", Identity{Kind: "attr.user", ID: "a"}},
		{nil, "", Identity{Kind: "ip", ID: "192.0.2.1"}},
	} {
		var plan Plan
		plan.Add(rs, &client{peer: netip.MustParseAddr("192.0.2.1"), header: c.header, attr: map[string]string{"user": c.attr}})
		if diff := cmp.Diff(c.want, plan.Identity(), cmpopts.IgnoreFields(Identity{}, "Overrides")); diff != "" {
			t.Errorf("%v (-want +got):\n%s", c.header, diff)
		}
	}
	if len(token.asked) != 2 || len(key.asked) != 2 {
		t.Errorf("asked %q and %q", token.asked, key.asked)
	}
}

// TestIdentityOf: long IDs are hashed, and no ID is another's hash.
func TestIdentityOf(t *testing.T) {
	if got := IdentityOf("user", ""); got != (Identity{}) {
		t.Errorf("nobody is %+v", got)
	}
	longest, longer := strings.Repeat("x", 255), strings.Repeat("x", 256)
	if got := IdentityOf("user", longest); got.Kind != "user" || got.ID != longest {
		t.Errorf("%+v", got)
	}
	got := IdentityOf("user", longer)
	if got.Kind != "user-sha256" || len(got.ID) != 64 || IdentityOf("user", got.ID) == got {
		t.Errorf("%+v", got)
	}
	if again := bounded(Identity{Kind: "user", ID: longer, User: longer}); again.ID != got.ID || again.User != longer {
		t.Errorf("%+v", again)
	}
}

// TestTenantAndTierSources: they fill what the identity lacks, the first that says anything, and never replace.
func TestTenantAndTierSources(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{{Name: "r", Limits: limits(t, "9/1m")}},
		Identify: []Identify{{Kind: IdentifyJWT, Verifier: newAnswers()}, {}},
		Tenant:   []Source{{Kind: SourceHeader, Name: "x-tenant", Unverified: true}, {Kind: SourceHost, Label: 2}},
		Tier:     []Source{{Kind: SourceAttr, Name: "plan"}}})
	for _, c := range []struct {
		a            client
		tenant, tier string
	}{
		{client{}, "com", ""},
		{client{host: "A.Acme.example.com:80"}, "acme", ""},
		{client{host: "127.0.0.1:80"}, "", ""}, {client{host: "[::1]"}, "", ""}, {client{host: "localhost"}, "", ""},
		{client{header: map[string]string{"X-Tenant": "t"}, attr: map[string]string{"plan": "gold"}}, "t", "gold"},
		{client{header: map[string]string{"X-Tenant": "t", "Authorization": "Bearer good"}, attr: map[string]string{"plan": "gold"}}, "acme", "premium"},
	} {
		var plan Plan
		plan.Add(rs, &c.a)
		if got := plan.asking; got.Tenant != c.tenant || got.Tier != c.tier {
			t.Errorf("%+v: tenant %q, tier %q, want %q, %q", c.a, got.Tenant, got.Tier, c.tenant, c.tier)
		}
	}
}

// TestUserSource: who a proxy has found out is a user for lists, matches and counters, and never in place of the user of a
// credential. A penalty counts it as the client where the client is called so.
func TestUserSource(t *testing.T) {
	known := newAnswers()
	known.known["key"] = Identity{Kind: "api_key", ID: "ann", APIKey: "ann"}
	rs := mustCompile(t, Policy{Name: "n", Exempt: []Listed{{User: []string{"root"}}}, Penalty: &Penalty{Threshold: 3, Window: Hour, Multipliers: []int64{1}},
		Identify: []Identify{{Kind: IdentifyJWT, Verifier: known}, {Kind: IdentifyAttr, Name: "login"}, {}},
		User:     []Source{{Name: "login"}},
		Rules:    []Rule{{Name: "r", Limits: limits(t, "9/1m"), Per: []Dimension{{Kind: PerUser}}}}})
	for _, c := range []struct {
		token, login string
		user, key    string
		guarded      bool
	}{
		{"", "ann", "ann", "rl1:n:r:{user:ann}:60s:sw", true},
		{"good", "ann", "u_42", "rl1:n:r:{user:u_42}:60s:sw", true},
		{"key", "ann", "ann", "rl1:n:r:{user:ann}:60s:sw", false}, // one of the user's keys may be called as the user
		{"", "", "", "rl1:n:r:{ip:192.0.2.1}:60s:sw", false},
		{"", "root", "root", "", false},
	} {
		a := &client{peer: netip.MustParseAddr("192.0.2.1"), attr: map[string]string{"login": c.login}}
		if c.token != "" {
			a.header = map[string]string{"Authorization": "Bearer " + c.token}
		}
		var plan Plan
		plan.Add(rs, a)
		key, guarded := "", false
		for _, check := range plan.Checks() {
			if check.Penalty == nil {
				key, guarded = string(check.Key), check.Guard != 0
			}
		}
		if plan.asking.User != c.user || key != c.key || guarded != c.guarded {
			t.Errorf("token %q, login %q: user %q, key %q, guarded %t; want %+v", c.token, c.login, plan.asking.User, key, guarded, c)
		}
	}
}
