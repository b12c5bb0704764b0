// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/internal/test/limittest"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/internal/identify"
	"github.com/penstock/penstock/core/policy"
)

// answersVerifier is a verifier with a result for some credentials and one state for all others.
type answersVerifier struct {
	known map[string]policy.Identity
	state map[string]policy.CredentialState
	other policy.CredentialState
	asked []string // copies of the credentials
}

func (a *answersVerifier) Verify(credential string) (*policy.Identity, policy.CredentialState) {
	a.asked = append(a.asked, strings.Clone(credential))
	if who, ok := a.known[credential]; ok {
		return &who, policy.CredentialValid
	}
	if state, ok := a.state[credential]; ok {
		return nil, state
	}
	return nil, a.other
}

// newAnswers returns a verifier that accepts "good" for user u_42. For each state, it has a
// credential with the state's name.
func newAnswers() *answersVerifier {
	a := &answersVerifier{other: policy.CredentialUnknown, state: map[string]policy.CredentialState{},
		known: map[string]policy.Identity{"good": {Kind: "user", ID: "u_42", User: "u_42", Tier: "premium", Tenant: "acme"}}}
	for s := policy.CredentialMalformed; s < policy.CredentialState(policy.CredentialStateCount); s++ {
		if s != policy.CredentialValid {
			a.state[s.String()] = s
		}
	}
	return a
}

// TestCredentialStates: each state has its outcome, with and without on_invalid: deny, and is
// available for metrics. A request is denied with 401 only if a rule applies to it.
func TestCredentialStates(t *testing.T) {
	const next, found, denied = "{ip:192.0.2.1}", "{user:u_42}", "401"
	for _, c := range []struct {
		token       string // "" means none
		state       policy.CredentialState
		lax, strict string
	}{
		{"", policy.CredentialAbsent, next, next},
		{"mal formed", policy.CredentialMalformed, next, denied},
		{"malformed", policy.CredentialMalformed, next, denied},
		{"invalid", policy.CredentialInvalid, next, denied},
		{"expired", policy.CredentialExpired, next, denied},
		{"unknown", policy.CredentialUnknown, next, denied},
		{"good", policy.CredentialValid, found, found},
		{"revoked", policy.CredentialRevoked, denied, denied},
		{"inactive", policy.CredentialInactive, denied, denied},
		{"lapsed", policy.CredentialLapsed, denied, denied},
	} {
		for _, deny := range []bool{false, true} {
			want := c.lax
			if deny {
				want = c.strict
			}
			rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "9/1m"), Match: policy.Match{Path: []string{"/api"}}}},
				Identify: []policy.Identify{{Kind: policy.IdentifyJWT, Verifier: newAnswers(), DenyInvalid: deny}, {}}})
			a := get("192.0.2.1", "/api")
			if c.token != "" {
				a.header = map[string]string{"Authorization": "Bearer " + c.token}
			}
			plan, d := newCounters().ask(t, a, rs)
			t.Run(c.state.String(), func(t *testing.T) { wantState(t, plan, &d, c.state, want) })
			if a.path = "/other"; want == denied {
				if _, d := newCounters().ask(t, a, rs); d.Outcome != OutcomeNone {
					t.Errorf("%s where no rule is: %+v", c.state, d)
				}
			}
		}
	}
}

