// SPDX-License-Identifier: Apache-2.0

package core

import (
	"errors"
	"fmt"
	"github.com/penstock/penstock/internal/test/limittest"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// problemPaths returns the paths of the policy's problems, and the whole message.
func problemPaths(t *testing.T, p policy.Policy) (paths []string, text string) {
	t.Helper()
	rs, err := Compile(p)
	if err == nil {
		return nil, ""
	}
	var problems policy.Problems
	if !errors.As(err, &problems) || rs != nil {
		t.Fatalf("Compile returns %v and %T", rs, err)
	}
	for _, problem := range problems {
		paths = append(paths, problem.Path)
		if problem.Why == "" || problem.Remedy == "" {
			t.Errorf("%s does not say why, or what to write", problem)
		}
	}
	return paths, err.Error()
}

// TestCompileRejectsRules tests every mistake that a single rule can contain.
func TestCompileRejectsRules(t *testing.T) {
	one := limittest.All(t, "100/1m")
	header := policy.Dimension{Kind: policy.PerHeader, Name: "X-Tenant"}
	for _, c := range []struct {
		rule policy.Rule
		path string
		says string
	}{
		{policy.Rule{Limits: one}, ".name", "is missing"},
		{policy.Rule{Name: "a b", Limits: one}, ".name", "character"},
		{policy.Rule{Name: "a:b", Limits: one}, ".name", "character"},
		{policy.Rule{Name: "ä", Limits: one}, ".name", "character"},
		{policy.Rule{Name: `a"`, Limits: one}, ".name", "character"},
		{policy.Rule{Name: strings.Repeat("n", 65), Limits: one}, ".name", "at most 64"},
		{policy.Rule{Name: "r"}, ".limit", "is missing"},
		{policy.Rule{Name: "r", Action: policy.ActionLogOnly}, ".limit", "is missing"},
		{policy.Rule{Name: "r", Limits: []counter.Limit{{}}}, ".limit[0]", "is not a limit"},
		{policy.Rule{Name: "r", Limits: limittest.All(t, "1/1m", "1/1d", "2/60s")}, ".limit[2]", "limit[0]"},
		{policy.Rule{Name: "r", Limits: one, Action: 9}, ".action", "unknown"},
		{policy.Rule{Name: "r", Action: policy.ActionBlock, Limits: one}, ".limit", "does not go with action: block"},
		{policy.Rule{Name: "r", Action: policy.ActionBlock, PerNone: true}, ".per", "counts nothing"},
		{policy.Rule{Name: "r", Action: policy.ActionBlock, Cost: []policy.Cost{{N: 1}}}, ".cost", "counts nothing"},
		{policy.Rule{Name: "r", Action: policy.ActionBlock, OnError: counter.OnErrorDeny}, ".on_error", "counts nothing"},
		{policy.Rule{Name: "r", Action: policy.ActionBlock, Missing: policy.MissingDeny}, ".missing", "counts nothing"},
		{policy.Rule{Name: "r", Action: policy.ActionBlock, Expose: true}, ".expose", "counts nothing"},
		{policy.Rule{Name: "r", Action: policy.ActionBlock, Unverified: true}, ".unverified", "counts nothing"},
		{policy.Rule{Name: "r", Action: policy.ActionBlock, Group: "g", Priority: 1}, ".priority", "block wins"},
		{policy.Rule{Name: "r", Action: policy.ActionAllow}, ".action", "outside a group"},
		{policy.Rule{Name: "r", Limits: one, Priority: 1}, ".priority", "outside a group"},
		{policy.Rule{Name: "r", Limits: one, Group: "a b"}, ".group", "character"},
		{policy.Rule{Name: "r", Limits: one, Expose: true}, ".expose", "shown anyway"},
		{policy.Rule{Name: "r", Limits: one, Action: policy.ActionLogOnly, OnError: counter.OnErrorDeny}, ".on_error", "denies nothing"},
		{policy.Rule{Name: "r", Limits: one, OnError: 7}, ".on_error", "unknown"},
		{policy.Rule{Name: "r", Limits: one, Missing: 7}, ".missing", "unknown"},
		{policy.Rule{Name: "r", Limits: one, PerNone: true, Missing: policy.MissingSkip}, ".missing", "no dimension"},
		{policy.Rule{Name: "r", Limits: one, Per: []policy.Dimension{{Kind: policy.PerMethod}}, Missing: policy.MissingDeny}, ".missing", "no dimension"},
		{policy.Rule{Name: "r", Limits: one, Unverified: true}, ".unverified", "names no header"},
		{policy.Rule{Name: "r", Limits: one, Per: []policy.Dimension{header}}, ".per", "clients can set"},
		{policy.Rule{Name: "r", Limits: one, Per: []policy.Dimension{{}}, PerNone: true}, ".per", "both empty and not empty"},
		{policy.Rule{Name: "r", Limits: one, Per: []policy.Dimension{{}, {Kind: policy.PerIP}, {}}}, ".per[2]", "per[0] again"},
		{policy.Rule{Name: "r", Limits: one, Unverified: true, Per: []policy.Dimension{header, {Kind: policy.PerHeader, Name: "x-TENANT"}}}, ".per[1]", "again"},
		{policy.Rule{Name: "r", Limits: one, Unverified: true, Per: []policy.Dimension{{Kind: policy.PerHeader, Name: "a b"}}}, ".per[0]", "not the name of a header"},
		{policy.Rule{Name: "r", Limits: one, Unverified: true, Per: []policy.Dimension{{Kind: policy.PerHeader, Name: "X-User-SHA256"}}}, ".per[0]", "-sha256"},
		{policy.Rule{Name: "r", Limits: one, Per: []policy.Dimension{{Kind: policy.PerAttr, Name: "x-sha256"}}}, ".per[0]", "-sha256"},
		{policy.Rule{Name: "r", Limits: one, Per: []policy.Dimension{{Kind: policy.PerAttr, Name: ""}}}, ".per[0]", "not the name of an attribute"},
		{policy.Rule{Name: "r", Limits: one, Per: []policy.Dimension{{Kind: policy.PerAttr, Name: strings.Repeat("a", 257)}}}, ".per[0]", "at most 256"},
		{policy.Rule{Name: "r", Limits: one, Per: []policy.Dimension{{Kind: policy.PerIP, Name: "x"}}}, ".per[0]", "does not take"},
		{policy.Rule{Name: "r", Limits: one, Per: []policy.Dimension{{Kind: policy.PerEndpoint}}}, ".per[0]", "has none"},
		{policy.Rule{Name: "r", Limits: one, Per: []policy.Dimension{{Kind: 99}}}, ".per[0]", "unknown"},
		{policy.Rule{Name: "r", Limits: one, Per: make([]policy.Dimension, 9)}, ".per", "more than 8"},
		{policy.Rule{Name: "r", Limits: one, Cost: []policy.Cost{{N: 0}}}, ".cost[0].n", "out of bounds"},
		{policy.Rule{Name: "r", Limits: one, Cost: []policy.Cost{{N: -1}}}, ".cost[0].n", "out of bounds"},
		{policy.Rule{Name: "r", Limits: one, Cost: []policy.Cost{{N: counter.CountMax + 1}}}, ".cost[0].n", "out of bounds"},
		{policy.Rule{Name: "r", Limits: one, Cost: []policy.Cost{{N: 101}}}, ".cost[0].n", "can never pass limit[0], 100/1m"},
		{policy.Rule{Name: "r", Limits: one, Cost: []policy.Cost{{N: 5}, {N: 1}}}, ".cost[1]", "never reached"},
		{policy.Rule{Name: "r", Limits: one, Cost: []policy.Cost{{Match: policy.Match{Path: []string{"x"}}, N: 5}}}, ".cost[0].match.path[0]", ""},
		{policy.Rule{Name: "r", Limits: one, Match: policy.Match{Path: []string{"x"}}}, ".match.path[0]", ""},
	} {
		paths, text := problemPaths(t, policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "before", Limits: one}, c.rule}})
		if diff := cmp.Diff([]string{"rules[1]" + c.path}, paths); diff != "" || !strings.Contains(text, c.says) {
			t.Errorf("%+v:\n%s\nwant %q about rules[1]%s alone", c.rule, text, c.says, c.path)
		}
	}
}

