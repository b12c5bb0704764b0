// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/internal/test/limittest"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// notedRequest is a request that has every field and records which of them are read.
type notedRequest struct {
	headers, attrs map[string]bool
	query          bool
}

func (*notedRequest) Path() string        { return "/api/x" }
func (*notedRequest) Method() string      { return "GET" }
func (*notedRequest) Host() string        { return "acme.example.com" }
func (*notedRequest) Peer() netip.Addr    { return netip.MustParseAddr("192.0.2.7") }
func (*notedRequest) Remote() netip.Addr  { return netip.MustParseAddr("10.0.0.1") }
func (*notedRequest) Now() counter.Micros { return 1_700_000_000 * counter.Second }

func (n *notedRequest) Query() string {
	n.query = true
	return "key=k"
}

func (n *notedRequest) Header(name string) (string, bool) {
	n.headers[name] = true
	return "", false
}

func (n *notedRequest) Attr(name string) (string, bool) {
	n.attrs[name] = true
	return "", false
}

// TestReadsListsEveryInput: a plan reads nothing that InputsOf does not list. So a front can omit
// everything else without changing decisions.
func TestReadsListsEveryInput(t *testing.T) {
	v := newAnswers()
	p := policy.Policy{Name: "shop", TrustedProxies: prefixes("10.0.0.0/8"),
		Identify: []policy.Identify{
			{Kind: policy.IdentifyJWT, Verifier: v},
			{Kind: policy.IdentifyJWT, Verifier: v, From: []policy.CredentialSource{{Kind: policy.FromCookie, Name: "session"}}},
			{Kind: policy.IdentifyAPIKey, Verifier: v, From: []policy.CredentialSource{{Kind: policy.FromQuery, Name: "key"}, {Kind: policy.FromHeader, Name: "x-key"}}},
			{Kind: policy.IdentifyHeader, Name: "x-user", Unverified: true},
			{Kind: policy.IdentifyAttr, Name: "auth.user"},
			{Kind: policy.IdentifyIP},
		},
		Tenant: []policy.Source{{Kind: policy.SourceHeader, Name: "x-tenant", Unverified: true}, {Kind: policy.SourceAttr, Name: "tenant"}},
		Tier:   []policy.Source{{Kind: policy.SourceAttr, Name: "tier"}},
		Rules: []policy.Rule{
			{Name: "a", Per: []policy.Dimension{{Kind: policy.PerHeader, Name: "x-per"}, {Kind: policy.PerAttr, Name: "per"}}, Unverified: true, Limits: limittest.All(t, "10/1m"),
				Match: policy.Match{Path: []string{"/api/*"}},
				Cost: []policy.Cost{{N: 2, Match: policy.Match{Header: []policy.HeaderMatch{{Name: "x-heavy"}}}},
					{N: 1, Header: "x-cost", Trusted: prefixes("10.0.0.0/8")}}},
			{Name: "b", Match: policy.Match{Header: []policy.HeaderMatch{{Name: "x-plan", Values: []string{"free"}}}}, Limits: limittest.All(t, "10/1m")},
			{Name: "off", Disabled: true, Match: policy.Match{Header: []policy.HeaderMatch{{Name: "x-off"}}}, Limits: limittest.All(t, "10/1m")},
		}}
	rs, err := Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	asked := &notedRequest{headers: map[string]bool{}, attrs: map[string]bool{}}
	var plan Plan
	plan.Add(rs, asked)
	got := Inputs{Query: asked.query}
	for name := range asked.headers {
		got.Headers = append(got.Headers, name)
	}
	for name := range asked.attrs {
		got.Attrs = append(got.Attrs, name)
	}
	slices.Sort(got.Headers)
	slices.Sort(got.Attrs)
	if diff := cmp.Diff(InputsOf(&p), got); diff != "" {
		t.Errorf("what Inputs says (-) and what was asked (+):\n%s", diff)
	}
}
