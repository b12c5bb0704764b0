// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"testing"
)

// sparing is a verifier that has time for one token in each call.
type sparing struct {
	t     *testing.T
	addrs []netip.Addr
}

func (s *sparing) Verify(string) (*Identity, CredentialState) {
	s.t.Error("asked on behalf of nobody")
	return nil, CredentialAbsent
}

func (s *sparing) VerifyFor(asker *Asker, _ string) (*Identity, CredentialState) {
	s.addrs = append(s.addrs, asker.Addr)
	if *asker.Left <= 0 {
		asker.Unchecked = true
		return nil, CredentialInvalid
	}
	*asker.Left -= Millisecond
	return nil, CredentialUnknown
}

// TestCostlyVerifiers are told of the client's address, as the policy finds it, and of the time that is left to the requests that are
// decided together. A credential that there was no time for is one that does not verify, and is told apart.
func TestCostlyVerifiers(t *testing.T) {
	v := &sparing{t: t}
	rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{{Name: "r", Limits: limits(t, "9/1m")}}, TrustedProxies: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
		Identify: []Identify{{Kind: IdentifyJWT, Verifier: v, From: []CredentialSource{{Kind: FromBearer}, {Kind: FromHeader, Name: "X-Token"}}}, {}}})
	a := get("192.0.2.1", "/")
	a.remote = a.peer
	a.header = map[string]string{"Authorization": "Bearer one", "X-Token": "two", "X-Forwarded-For": "::ffff:198.51.100.7"}
	plan, left := new(Plan), Micros(Millisecond)
	for i, want := range [][2]bool{{false, true}, {true, true}} {
		plan.Reset()
		plan.Hurry(&left)
		plan.Add(rs, a)
		used := plan.Credentials()
		if len(used) != 2 || used[0].Unchecked != want[0] || used[1].Unchecked != want[1] || used[1].State != CredentialInvalid {
			t.Errorf("request %d: %+v", i, used)
		}
		if who := plan.Identity(); who.ID != "198.51.100.7" {
			t.Errorf("request %d counts as %+v", i, who)
		}
	}
	for _, addr := range v.addrs {
		if addr != netip.MustParseAddr("198.51.100.7") {
			t.Errorf("asked for %v", addr)
		}
	}
	if plan.Reset(); plan.asker != (Asker{}) {
		t.Error("the asker is kept")
	}
}