// TestCompileRejectsPolicies tests each mistake that does not concern a single rule.
func TestCompileRejectsPolicies(t *testing.T) {
	one := limittest.All(t, "100/1m")
	header := policy.Identify{Kind: policy.IdentifyHeader, Name: "X-User", Unverified: true}
	for _, c := range []struct {
		policy policy.Policy
		path   string
		says   string
	}{
		{policy.Policy{Name: "a:b"}, "name", "character"},
		{policy.Policy{Headers: policy.HeadersNone | policy.HeadersX}, "headers", "none alone"},
		{policy.Policy{Headers: 1 << 7}, "headers", "not a set"},
		{policy.Policy{Enforce: 9}, "enforce", "unknown"},
		{policy.Policy{OnError: 9}, "on_error", "unknown"},
		{policy.Policy{Enforce: policy.EnforceFirst, Rules: []policy.Rule{{Name: "r", Limits: one, Group: "g"}}}, "rules[0].group", "enforce: first"},
		{policy.Policy{Rules: []policy.Rule{{Name: "r", Limits: one}, {Name: "r", Limits: one, Disabled: true}}}, "rules[1].name",
			"also the name of rules[0]"},
		{policy.Policy{Rules: []policy.Rule{{Name: "r-1m", Limits: one}, {Name: "r", Limits: limittest.All(t, "1/1m", "9/1d")}}}, "rules[1].limit[0]",
			`"r-1m": is also the name of rules[0]`},
		{policy.Policy{Identify: []policy.Identify{{Kind: policy.IdentifyHeader, Name: "X-User"}}}, "identify[0]", "clients can set"},
		{policy.Policy{Identify: []policy.Identify{{Kind: policy.IdentifyHeader, Unverified: true}}}, "identify[0]", "not the name of a header"},
		{policy.Policy{Identify: []policy.Identify{{Kind: policy.IdentifyHeader, Name: "X-sha256", Unverified: true}}}, "identify[0]", "-sha256"},
		{policy.Policy{Identify: []policy.Identify{{Kind: policy.IdentifyAttr, Name: "a", Unverified: true}}}, "identify[0].unverified", "header and cookie only"},
		{policy.Policy{Identify: []policy.Identify{{Kind: policy.IdentifyAttr, Name: "a", IPv6Prefix: 48}}}, "identify[0]", "ip only"},
		{policy.Policy{Identify: []policy.Identify{{Name: "a"}}}, "identify[0].name", "does not go with ip"},
		{policy.Policy{Identify: []policy.Identify{{IPv4Prefix: 33}}}, "identify[0].ipv4_prefix", "1 to 32"},
		{policy.Policy{Identify: []policy.Identify{{IPv6Prefix: -1}}}, "identify[0].ipv6_prefix", "1 to 128"},
		{policy.Policy{Identify: []policy.Identify{{Kind: 9}}}, "identify[0]", "unknown way"},
		{policy.Policy{Identify: []policy.Identify{header, {}, header}}, "identify[2]", "identify[0] again"},
		{policy.Policy{Identify: make([]policy.Identify, 17)}, "identify", "more than 16"},
		{policy.Policy{Exempt: []policy.Listed{{IP: []netip.Prefix{{}}}}}, "exempt[0].ip[0]", ""},
		{policy.Policy{Rules: make([]policy.Rule, policy.RulesMax+1)}, "rules", "more than 100000"},
	} {
		paths, text := problemPaths(t, c.policy)
		if diff := cmp.Diff([]string{c.path}, paths); diff != "" || !strings.Contains(text, c.says) {
			t.Errorf("%s\nwant %q about %s alone", text, c.says, c.path)
		}
	}
}

