// SPDX-License-Identifier: Apache-2.0

package core

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// problemPaths returns where the policy has problems, and all of what is said about them.
func problemPaths(t *testing.T, p Policy) (paths []string, text string) {
	t.Helper()
	rs, err := Compile(p)
	if err == nil {
		return nil, ""
	}
	var problems Problems
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

// TestCompileRefusesRules holds each mistake that one rule can hold.
func TestCompileRefusesRules(t *testing.T) {
	one := limits(t, "100/1m")
	header := Dimension{Kind: PerHeader, Name: "X-Tenant"}
	for _, c := range []struct {
		rule Rule
		path string
		says string
	}{
		{Rule{Limits: one}, ".name", "is missing"},
		{Rule{Name: "a b", Limits: one}, ".name", "character"},
		{Rule{Name: "a:b", Limits: one}, ".name", "character"},
		{Rule{Name: "ä", Limits: one}, ".name", "character"},
		{Rule{Name: `a"`, Limits: one}, ".name", "character"},
		{Rule{Name: strings.Repeat("n", 65), Limits: one}, ".name", "at most 64"},
		{Rule{Name: "r"}, ".limit", "is missing"},
		{Rule{Name: "r", Action: ActionLogOnly}, ".limit", "is missing"},
		{Rule{Name: "r", Limits: []Limit{{}}}, ".limit[0]", "is not a limit"},
		{Rule{Name: "r", Limits: limits(t, "1/1m", "1/1d", "2/60s")}, ".limit[2]", "limit[0]"},
		{Rule{Name: "r", Limits: one, Action: 9}, ".action", "unknown"},
		{Rule{Name: "r", Action: ActionBlock, Limits: one}, ".limit", "does not go with action: block"},
		{Rule{Name: "r", Action: ActionBlock, PerNone: true}, ".per", "counts nothing"},
		{Rule{Name: "r", Action: ActionBlock, Cost: []Cost{{N: 1}}}, ".cost", "counts nothing"},
		{Rule{Name: "r", Action: ActionBlock, OnError: OnErrorDeny}, ".on_error", "counts nothing"},
		{Rule{Name: "r", Action: ActionBlock, Missing: MissingDeny}, ".missing", "counts nothing"},
		{Rule{Name: "r", Action: ActionBlock, Expose: true}, ".expose", "counts nothing"},
		{Rule{Name: "r", Action: ActionBlock, Unverified: true}, ".unverified", "counts nothing"},
		{Rule{Name: "r", Action: ActionBlock, Group: "g", Priority: 1}, ".priority", "block wins"},
		{Rule{Name: "r", Action: ActionAllow}, ".action", "outside a group"},
		{Rule{Name: "r", Limits: one, Priority: 1}, ".priority", "outside a group"},
		{Rule{Name: "r", Limits: one, Group: "a b"}, ".group", "character"},
		{Rule{Name: "r", Limits: one, Expose: true}, ".expose", "shown anyway"},
		{Rule{Name: "r", Limits: one, Action: ActionLogOnly, OnError: OnErrorDeny}, ".on_error", "refuses nothing"},
		{Rule{Name: "r", Limits: one, OnError: 7}, ".on_error", "unknown"},
		{Rule{Name: "r", Limits: one, Missing: 7}, ".missing", "unknown"},
		{Rule{Name: "r", Limits: one, PerNone: true, Missing: MissingSkip}, ".missing", "no dimension"},
		{Rule{Name: "r", Limits: one, Per: []Dimension{{Kind: PerMethod}}, Missing: MissingDeny}, ".missing", "no dimension"},
		{Rule{Name: "r", Limits: one, Unverified: true}, ".unverified", "names no header"},
		{Rule{Name: "r", Limits: one, Per: []Dimension{header}}, ".per", "anyone can write"},
		{Rule{Name: "r", Limits: one, Per: []Dimension{{}}, PerNone: true}, ".per", "nobody and somebody"},
		{Rule{Name: "r", Limits: one, Per: []Dimension{{}, {Kind: PerIP}, {}}}, ".per[2]", "per[0] again"},
		{Rule{Name: "r", Limits: one, Unverified: true, Per: []Dimension{header, {PerHeader, "x-TENANT"}}}, ".per[1]", "again"},
		{Rule{Name: "r", Limits: one, Unverified: true, Per: []Dimension{{PerHeader, "a b"}}}, ".per[0]", "not the name of a header"},
		{Rule{Name: "r", Limits: one, Unverified: true, Per: []Dimension{{PerHeader, "X-User-SHA256"}}}, ".per[0]", "-sha256"},
		{Rule{Name: "r", Limits: one, Per: []Dimension{{PerAttr, "x-sha256"}}}, ".per[0]", "-sha256"},
		{Rule{Name: "r", Limits: one, Per: []Dimension{{PerAttr, ""}}}, ".per[0]", "not the name of an attribute"},
		{Rule{Name: "r", Limits: one, Per: []Dimension{{PerAttr, strings.Repeat("a", 257)}}}, ".per[0]", "at most 256"},
		{Rule{Name: "r", Limits: one, Per: []Dimension{{PerIP, "x"}}}, ".per[0]", "does not take"},
		{Rule{Name: "r", Limits: one, Per: []Dimension{{Kind: PerEndpoint}}}, ".per[0]", "has none"},
		{Rule{Name: "r", Limits: one, Per: []Dimension{{Kind: 99}}}, ".per[0]", "unknown"},
		{Rule{Name: "r", Limits: one, Per: make([]Dimension, 9)}, ".per", "more than 8"},
		{Rule{Name: "r", Limits: one, Cost: []Cost{{N: 0}}}, ".cost[0].n", "out of bounds"},
		{Rule{Name: "r", Limits: one, Cost: []Cost{{N: -1}}}, ".cost[0].n", "out of bounds"},
		{Rule{Name: "r", Limits: one, Cost: []Cost{{N: CountMax + 1}}}, ".cost[0].n", "out of bounds"},
		{Rule{Name: "r", Limits: one, Cost: []Cost{{N: 101}}}, ".cost[0].n", "can never pass limit[0], 100/1m"},
		{Rule{Name: "r", Limits: one, Cost: []Cost{{N: 5}, {N: 1}}}, ".cost[1]", "never reached"},
		{Rule{Name: "r", Limits: one, Cost: []Cost{{Match: Match{Path: []string{"x"}}, N: 5}}}, ".cost[0].match.path[0]", ""},
		{Rule{Name: "r", Limits: one, Match: Match{Path: []string{"x"}}}, ".match.path[0]", ""},
	} {
		paths, text := problemPaths(t, Policy{Name: "n", Rules: []Rule{{Name: "before", Limits: one}, c.rule}})
		if diff := cmp.Diff([]string{"rules[1]" + c.path}, paths); diff != "" || !strings.Contains(text, c.says) {
			t.Errorf("%+v:\n%s\nwant %q about rules[1]%s alone", c.rule, text, c.says, c.path)
		}
	}
}

// TestCompileRefusesPolicies holds each mistake that is not of one rule.
func TestCompileRefusesPolicies(t *testing.T) {
	one := limits(t, "100/1m")
	header := Identify{Kind: IdentifyHeader, Name: "X-User", Unverified: true}
	for _, c := range []struct {
		policy Policy
		path   string
		says   string
	}{
		{Policy{Name: "a:b"}, "name", "character"},
		{Policy{Headers: HeadersNone | HeadersX}, "headers", "none alone"},
		{Policy{Headers: 1 << 7}, "headers", "no set"},
		{Policy{Enforce: 9}, "enforce", "unknown"},
		{Policy{OnError: 9}, "on_error", "unknown"},
		{Policy{Enforce: EnforceFirst, Rules: []Rule{{Name: "r", Limits: one, Group: "g"}}}, "rules[0].group", "enforce: first"},
		{Policy{Rules: []Rule{{Name: "r", Limits: one}, {Name: "r", Limits: one, Disabled: true}}}, "rules[1].name",
			"also the name of rules[0]"},
		{Policy{Rules: []Rule{{Name: "r-1m", Limits: one}, {Name: "r", Limits: limits(t, "1/1m", "9/1d")}}}, "rules[1].limit[0]",
			`"r-1m": is also the name of rules[0]`},
		{Policy{Identify: []Identify{{Kind: IdentifyHeader, Name: "X-User"}}}, "identify[0]", "anyone can write"},
		{Policy{Identify: []Identify{{Kind: IdentifyHeader, Unverified: true}}}, "identify[0]", "not the name of a header"},
		{Policy{Identify: []Identify{{Kind: IdentifyHeader, Name: "X-sha256", Unverified: true}}}, "identify[0]", "-sha256"},
		{Policy{Identify: []Identify{{Kind: IdentifyAttr, Name: "a", Unverified: true}}}, "identify[0].unverified", "header and cookie only"},
		{Policy{Identify: []Identify{{Kind: IdentifyAttr, Name: "a", IPv6Prefix: 48}}}, "identify[0]", "ip only"},
		{Policy{Identify: []Identify{{Name: "a"}}}, "identify[0].name", "does not go with ip"},
		{Policy{Identify: []Identify{{IPv4Prefix: 33}}}, "identify[0].ipv4_prefix", "1 to 32"},
		{Policy{Identify: []Identify{{IPv6Prefix: -1}}}, "identify[0].ipv6_prefix", "1 to 128"},
		{Policy{Identify: []Identify{{Kind: 9}}}, "identify[0]", "unknown way"},
		{Policy{Identify: []Identify{header, {}, header}}, "identify[2]", "identify[0] again"},
		{Policy{Identify: make([]Identify, 17)}, "identify", "more than 16"},
		{Policy{Exempt: []Listed{{IP: []netip.Prefix{{}}}}}, "exempt[0].ip[0]", ""},
		{Policy{Rules: make([]Rule, RulesMax+1)}, "rules", "more than 100000"},
	} {
		paths, text := problemPaths(t, c.policy)
		if diff := cmp.Diff([]string{c.path}, paths); diff != "" || !strings.Contains(text, c.says) {
			t.Errorf("%s\nwant %q about %s alone", text, c.says, c.path)
		}
	}
}

// TestCompileReportsEverything: one run names all that is wrong, in whichever part.
func TestCompileReportsEverything(t *testing.T) {
	paths, _ := problemPaths(t, Policy{Name: "a b", OnError: 9, Identify: []Identify{{IPv4Prefix: 40}},
		Exempt: []Listed{{IP: []netip.Prefix{{}}}},
		Rules: []Rule{{Name: "r", Limits: []Limit{{}}, Match: Match{Path: []string{"x"}}, Cost: []Cost{{N: 0}}},
			{Name: "r", Action: ActionAllow}}})
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

// TestCompileFindsCrowds: rules that a request would all meet at once are refused, if that can be told; rules that stand
// in for each other, exclude each other or are disabled are not.
func TestCompileFindsCrowds(t *testing.T) {
	make65 := func(change func(i int, r *Rule)) Policy {
		p := Policy{Name: "n"}
		for i := range ChecksMax + 1 {
			p.Rules = append(p.Rules, Rule{Name: fmt.Sprintf("r%d", i), Limits: limits(t, "1/1m")})
			change(i, &p.Rules[i])
		}
		return p
	}
	header := func(i int) []HeaderMatch { return []HeaderMatch{{Name: "X-Plan", Values: []string{fmt.Sprint(i)}}} }
	for name, c := range map[string]struct {
		policy Policy
		fine   bool
	}{
		"all":      {make65(func(int, *Rule) {}), false},
		"one path": {make65(func(_ int, r *Rule) { r.Match.Path = []string{"/api/**/x*"} }), false},
		"one less": {make65(func(i int, r *Rule) { r.Disabled = i == 7 }), true},
		"group":    {make65(func(_ int, r *Rule) { r.Group = "g" }), true},
		"paths":    {make65(func(i int, r *Rule) { r.Match.Path = []string{fmt.Sprintf("/%d", i)} }), true},
		"headers":  {make65(func(i int, r *Rule) { r.Match.Header = header(i) }), true},
		"one header": {make65(func(_ int, r *Rule) {
			r.Match = Match{Header: header(1), Host: []string{"*.x.com"}, Method: []string{"PUT"},
				IP: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
		}), false},
	} {
		paths, text := problemPaths(t, c.policy)
		if (len(paths) == 0) != c.fine || len(paths) > 1 {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// TestCompileKeepsNothingOfThePolicy: a Ruleset is immutable, whatever becomes of what it was made from.
func TestCompileKeepsNothingOfThePolicy(t *testing.T) {
	p := Policy{Name: "n", Rules: []Rule{{Name: "r", Limits: limits(t, "5/1m"), Per: []Dimension{{Kind: PerIP}},
		Match: Match{Path: []string{"/a"}, Method: []string{"GET"}}, Cost: []Cost{{N: 2}}}}}
	rs := mustCompile(t, p)
	r := &p.Rules[0]
	r.Limits[0], r.Per[0], r.Cost[0].N = mustLimit(t, "9/1s"), Dimension{Kind: PerHost}, 4
	r.Match.Path[0], r.Match.Method[0], r.Name = "/b", "PUT", "changed"
	plan, d := newCounters().ask(t, get("192.0.2.1", "/a"), rs)
	wantKeys(t, plan, "rl1:n:r:{ip:192.0.2.1}:60s:sw")
	if d.Remaining != 3 || d.Rule != "r" {
		t.Errorf("%+v", d)
	}
}