func wantState(t *testing.T, plan *Plan, d *Decision, state policy.CredentialState, want string) {
	t.Helper()
	var used []policy.CredentialState
	for _, use := range plan.Credentials() {
		used = append(used, use.State)
	}
	var wanted []policy.CredentialState
	if state != policy.CredentialAbsent {
		wanted = []policy.CredentialState{state}
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
	if plan.badCredential != policy.CredentialAbsent || d.Status != 0 {
		t.Errorf("refused: %+v", d)
	}
	wantKeys(t, plan, "rl1:n:r:"+want+":60s:sw")
}

// TestVerifierThatMakesNoSense: a contradictory result of a verifier yields no identity.
func TestVerifierThatMakesNoSense(t *testing.T) {
	for name, answer := range map[string]struct {
		who   *policy.Identity
		state policy.CredentialState
	}{
		"valid without anybody": {nil, policy.CredentialValid}, "valid of nobody": {&policy.Identity{User: "u"}, policy.CredentialValid},
		"no state": {&policy.Identity{Kind: "user", ID: "u"}, policy.CredentialState(policy.CredentialStateCount) + 7},
	} {
		if who, state := askOf(func() (*policy.Identity, policy.CredentialState) { return answer.who, answer.state }); who != nil || state != policy.CredentialInvalid {
			t.Errorf("%s: %v, %d", name, who, state)
		}
	}
	who := &policy.Identity{Kind: "user", ID: "u"}
	if who, state := askOf(func() (*policy.Identity, policy.CredentialState) { return who, policy.CredentialRevoked }); who != nil || state != policy.CredentialRevoked {
		t.Errorf("revoked: %v, %s", who, state)
	}
}

func askOf(v verifierFunc) (*policy.Identity, policy.CredentialState) {
	return new(identify.Client).Ask(&identify.Finder{Verifier: v}, "x")
}

type verifierFunc func() (*policy.Identity, policy.CredentialState)

func (f verifierFunc) Verify(string) (*policy.Identity, policy.CredentialState) { return f() }

// TestCredentialPlaces: places are tried in order. An invalid credential does not hide one in a
// later place, and no credential is kept.
func TestCredentialPlaces(t *testing.T) {
	const by = "{user:u_42}"
	key := func(value string) map[string]string { return map[string]string{"X-Api-Key": value} }
	both := func(key, token string) map[string]string {
		return map[string]string{"X-Api-Key": key, "Authorization": "Bearer " + token}
	}
	for name, c := range map[string]struct {
		newAttributes []policy.CredentialSource
		a             client
		want          string
		states        []policy.CredentialState
	}{
		"default: header":       {nil, client{header: key("good")}, by, []policy.CredentialState{policy.CredentialValid}},
		"default: bearer":       {nil, client{header: both("", "good")}, by, []policy.CredentialState{policy.CredentialValid}},
		"junk before the key":   {nil, client{header: both("junk", "good")}, by, []policy.CredentialState{policy.CredentialUnknown, policy.CredentialValid}},
		"junk before a revoked": {nil, client{header: both("junk", "revoked")}, "401", []policy.CredentialState{policy.CredentialUnknown, policy.CredentialRevoked}},
		"a good one first":      {nil, client{header: both("good", "revoked")}, by, []policy.CredentialState{policy.CredentialValid}},
		"query": {[]policy.CredentialSource{{Kind: policy.FromQuery, Name: "key"}}, client{query: "key=g%6fod", header: key("revoked")}, by,
			[]policy.CredentialState{policy.CredentialValid}},
		"cookie": {[]policy.CredentialSource{{Kind: policy.FromCookie, Name: "s"}}, client{header: map[string]string{"Cookie": "s=good"}}, by,
			[]policy.CredentialState{policy.CredentialValid}},
		"not there": {[]policy.CredentialSource{{Kind: policy.FromCookie, Name: "s"}}, client{header: key("good")}, "{ip:192.0.2.1}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "9/1m")}},
				Identify: []policy.Identify{{Kind: policy.IdentifyAPIKey, Verifier: newAnswers(), From: c.newAttributes}, {}}})
			c.a.peer = netip.MustParseAddr("192.0.2.1")
			plan, d := newCounters().ask(t, &c.a, rs)
			var states []policy.CredentialState
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

// TestCredentialsAreNotKept: a credential that was decoded for verification does not remain in the
// plan's buffers, because plans are pooled.
func TestCredentialsAreNotKept(t *testing.T) {
	secret := strings.Repeat("s3cret/", 100)
	v := &answersVerifier{other: policy.CredentialUnknown}
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "9/1m")}},
		Identify: []policy.Identify{{Kind: policy.IdentifyAPIKey, Verifier: v, From: []policy.CredentialSource{{Kind: policy.FromQuery, Name: "key"}}}}})
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

