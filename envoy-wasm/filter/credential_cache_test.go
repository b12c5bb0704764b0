// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"fmt"
	"slices"
	"testing"

	"github.com/penstock/penstock/core/counter"
	corepolicy "github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/wire"
)

func withKeys(t *testing.T) corepolicy.Policy {
	t.Helper()
	p := shopPolicy(t, "10/1m")
	premium, err := counter.ParseLimit("100/1m")
	if err != nil {
		t.Fatal(err)
	}
	p.Identify = []corepolicy.Identify{{Kind: corepolicy.IdentifyAPIKey}, {}}
	p.Rules[0].Tiers = map[string]corepolicy.LimitSet{"premium": {Limits: []counter.Limit{premium}}}
	return p
}

// withVerdict adds the bridge's verdict on a credential to an answer.
func withVerdict(a wire.Answer, state corepolicy.CredentialState, ttl counter.Micros) wire.Answer {
	way := wire.Way{State: state}
	if state == corepolicy.CredentialValid {
		way.Identity = corepolicy.Identity{Kind: "api_key", ID: "acme", APIKey: "acme", Tier: "premium"}
	}
	a.Verdict = &wire.Verdict{TTLMicros: int64(ttl), Ways: []wire.Way{way}}
	return a
}

// TestCredentialsAreRemembered: the bridge verifies a credential at the first request, and the
// second request marks it as known.
func TestCredentialsAreRemembered(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, withKeys(t))
	ask := func(id uint32, answer wire.Answer) (*Stream, wire.Ask) {
		t.Helper()
		s := f.NewStream(id)
		if s.RequestHeaders(get("/api/x", "x-api-key", "secret")) != Pause {
			t.Fatal("not asked about")
		}
		f.Flush()
		c, _, items := e.check()
		c.answer(replyWith(answer))
		return s, items[0].Ask
	}
	s, first := ask(1, withVerdict(admittedWith(99), corepolicy.CredentialValid, counter.Minute))
	if first.Known != 0 || !slices.Contains(first.Headers, wire.Value{Text: "secret", Given: true}) {
		t.Fatalf("the bridge is not asked about the credential: %+v", first)
	}
	if got := s.ResponseHeaders(nil, true)[0]; got[1] != "100" {
		t.Errorf("the limit shown is not that of the tier: %v", got)
	}
	s, second := ask(2, admittedWith(98))
	if second.Known == 0 || s.ResponseHeaders(nil, true)[0][1] != "100" {
		t.Errorf("known %x, %v", second.Known, s.ResponseHeaders(nil, true))
	}
	// the key was removed
	_, third := ask(3, withVerdict(admittedWith(8), corepolicy.CredentialUnknown, counter.Minute))
	_, fourth := ask(4, admittedWith(8))
	if third.Known != second.Known || fourth.Known == third.Known || fourth.Known == 0 {
		t.Errorf("known %x, %x, %x", second.Known, third.Known, fourth.Known)
	}
	e.now += counter.Minute
	if _, fifth := ask(5, withVerdict(admittedWith(8), corepolicy.CredentialUnknown, counter.Minute)); fifth.Known != 0 {
		t.Error("remembered for longer than the bridge said")
	}
}

// TestARevokedKeyIsDenied: a revoked key is denied even if its first request was admitted before
// the filter had a verdict on the key.
func TestARevokedKeyIsDenied(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, withKeys(t))
	f.NewStream(1).RequestHeaders(get("/api/x", "x-api-key", "secret"))
	f.Flush()
	c, _, _ := e.check()
	c.answer(replyWith(withVerdict(wire.Answer{}, corepolicy.CredentialRevoked, counter.Minute)))
	if e.responses[1].Status != 401 {
		t.Errorf("%+v", e.responses[1])
	}
	// The next request is denied without a call.
	if f.NewStream(2).RequestHeaders(get("/api/x", "x-api-key", "secret")) != Pause || e.responses[2].Status != 401 {
		t.Errorf("%+v", e.responses[2])
	}
}

// TestCredentialCacheIsBounded: invented credentials do not fill the memory, however many or how
// large they are.
func TestCredentialCacheIsBounded(t *testing.T) {
	for _, bytes := range []int{20, 8000} {
		e := newEnvoy(t)
		f := withPolicy(t, e, withKeys(t))
		for i := range 3 * verdictsMax {
			f.NewStream(uint32(i)).RequestHeaders(get("/api/x", "x-api-key", fmt.Sprintf("%0*d", bytes, i)))
			f.Flush()
			c, _, _ := e.check()
			c.answer(replyWith(withVerdict(admittedWith(8), corepolicy.CredentialUnknown, counter.Minute)))
			if way := f.policy.ways[0]; len(way.verdicts) > verdictsMax || way.bytes > verdictBytesMax+bytes {
				t.Fatalf("%d verdicts, %d bytes", len(way.verdicts), way.bytes)
			}
		}
	}
}

// TestUnverifiedCredentialsAreSentAgain: a credential that the bridge had no time to verify is sent
// again with the next request.
func TestUnverifiedCredentialsAreSentAgain(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, withKeys(t))
	for id := range uint32(3) {
		s := f.NewStream(id + 1)
		s.RequestHeaders(get("/api/x", "x-api-key", "secret"))
		f.Flush()
		c, _, items := e.check()
		if items[0].Ask.Known != 0 {
			t.Error("it is remembered")
		}
		c.answer(replyWith(withVerdict(admittedWith(8), corepolicy.CredentialInvalid, 0)))
		if got := s.ResponseHeaders(nil, true); len(got) == 0 || got[0][1] != "10" {
			t.Errorf("the limit shown is not that of the address: %v", got)
		}
	}
	if n := len(f.policy.ways[0].verdicts); n != 0 {
		t.Errorf("%d verdicts are held that are good for nothing", n)
	}
}
