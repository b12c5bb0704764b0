// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/wire"
)

// openToPremium is a policy whose premium clients have no limit: who is taken for one is let through without a call.
func openToPremium(t *testing.T, ways ...core.Identify) core.Policy {
	t.Helper()
	p := withKeys(t)
	p.Identify = append(ways, core.Identify{})
	p.Rules[0].Tiers = map[string]core.LimitSet{"premium": {Unlimited: true}}
	return p
}

// found is the entry of a verdict for a credential that is somebody's of a tier.
func found(way int, tier string) wire.Way {
	return wire.Way{Index: way, State: core.CredentialValid, Identity: core.Identity{Kind: "api_key", ID: "k1", APIKey: "k1", Tier: tier}}
}

func verdictOf(a wire.Answer, ways ...wire.Way) wire.Answer {
	a.Verdict = &wire.Verdict{TTLMicros: int64(core.Minute), Ways: ways}
	return a
}

// TestAVerdictIsOfOneCredential: of two credentials for one way to identify, each is remembered as what it is worth, and
// one that the bridge had no need to look at is not remembered at all.
func TestAVerdictIsOfOneCredential(t *testing.T) {
	for _, c := range []struct {
		name string
		ways []wire.Way
		good string // the header of the credential that is somebody's
	}{
		{"first", []wire.Way{found(0, "premium")}, "x-api-key"},
		{"second", []wire.Way{{State: core.CredentialUnknown}, found(0, "premium")}, "authorization"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnvoy(t)
			f := withPolicy(t, e, openToPremium(t, core.Identify{Kind: core.IdentifyAPIKey}))
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

// TestADecodedCredentialIsRemembered as what it is, and not as what took its place in the plan's memory.
func TestADecodedCredentialIsRemembered(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, openToPremium(t, core.Identify{Kind: core.IdentifyAPIKey,
		From: []core.CredentialSource{{Kind: core.FromQuery, Name: "key"}}}))
	admitted(t, e, f, 1, verdictOf(wire.Answer{}, found(0, "premium")), get("/api/x?key=%61bc"))
	if f.NewStream(2).RequestHeaders(get("/api/x?key=%00%00%00")) != Pause {
		t.Error("another credential is taken for the one that was remembered")
	}
	if f.NewStream(3).RequestHeaders(get("/api/x?key=abc")) != Continue {
		t.Error("not remembered")
	}
}

// TestAVerdictBeyondWhatWasLookedAt: once a key is taken back, the next way counts, which the filter had not looked at.
func TestAVerdictBeyondWhatWasLookedAt(t *testing.T) {
	e := newEnvoy(t)
	p := withKeys(t)
	p.Identify = []core.Identify{{Kind: core.IdentifyAPIKey, From: []core.CredentialSource{{Kind: core.FromHeader, Name: "X-API-Key"}}},
		{Kind: core.IdentifyJWT}, {}}
	f := withPolicy(t, e, p)
	both := get("/api/x", "x-api-key", "one", "authorization", "Bearer two")
	s := admitted(t, e, f, 1, verdictOf(left(8), found(0, "basic")), both)
	if got := s.ResponseHeaders(nil, true)[0][1]; got != "10" {
		t.Fatalf("limit %s", got)
	}
	s = admitted(t, e, f, 2, verdictOf(left(98), wire.Way{State: core.CredentialUnknown}, found(1, "premium")), both)
	if got := s.ResponseHeaders(nil, true)[0][1]; got != "100" {
		t.Errorf("limit %s, and the bridge decided by that of premium clients", got)
	}
	if s = f.NewStream(3); s.RequestHeaders(both) != Pause || s.asking.attrs.ask.Known == 0 {
		t.Error("not remembered")
	}
}

// TestAVerdictOfAnotherRequest: who is judged otherwise than the request shows credentials is not decided for by that.
func TestAVerdictOfAnotherRequest(t *testing.T) {
	for name, ways := range map[string][]wire.Way{
		"more":        {found(0, "basic"), found(0, "basic")},
		"another way": {{Index: 1, State: core.CredentialUnknown}},
		"nobody":      {{Index: 0, State: core.CredentialValid}},
		"none":        {},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnvoy(t)
			f := withPolicy(t, e, withKeys(t))
			admitted(t, e, f, 1, verdictOf(left(8), ways...), get("/api/x", "x-api-key", "one"))
			if got, want := e.counts[CounterUnknown], name != "none"; (got == 1) != want {
				t.Errorf("%v", e.count())
			}
		})
	}
}

// TestWhoCannotBeVerifiedIsNotNobody: while the bridge is away a credential that it would verify may be anybody's, so that
// rules for some clients are rules for this one. Under deny it would otherwise be let through without limits.
func TestWhoCannotBeVerifiedIsNotNobody(t *testing.T) {
	for _, c := range []struct {
		name, path string
		fields     []string
		onError    core.OnError
		want       uint32 // the status of the answer; 0: it goes on
	}{
		{"a rule for a tier", "/api/x", []string{"x-api-key", "one"}, core.OnErrorDeny, 503},
		{"allowed", "/api/x", []string{"x-api-key", "one"}, core.OnErrorAllow, 0},
		{"nobody", "/api/x", nil, core.OnErrorDeny, 0},
		{"no rule", "/public", []string{"x-api-key", "one"}, core.OnErrorDeny, 0},
		{"blocked tiers", "/blocked", []string{"x-api-key", "one"}, core.OnErrorDeny, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnvoy(t)
			p := withKeys(t)
			p.OnError = c.onError
			p.Rules[0].Tiers, p.Rules[0].Match.Tier = nil, []string{"premium"}
			p.Rules = append(p.Rules, core.Rule{Name: "bad", Match: core.Match{Path: []string{"/blocked"}, Tier: []string{"bad"}}, Action: core.ActionBlock})
			f := withPolicy(t, e, p)
			for _, refuses := range []error{nil, errNo} { // it is silent; it cannot be called
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