// TestSeveralPoliciesDeny: the decision has the state of the credential that caused the denial,
// or of the first one if several did.
func TestSeveralPoliciesDeny(t *testing.T) {
	by := func(path string, deny bool) *Ruleset {
		return mustCompile(t, policy.Policy{Name: "n", Identify: []policy.Identify{{Kind: policy.IdentifyJWT, Verifier: newAnswers(), DenyInvalid: deny}},
			Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "9/1m"), Match: policy.Match{Path: []string{path}}}}})
	}
	key := func(path string) *Ruleset {
		return mustCompile(t, policy.Policy{Name: "n", Identify: []policy.Identify{{Kind: policy.IdentifyAPIKey, Verifier: newAnswers(),
			From: []policy.CredentialSource{{Kind: policy.FromHeader, Name: "X-API-Key"}}}},
			Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "9/1m"), Match: policy.Match{Path: []string{path}}}}})
	}
	a := &client{path: "/a", header: map[string]string{"Authorization": "Bearer expired", "X-Api-Key": "revoked"}}
	for _, c := range []struct {
		policies []*Ruleset
		want     policy.CredentialState
	}{
		{[]*Ruleset{by("/a", true), key("/a")}, policy.CredentialExpired},
		{[]*Ruleset{key("/a"), by("/a", true)}, policy.CredentialRevoked},
		// The first policy has no rule for the request.
		{[]*Ruleset{by("/other", true), key("/a")}, policy.CredentialRevoked},
		{[]*Ruleset{by("/a", true), key("/other")}, policy.CredentialExpired},
		{[]*Ruleset{by("/a", false), key("/a")}, policy.CredentialRevoked},
	} {
		if _, d := newCounters().ask(t, a, c.policies...); d.Status != 401 || d.Credential != c.want {
			t.Errorf("%+v, want %s", d, c.want)
		}
	}
}

// TestSeveralMethods: the first method that identifies the client wins. Later ones are not tried.
func TestSeveralMethods(t *testing.T) {
	token, key := newAnswers(), newAnswers()
	key.known["good"] = policy.Identity{Kind: "api_key", ID: "k-1", APIKey: "k-1", User: "owner"}
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "9/1m")}}, Identify: []policy.Identify{
		{Kind: policy.IdentifyJWT, Verifier: token}, {Kind: policy.IdentifyAPIKey, Verifier: key, From: []policy.CredentialSource{{Kind: policy.FromHeader, Name: "X-API-Key"}}},
		{Kind: policy.IdentifyCookie, Name: "session", Unverified: true}, {Kind: policy.IdentifyAttr, Name: "user"}, {}}})
	long := strings.Repeat("x", 256)
	const hash = "85e62acd750c4eb56b7b6a1d66dca5bfaac5f062608a1a893410d0288936c09a"
	for _, c := range []struct {
		header map[string]string
		attr   string
		want   policy.Identity
	}{
		{map[string]string{"Authorization": "Bearer good", "X-Api-Key": "revoked"}, "a", token.known["good"]},
		{map[string]string{"Authorization": "Bearer junk", "X-Api-Key": "good", "Cookie": "session=s"}, "a", key.known["good"]},
		{map[string]string{"X-Api-Key": "junk", "Cookie": "session=s"}, "a", policy.Identity{Kind: "cookie.session", ID: "s"}},
		{map[string]string{"Cookie": "session=" + long}, "a", policy.Identity{Kind: "cookie.session-sha256", ID: hash}},
		{map[string]string{"Cookie": "session=s; session=t"}, "a", policy.Identity{Kind: "attr.user", ID: "a"}},
		{nil, "", policy.Identity{Kind: "ip", ID: "192.0.2.1"}},
	} {
		var plan Plan
		plan.Add(rs, &client{peer: netip.MustParseAddr("192.0.2.1"), header: c.header, attr: map[string]string{"user": c.attr}})
		if diff := cmp.Diff(c.want, plan.Identity(), cmpopts.IgnoreFields(policy.Identity{}, "Overrides")); diff != "" {
			t.Errorf("%v (-want +got):\n%s", c.header, diff)
		}
	}
	if len(token.asked) != 2 || len(key.asked) != 2 {
		t.Errorf("asked %q and %q", token.asked, key.asked)
	}
}

