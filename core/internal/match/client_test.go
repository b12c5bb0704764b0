// SPDX-License-Identifier: Apache-2.0

package match

import (
	"github.com/penstock/penstock/internal/test/request"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/policy"
)

// TestMatchClient: every condition on the client must hold, and a list holds if one of its values
// is equal.
func TestMatchClient(t *testing.T) {
	who := &policy.Identity{Tier: "gold", User: "u", APIKey: "k", Tenant: "acme"}
	for _, c := range []struct {
		m    policy.Match
		want bool
	}{
		{policy.Match{Tier: []string{"gold"}}, true}, {policy.Match{Tier: []string{"silver", "gold"}}, true}, {policy.Match{Tier: []string{"Gold"}}, false},
		{policy.Match{Tier: []string{"gol"}}, false}, {policy.Match{User: []string{"u"}}, true}, {policy.Match{User: []string{"k"}}, false},
		{policy.Match{APIKey: []string{"k"}}, true}, {policy.Match{Tenant: []string{"acme"}}, true},
		{policy.Match{Tier: []string{"gold"}, Tenant: []string{"acme", "x"}}, true}, {policy.Match{Tier: []string{"gold"}, Tenant: []string{"x"}}, false},
		{policy.Match{Tier: []string{"gold"}, Path: []string{"/a"}}, true}, {policy.Match{Tier: []string{"gold"}, Path: []string{"/b"}}, false},
	} {
		conditions := compileAll(t, []policy.Match{c.m})
		m := NewMatcher(conditions)
		for _, asking := range []*policy.Identity{who, {}, nil} {
			var r Request
			r.Read(&request.Attributes{PathText: "/a"})
			r.Client = asking
			want := c.want && asking == who
			if got := conditions[0].Holds(&r); got != want {
				t.Errorf("%+v of %+v: %v", c.m, asking, got)
			}
			if got := len(m.AppendMatches(nil, &r)) == 1; got != want {
				t.Errorf("%+v of %+v: found is %v", c.m, asking, got)
			}
		}
		if conditions[0].tierSpecific() != (c.m.Tier != nil) {
			t.Errorf("%+v: tier-specific is %v", c.m, conditions[0].tierSpecific())
		}
	}
	if (&Condition{}).tierSpecific() {
		t.Error("a match of everybody names no tier")
	}
}

// TestMatcherFindsClientsByIndex: rules that differ in the client are found by index, not compared
// one by one.
func TestMatcherFindsClientsByIndex(t *testing.T) {
	var matches []policy.Match
	for i := range 100 {
		name := strings.Repeat("x", i+1)
		matches = append(matches, policy.Match{Path: []string{"/api/*"}, Tier: []string{name}}, policy.Match{Tenant: []string{name}, Method: []string{"GET"}})
	}
	m := NewMatcher(compileAll(t, matches))
	if len(m.always) > 0 || len(m.clients[ClientTier]) != 100 || len(m.clients[ClientTenant]) != 100 {
		t.Errorf("always %d, tiers %d, tenants %d", len(m.always), len(m.clients[ClientTier]), len(m.clients[ClientTenant]))
	}
}
