// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"testing"

	"github.com/penstock/penstock/core/counter"
	corepolicy "github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// openToPremium returns a policy without a limit for premium clients, which are admitted without a
// call.
func openToPremium(t *testing.T, ways ...corepolicy.Identify) corepolicy.Policy {
	t.Helper()
	p := withKeys(t)
	p.Identify = append(ways, corepolicy.Identify{})
	p.Rules[0].Tiers = map[string]corepolicy.LimitSet{"premium": {Unlimited: true}}
	return p
}

// foundVerdict returns the verdict on a valid credential of a client with a tier.
func foundVerdict(way int, tier string) wire.Way {
	return wire.Way{Index: way, State: corepolicy.CredentialValid, Identity: corepolicy.Identity{Kind: "api_key", ID: "k1", APIKey: "k1", Tier: tier}}
}

func verdictOf(a wire.Answer, ways ...wire.Way) wire.Answer {
	a.Verdict = &wire.Verdict{TTLMicros: int64(counter.Minute), Ways: ways}
	return a
}

// TestAVerdictIsOfOneCredential: if two credentials match one identify method, each verdict is
// remembered for its own credential. A credential that the bridge did not check is not remembered.
func TestAVerdictIsOfOneCredential(t *testing.T) {
	for _, c := range []struct {
		name string
		ways []wire.Way
		good string // the header with the valid credential
	}{
		{"first", []wire.Way{foundVerdict(0, "premium")}, "x-api-key"},
		{"second", []wire.Way{{State: corepolicy.CredentialUnknown}, foundVerdict(0, "premium")}, "authorization"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnvoy(t)
			f := withPolicy(t, e, openToPremium(t, corepolicy.Identify{Kind: corepolicy.IdentifyAPIKey}))
			fields := map[string]string{"x-api-key": "one", "authorization": "Bearer two"}
			admitted(t, e, f, 1, verdictOf(wire.Answer{}, c.ways...),
				get("/api/x", "x-api-key", fields["x-api-key"], "authorization", fields["authorization"]))
			id := uint32(2)
			for name, value := range fields {
				want := Pause
				if name == c.good {
					want = Continue
				}
				if got := f.NewStream(id).RequestHeaders(get("/api/x", name, value)); got != want {
					t.Errorf("%s alone: action %d, want %d", name, got, want)
				}
				id++
			}
		})
	}
}

// TestADecodedCredentialIsRemembered: the cache keeps the decoded credential, not the text that
// later overwrites it in the plan's buffer.
func TestADecodedCredentialIsRemembered(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, openToPremium(t, corepolicy.Identify{Kind: corepolicy.IdentifyAPIKey,
		From: []corepolicy.CredentialSource{{Kind: corepolicy.FromQuery, Name: "key"}}}))
	admitted(t, e, f, 1, verdictOf(wire.Answer{}, foundVerdict(0, "premium")), get("/api/x?key=%61bc"))
	if f.NewStream(2).RequestHeaders(get("/api/x?key=%00%00%00")) != Pause {
		t.Error("another credential is taken for the one that was remembered")
	}
	if f.NewStream(3).RequestHeaders(get("/api/x?key=abc")) != Continue {
		t.Error("not remembered")
	}
}

// TestAVerdictOnTheNextMethod: after a key is revoked, the next method of identify applies,
// although the filter has never read the credential for that method.
func TestAVerdictOnTheNextMethod(t *testing.T) {
	e := newEnvoy(t)
	p := withKeys(t)
	p.Identify = []corepolicy.Identify{{Kind: corepolicy.IdentifyAPIKey, From: []corepolicy.CredentialSource{{Kind: corepolicy.FromHeader, Name: "X-API-Key"}}},
		{Kind: corepolicy.IdentifyJWT}, {}}
	f := withPolicy(t, e, p)
	both := get("/api/x", "x-api-key", "one", "authorization", "Bearer two")
	s := admitted(t, e, f, 1, verdictOf(admittedWith(8), foundVerdict(0, "basic")), both)
	if got := s.ResponseHeaders(nil, true)[0][1]; got != "10" {
		t.Fatalf("limit %s", got)
	}
	s = admitted(t, e, f, 2, verdictOf(admittedWith(98), wire.Way{State: corepolicy.CredentialUnknown}, foundVerdict(1, "premium")), both)
	if got := s.ResponseHeaders(nil, true)[0][1]; got != "100" {
		t.Errorf("limit %s, and the bridge decided by that of premium clients", got)
	}
	if s = f.NewStream(3); s.RequestHeaders(both) != Pause || s.asking.attrs.Ask.Known == 0 {
		t.Error("not remembered")
	}
}

// TestAVerdictOfAnotherRequest: a verdict that does not match the request's credentials is not
// used.
func TestAVerdictOfAnotherRequest(t *testing.T) {
	for name, ways := range map[string][]wire.Way{
		"more":        {foundVerdict(0, "basic"), foundVerdict(0, "basic")},
		"another way": {{Index: 1, State: corepolicy.CredentialUnknown}},
		"nobody":      {{Index: 0, State: corepolicy.CredentialValid}},
		"none":        {},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnvoy(t)
			f := withPolicy(t, e, withKeys(t))
			admitted(t, e, f, 1, verdictOf(admittedWith(8), ways...), get("/api/x", "x-api-key", "one"))
			if got, want := e.counts[CounterUnanswered], name != "none"; (got == 1) != want {
				t.Errorf("%v", e.count())
			}
		})
	}
}

// TestUnverifiedCredentialsMayBelongToAnyClient: while the bridge is down, an unverified credential
// could belong to any client, so rules for particular clients apply to it. Otherwise, under
// on_error: deny, the request would pass without limits.
func TestUnverifiedCredentialsMayBelongToAnyClient(t *testing.T) {
	for _, c := range []struct {
		name, path string
		fields     []string
		onError    counter.OnError
		want       uint32 // status of the answer; 0 if the request passes
	}{
		{"a rule for a tier", "/api/x", []string{"x-api-key", "one"}, counter.OnErrorDeny, 503},
		{"allowed", "/api/x", []string{"x-api-key", "one"}, counter.OnErrorAllow, 0},
		{"nobody", "/api/x", nil, counter.OnErrorDeny, 0},
		{"no rule", "/public", []string{"x-api-key", "one"}, counter.OnErrorDeny, 0},
		{"blocked tiers", "/blocked", []string{"x-api-key", "one"}, counter.OnErrorDeny, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnvoy(t)
			p := withKeys(t)
			p.OnError = c.onError
			p.Rules[0].Tiers, p.Rules[0].Match.Tier = nil, []string{"premium"}
			p.Rules = append(p.Rules, corepolicy.Rule{Name: "bad", Match: corepolicy.Match{Path: []string{"/blocked"}, Tier: []string{"bad"}}, Action: corepolicy.ActionBlock})
			f := withPolicy(t, e, p)
			// The bridge is silent, or cannot be called.
			for _, refuses := range []error{nil, errNo} {
				e.refuses, e.sleeps = refuses, refuses
				id := uint32(len(e.calls) + 1)
				f.NewStream(id).RequestHeaders(get(c.path, c.fields...))
				f.Flush()
				e.timeOut(f)
				if got := e.responses[id].Status; got != c.want {
					t.Errorf("%v: status %d, want %d: %v", refuses, got, c.want, e.count())
				}
				clear(e.responses)
			}
		})
	}
}