// TestCompileReportsEverything: one call reports all problems, in all parts of the policy.
func TestCompileReportsEverything(t *testing.T) {
	paths, _ := problemPaths(t, policy.Policy{Name: "a b", OnError: 9, Identify: []policy.Identify{{IPv4Prefix: 40}},
		Exempt: []policy.Listed{{IP: []netip.Prefix{{}}}},
		Rules: []policy.Rule{{Name: "r", Limits: []counter.Limit{{}}, Match: policy.Match{Path: []string{"x"}}, Cost: []policy.Cost{{N: 0}}},
			{Name: "r", Action: policy.ActionAllow}}})
	want := map[string]bool{"name": true, "on_error": true, "identify[0].ipv4_prefix": true, "exempt[0].ip[0]": true,
		"rules[0].limit[0]": true, "rules[0].match.path[0]": true, "rules[0].cost[0].n": true, "rules[1].name": true,
		"rules[1].action": true}
	got := map[string]bool{}
	for _, path := range paths {
		got[path] = true
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

// TestCompileFindsTooManyChecks: a policy is rejected if one request could match too many rules.
// Rules that replace or exclude each other, and disabled rules, are not counted together.
func TestCompileFindsTooManyChecks(t *testing.T) {
	make65 := func(change func(i int, r *policy.Rule)) policy.Policy {
		p := policy.Policy{Name: "n"}
		for i := range counter.ChecksMax + 1 {
			p.Rules = append(p.Rules, policy.Rule{Name: fmt.Sprintf("r%d", i), Limits: limittest.All(t, "1/1m")})
			change(i, &p.Rules[i])
		}
		return p
	}
	header := func(i int) []policy.HeaderMatch {
		return []policy.HeaderMatch{{Name: "X-Plan", Values: []string{fmt.Sprint(i)}}}
	}
	for name, c := range map[string]struct {
		policy policy.Policy
		fine   bool
	}{
		"all":      {make65(func(int, *policy.Rule) {}), false},
		"one path": {make65(func(_ int, r *policy.Rule) { r.Match.Path = []string{"/api/**/x*"} }), false},
		"one less": {make65(func(i int, r *policy.Rule) { r.Disabled = i == 7 }), true},
		"group":    {make65(func(_ int, r *policy.Rule) { r.Group = "g" }), true},
		"paths":    {make65(func(i int, r *policy.Rule) { r.Match.Path = []string{fmt.Sprintf("/%d", i)} }), true},
		"headers":  {make65(func(i int, r *policy.Rule) { r.Match.Header = header(i) }), true},
		"one header": {make65(func(_ int, r *policy.Rule) {
			r.Match = policy.Match{Header: header(1), Host: []string{"*.x.com"}, Method: []string{"PUT"},
				IP: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
		}), false},
	} {
		paths, text := problemPaths(t, c.policy)
		if (len(paths) == 0) != c.fine || len(paths) > 1 {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// TestCompileKeepsNothingOfThePolicy: a Ruleset does not change if the policy from which it was
// compiled is modified.
func TestCompileKeepsNothingOfThePolicy(t *testing.T) {
	p := policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "5/1m"), Per: []policy.Dimension{{Kind: policy.PerIP}},
		Match: policy.Match{Path: []string{"/a"}, Method: []string{"GET"}}, Cost: []policy.Cost{{N: 2}}}}}
	rs := mustCompile(t, p)
	r := &p.Rules[0]
	r.Limits[0], r.Per[0], r.Cost[0].N = limittest.Parse(t, "9/1s"), policy.Dimension{Kind: policy.PerHost}, 4
	r.Match.Path[0], r.Match.Method[0], r.Name = "/b", "PUT", "changed"
	plan, d := newCounters().ask(t, get("192.0.2.1", "/a"), rs)
	wantKeys(t, plan, "rl1:n:r:{ip:192.0.2.1}:60s:sw")
	if d.Remaining != 3 || d.Rule != "r" {
		t.Errorf("%+v", d)
	}
}
