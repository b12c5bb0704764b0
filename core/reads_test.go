// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// noted is a request that notes what it is asked for, and has everything.
type noted struct {
	headers, attrs map[string]bool
	query          bool
}

func (*noted) Path() string       { return "/api/x" }
func (*noted) Method() string     { return "GET" }
func (*noted) Host() string       { return "acme.example.com" }
func (*noted) Peer() netip.Addr   { return netip.MustParseAddr("192.0.2.7") }
func (*noted) Remote() netip.Addr { return netip.MustParseAddr("10.0.0.1") }
func (*noted) Now() Micros        { return 1_700_000_000 * Second }

func (n *noted) Query() string {
	n.query = true
	return "key=k"
}

func (n *noted) Header(name string) (string, bool) {
	n.headers[name] = true
	return "", false
}

func (n *noted) Attr(name string) (string, bool) {
	n.attrs[name] = true
	return "", false
}

// TestReadsIsAllThatIsAsked: what a front leaves out because Reads does not name it would change the decision.
func TestReadsIsAllThatIsAsked(t *testing.T) {
	v := newAnswers()
	p := Policy{Name: "shop", TrustedProxies: prefixes("10.0.0.0/8"),
		Identify: []Identify{
			{Kind: IdentifyJWT, Verifier: v},
			{Kind: IdentifyJWT, Verifier: v, From: []CredentialSource{{FromCookie, "session"}}},
			{Kind: IdentifyAPIKey, Verifier: v, From: []CredentialSource{{FromQuery, "key"}, {FromHeader, "x-key"}}},
			{Kind: IdentifyHeader, Name: "x-user", Unverified: true},
			{Kind: IdentifyAttr, Name: "auth.user"},
			{Kind: IdentifyIP},
		},
		Tenant: []Source{{Kind: SourceHeader, Name: "x-tenant", Unverified: true}, {Kind: SourceAttr, Name: "tenant"}},
		Tier:   []Source{{Kind: SourceAttr, Name: "tier"}},
		Rules: []Rule{
			{Name: "a", Per: []Dimension{{PerHeader, "x-per"}, {PerAttr, "per"}}, Unverified: true, Limits: limits(t, "10/1m"),
				Match: Match{Path: []string{"/api/*"}},
				Cost: []Cost{{N: 2, Match: Match{Header: []HeaderMatch{{Name: "x-heavy"}}}},
					{N: 1, Header: "x-cost", Trusted: prefixes("10.0.0.0/8")}}},
			{Name: "b", Match: Match{Header: []HeaderMatch{{Name: "x-plan", Values: []string{"free"}}}}, Limits: limits(t, "10/1m")},
			{Name: "off", Disabled: true, Match: Match{Header: []HeaderMatch{{Name: "x-off"}}}, Limits: limits(t, "10/1m")},
		}}
	rs, err := Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	asked := &noted{headers: map[string]bool{}, attrs: map[string]bool{}}
	var plan Plan
	plan.Add(rs, asked)
	got := Reads{Query: asked.query}
	for name := range asked.headers {
		got.Headers = append(got.Headers, name)
	}
	for name := range asked.attrs {
		got.Attrs = append(got.Attrs, name)
	}
	slices.Sort(got.Headers)
	slices.Sort(got.Attrs)
	if diff := cmp.Diff(p.Reads(), got); diff != "" {
		t.Errorf("what Reads says (-) and what was asked (+):\n%s", diff)
	}
}
