// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// hurriedVerifier is a verifier that never has time.
type hurriedVerifier struct{ limits bool }

func (hurriedVerifier) Verify(string) (*policy.Identity, policy.CredentialState) {
	return nil, policy.CredentialInvalid
}

func (hurriedVerifier) VerifyFor(a *policy.Asker, _ string) (*policy.Identity, policy.CredentialState) {
	a.Unchecked = true
	return nil, policy.CredentialInvalid
}

func (h hurriedVerifier) SetsLimits() bool { return h.limits }

// TestAnUncheckedCredential: a credential that was not verified in time does not count as absent if
// rules depend on its owner. Otherwise a client could choose which rules apply to it.
func TestAnUncheckedCredential(t *testing.T) {
	limit, err := counter.ParseLimit("3/1h")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(p *policy.Policy)
		limits bool
		want   int // 0 means that the client is counted by its address
	}{
		"nothing of the client":   {change: func(*policy.Policy) {}},
		"a rule that is disabled": {change: func(p *policy.Policy) { p.Rules[1].Match.Tier, p.Rules[1].Disabled = []string{"free"}, true }},
		"match tier":              {change: func(p *policy.Policy) { p.Rules[1].Match.Tier = []string{"free"} }, want: 503},
		"match user":              {change: func(p *policy.Policy) { p.Rules[1].Match.User = []string{"u"} }, want: 503},
		"match tenant":            {change: func(p *policy.Policy) { p.Rules[1].Match.Tenant = []string{"t"} }, want: 503},
		"per user":                {change: func(p *policy.Policy) { p.Rules[1].Per = []policy.Dimension{{Kind: policy.PerUser}} }, want: 503},
		"tiers":                   {change: func(p *policy.Policy) { p.Rules[1].Tiers = map[string]policy.LimitSet{"a": {Unlimited: true}} }, want: 503},
		"a user that is blocked":  {change: func(p *policy.Policy) { p.Block = []policy.Listed{{User: []string{"u"}}} }, want: 503},
		"a tenant that is exempt": {change: func(p *policy.Policy) { p.Exempt = []policy.Listed{{Tenant: []string{"t"}}} }, want: 503},
		"an address that is": {change: func(p *policy.Policy) {
			p.Exempt = []policy.Listed{{IP: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}
		}},
		"a cost": {change: func(p *policy.Policy) {
			p.Rules[1].Cost = []policy.Cost{{N: 2, Match: policy.Match{Tier: []string{"a"}}}}
		}, want: 503},
		"limits of its own":        {change: func(*policy.Policy) {}, limits: true, want: 503},
		"and on_invalid is deny":   {change: func(p *policy.Policy) { p.Identify[0].DenyInvalid, p.Rules[1].Match.Tier = true, []string{"a"} }, want: 503},
		"on_invalid is deny alone": {change: func(p *policy.Policy) { p.Identify[0].DenyInvalid = true }, want: 401},
	} {
		p := policy.Policy{Name: "shop", Identify: []policy.Identify{{Kind: policy.IdentifyJWT, Verifier: hurriedVerifier{c.limits}}, {Kind: policy.IdentifyIP}},
			Rules: []policy.Rule{{Name: "all", Limits: []counter.Limit{limit}}, {Name: "other", Limits: []counter.Limit{limit}}}}
		c.change(&p)
		rs, err := Compile(p)
		if err != nil {
			t.Fatal(name, err)
		}
		var plan Plan
		request := &client{path: "/x", peer: netip.MustParseAddr("192.0.2.1"), header: map[string]string{"Authorization": "Bearer a.b.c"}}
		plan.Add(rs, request)
		checks := len(plan.Checks())
		d := plan.Decide()
		if d.Status != c.want || plan.Unchecked() != (c.want == 503) || (checks == 0) != (c.want != 0) {
			t.Errorf("%s: status %d with %d checks, want %d", name, d.Status, checks, c.want)
		}
		if c.want == 503 && (d.RetryAfter != counter.Second || !d.Degraded) {
			t.Errorf("%s: %+v", name, d)
		}
		plan.Reset()
		delete(request.header, "Authorization")
		plan.Add(rs, request)
		if plan.Unchecked() {
			t.Errorf("%s: a request without a token is denied", name)
		}
	}
}