// TestIdentityOf: long IDs are hashed, and no ID equals the hash of another.
func TestIdentityOf(t *testing.T) {
	if got := policy.IdentityOf("user", ""); got != (policy.Identity{}) {
		t.Errorf("nobody is %+v", got)
	}
	longest, longer := strings.Repeat("x", 255), strings.Repeat("x", 256)
	if got := policy.IdentityOf("user", longest); got.Kind != "user" || got.ID != longest {
		t.Errorf("%+v", got)
	}
	got := policy.IdentityOf("user", longer)
	if got.Kind != "user-sha256" || len(got.ID) != 64 || policy.IdentityOf("user", got.ID) == got {
		t.Errorf("%+v", got)
	}
	if again := identify.Bounded(policy.Identity{Kind: "user", ID: longer, User: longer}); again.ID != got.ID || again.User != longer {
		t.Errorf("%+v", again)
	}
}

// TestTenantAndTierSources: sources supply a missing tenant or tier. The first source with a value
// wins, and no source replaces an existing value.
func TestTenantAndTierSources(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "9/1m")}},
		Identify: []policy.Identify{{Kind: policy.IdentifyJWT, Verifier: newAnswers()}, {}},
		Tenant:   []policy.Source{{Kind: policy.SourceHeader, Name: "x-tenant", Unverified: true}, {Kind: policy.SourceHost, Label: 2}},
		Tier:     []policy.Source{{Kind: policy.SourceAttr, Name: "plan"}}})
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
		if got := plan.who.Identity; got.Tenant != c.tenant || got.Tier != c.tier {
			t.Errorf("%+v: tenant %q, tier %q, want %q, %q", c.a, got.Tenant, got.Tier, c.tenant, c.tier)
		}
	}
}

// TestUserSource: a user named by a proxy is the user for lists, matches and counters, but never
// replaces the user of a credential. A denial by a rule per user is a violation only if the
// client has the user's name and is not an API key.
func TestUserSource(t *testing.T) {
	known := newAnswers()
	known.known["key"] = policy.Identity{Kind: "api_key", ID: "ann", APIKey: "ann"}
	rs := mustCompile(t, policy.Policy{Name: "n", Exempt: []policy.Listed{{User: []string{"root"}}}, Penalty: &counter.Penalty{Threshold: 3, Window: counter.Hour, Multipliers: []int64{1}},
		Identify: []policy.Identify{{Kind: policy.IdentifyJWT, Verifier: known}, {Kind: policy.IdentifyAttr, Name: "login"}, {}},
		User:     []policy.Source{{Name: "login"}},
		Rules:    []policy.Rule{{Name: "r", Limits: limittest.All(t, "9/1m"), Per: []policy.Dimension{{Kind: policy.PerUser}}}}})
	for _, c := range []struct {
		token, login string
		user, key    string
		guarded      bool
	}{
		{"", "ann", "ann", "rl1:n:r:{user:ann}:60s:sw", true},
		{"good", "ann", "u_42", "rl1:n:r:{user:u_42}:60s:sw", true},
		// A key can have the same name as the user who owns it.
		{"key", "ann", "ann", "rl1:n:r:{user:ann}:60s:sw", false},
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
		if plan.who.Identity.User != c.user || key != c.key || guarded != c.guarded {
			t.Errorf("token %q, login %q: user %q, key %q, guarded %t; want %+v", c.token, c.login, plan.who.Identity.User, key, guarded, c)
		}
	}
}
