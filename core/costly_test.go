// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/internal/test/limittest"
	"net/netip"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// sparingVerifier is a verifier that has time for one token in each call.
type sparingVerifier struct {
	t     *testing.T
	addrs []netip.Addr
}

func (s *sparingVerifier) Verify(string) (*policy.Identity, policy.CredentialState) {
	s.t.Error("asked on behalf of nobody")
	return nil, policy.CredentialAbsent
}

func (s *sparingVerifier) VerifyFor(asker *policy.Asker, _ string) (*policy.Identity, policy.CredentialState) {
	s.addrs = append(s.addrs, asker.Addr)
	if *asker.Left <= 0 {
		asker.Unchecked = true
		return nil, policy.CredentialInvalid
	}
	*asker.Left -= counter.Millisecond
	return nil, policy.CredentialUnknown
}

// TestCostlyVerifiers: a verifier receives the client's address as the policy determines it. It
// also receives the time that is left for verifying; requests that are decided together share this
// time. A credential that could not be verified in time counts as invalid, but is reported as
// unchecked.
func TestCostlyVerifiers(t *testing.T) {
	v := &sparingVerifier{t: t}
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "9/1m")}}, TrustedProxies: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
		Identify: []policy.Identify{{Kind: policy.IdentifyJWT, Verifier: v, From: []policy.CredentialSource{{Kind: policy.FromBearer}, {Kind: policy.FromHeader, Name: "X-Token"}}}, {}}})
	a := get("192.0.2.1", "/")
	a.remote = a.peer
	a.header = map[string]string{"Authorization": "Bearer one", "X-Token": "two", "X-Forwarded-For": "::ffff:198.51.100.7"}
	plan, left := new(Plan), counter.Micros(counter.Millisecond)
	for i, want := range [][2]bool{{false, true}, {true, true}} {
		plan.Reset()
		plan.Hurry(&left)
		plan.Add(rs, a)
		used := plan.Credentials()
		if len(used) != 2 || used[0].Unchecked != want[0] || used[1].Unchecked != want[1] || used[1].State != policy.CredentialInvalid {
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
	if plan.Reset(); plan.who.Asker != (policy.Asker{}) {
		t.Error("the asker is kept")
	}
}
