// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"fmt"
	"slices"
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/wire"
)

func withKeys(t *testing.T) core.Policy {
	t.Helper()
	p := shop(t, "10/1m")
	premium, err := core.ParseLimit("100/1m")
	if err != nil {
		t.Fatal(err)
	}
	p.Identify = []core.Identify{{Kind: core.IdentifyAPIKey}, {}}
	p.Rules[0].Tiers = map[string]core.LimitSet{"premium": {Limits: []core.Limit{premium}}}
	return p
}

// said answers with what the bridge knows of the credential of the only way.
func said(a wire.Answer, state core.CredentialState, ttl core.Micros) wire.Answer {
	way := wire.Way{State: state}
	if state == core.CredentialValid {
		way.Identity = core.Identity{Kind: "api_key", ID: "acme", APIKey: "acme", Tier: "premium"}
	}
	a.Verdict = &wire.Verdict{TTLMicros: int64(ttl), Ways: []wire.Way{way}}
	return a
}

// TestCredentialsAreRemembered: the bridge is asked about the first, and told of the second that it is known.
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
		c.answer(replied(answer))
		return s, items[0].Ask
	}
	s, first := ask(1, said(left(99), core.CredentialValid, core.Minute))
	if first.Known != 0 || !slices.Contains(first.Headers, wire.Value{Text: "secret", Given: true}) {
		t.Fatalf("the bridge is not asked about the credential: %+v", first)
	}
	if got := s.ResponseHeaders(nil, true)[0]; got[1] != "100" {
		t.Errorf("the limit shown is not that of the tier: %v", got)
	}
	s, second := ask(2, left(98))
	if second.Known == 0 || s.ResponseHeaders(nil, true)[0][1] != "100" {
		t.Errorf("known %x, %v", second.Known, s.ResponseHeaders(nil, true))
	}
	_, third := ask(3, said(left(8), core.CredentialUnknown, core.Minute)) // the key is gone
	_, fourth := ask(4, left(8))
	if third.Known != second.Known || fourth.Known == third.Known || fourth.Known == 0 {
		t.Errorf("known %x, %x, %x", second.Known, third.Known, fourth.Known)
	}
	e.now += core.Minute
	if _, fifth := ask(5, said(left(8), core.CredentialUnknown, core.Minute)); fifth.Known != 0 {
		t.Error("remembered for longer than the bridge said")
	}
}

// TestARevokedKeyIsRefused although its request was on its way to the upstream as that of nobody.
func TestARevokedKeyIsRefused(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, withKeys(t))
	f.NewStream(1).RequestHeaders(get("/api/x", "x-api-key", "secret"))
	f.Flush()
	c, _, _ := e.check()
	c.answer(replied(said(wire.Answer{}, core.CredentialRevoked, core.Minute)))
	if e.responses[1].Status != 401 {
		t.Errorf("%+v", e.responses[1])
	}
	// The next is refused without a call.
	if f.NewStream(2).RequestHeaders(get("/api/x", "x-api-key", "secret")) != Pause || e.responses[2].Status != 401 {
		t.Errorf("%+v", e.responses[2])
	}
}

// TestWhatIsRememberedIsBounded: made-up credentials take no memory for long, however many and however large.
func TestWhatIsRememberedIsBounded(t *testing.T) {
	for _, bytes := range []int{20, 8000} {
		e := newEnvoy(t)
		f := withPolicy(t, e, withKeys(t))
		for i := range 3 * verdictsMax {
			f.NewStream(uint32(i)).RequestHeaders(get("/api/x", "x-api-key", fmt.Sprintf("%0*d", bytes, i)))
			f.Flush()
			c, _, _ := e.check()
			c.answer(replied(said(left(8), core.CredentialUnknown, core.Minute)))
			if way := f.policy.ways[0]; len(way.verdicts) > verdictsMax || way.bytes > verdictBytesMax+bytes {
				t.Fatalf("%d verdicts, %d bytes", len(way.verdicts), way.bytes)
			}
		}
	}
}

// TestWhatTheBridgeHadNoTimeFor holds for one request: the next one is asked about again.
func TestWhatTheBridgeHadNoTimeFor(t *testing.T) {
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
		c.answer(replied(said(left(8), core.CredentialInvalid, 0)))
		if got := s.ResponseHeaders(nil, true); len(got) == 0 || got[0][1] != "10" {
			t.Errorf("the limit shown is not that of the address: %v", got)
		}
	}
	if n := len(f.policy.ways[0].verdicts); n != 0 {
		t.Errorf("%d verdicts are held that are good for nothing", n)
	}
}
