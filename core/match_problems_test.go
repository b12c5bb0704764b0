// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/internal/validate"
	"github.com/penstock/penstock/core/policy"
)

func TestAttrMatchProblems(t *testing.T) {
	for _, c := range []struct {
		attr policy.AttrMatch
		want string
	}{
		{policy.AttrMatch{Name: ""}, "m.attr[0]: is not the name of an attribute"},
		{policy.AttrMatch{Name: "a\x00"}, "is not the name of an attribute"},
		{policy.AttrMatch{Name: strings.Repeat("a", 257)}, "has 257 bytes"},
		{policy.AttrMatch{Name: "a", Values: []string{"b", ""}}, "m.attr.a[1]: is empty"},
		{policy.AttrMatch{Name: "a", Values: []string{strings.Repeat("b", 4097)}}, "longer than 4096"},
		{policy.AttrMatch{Name: "a", Values: []string{strings.Repeat("*b", 9)}}, "holds more than 8 stars"},
		{policy.AttrMatch{Name: "a", Values: make([]string, 1001)}, "has 1001 entries"},
	} {
		problems := matchProblems("m", policy.Match{Attr: []policy.AttrMatch{c.attr}})
		if !strings.Contains(problems.Error(), c.want) {
			t.Errorf("%.40q: %.300q, want %q", c.attr, problems.Error(), c.want)
		}
	}
}

// TestMatchProblems: all problems are reported, each with its place.
func TestMatchProblems(t *testing.T) {
	problems := matchProblems("rules[2].match", policy.Match{
		Path:   []string{"api", "/fine", "/***"},
		Method: []string{"", "GE T", "HEAD"},
		Host: []string{"", "*", "http://a", "a:80", "a.*", "*.", "b\u00fccher.de", "[::1", "[::1%eth0]", "[::1]:80", "a..b", "a b",
			strings.Repeat("a.", 127) + "a"},
		Header: []policy.HeaderMatch{{Name: ""}, {Name: "X-A:"}, {Name: "host"}, {Name: "X-B", Values: []string{"ok", "", " x", "a\nb"}}},
		IP:     []netip.Prefix{{}, netip.MustParsePrefix("::ffff:0:0/90")},
		Tier:   []string{"gold", ""}, User: []string{" u", "*"}, APIKey: []string{"k", "k"}, Tenant: []string{strings.Repeat("x", 8193)},
	})
	want := strings.Fields(`path[0] path[2] method[0] method[1] method[2] host[0] host[1] host[2] host[3] host[4] host[5] host[6]
		host[7] host[8] host[9] host[10] host[11] host[12] header[0] header.X-A: header.host header.X-B[1] header.X-B[2]
		header.X-B[3] ip[0] ip[1] tier[1] user[0] user[1] tenant[0]`)
	for i := range max(len(want), len(problems)) {
		if i >= len(want) || i >= len(problems) || problems[i].Path != "rules[2].match."+want[i] {
			t.Fatalf("problems are\n%v\nwant %q", problems, want)
		}
		if problems[i].Why == "" || problems[i].Remedy == "" {
			t.Errorf("no help: %+v", problems[i])
		}
	}
	if problems := matchProblems("m", policy.Match{Path: make([]string, match.MatchListMax+1)}); len(problems) != 1 {
		t.Errorf("a list of %d: %v", match.MatchListMax+1, problems)
	}
	if problems := matchProblems("m", policy.Match{User: make([]string, match.MatchListMax+1)}); len(problems) != 1 {
		t.Errorf("a list of %d users: %v", match.MatchListMax+1, problems)
	}
}

// compileAll compiles valid matches.
func compileAll(t testing.TB, matches []policy.Match) []match.Condition {
	t.Helper()
	conditions := make([]match.Condition, len(matches))
	for i, m := range matches {
		conditions[i] = compiledMatch(t, m)
	}
	return conditions
}

// compiledMatch compiles a valid match.
func compiledMatch(t testing.TB, m policy.Match) match.Condition {
	t.Helper()
	c, ok := match.CompileMatch(&m)
	if !ok {
		t.Fatalf("not compiled: %+v", m)
	}
	return c
}

// matchProblems validates a match, and returns the problems found.
func matchProblems(at string, m policy.Match) policy.Problems {
	var v validate.Verifier
	v.Match(at, &m)
	return v.Problems
}

func TestPatternRejected(t *testing.T) {
	for pattern, why := range map[string]string{
		"": "empty", "api": "start", "*": "start", "/a?b=c": "query", "/a#b": "fragment", `/a\b`: "backslash", "/a b": "space",
		"/a\tb": "control", "/a%00": "control", "/%zz": "hexadecimal", "/100%": "hexadecimal", "/a//b": "empty segment",
		"//": "empty segment", "/***": "more than", "/a**": "more than", "/**a": "more than", "/a*b": "within", "/a*/b": "within",
		"/*a": "within", "/a*/": "within", "/./a": "segment", "/a/..": "segment", "/a/%2e%2E/b": "segment", "/%ff": "UTF-8",
		"/" + strings.Repeat("a", match.PatternBytesMax): "longer", strings.Repeat("/a", match.PatternSegmentsMax+1): "64 segments",
		strings.Repeat("/*/a", match.PatternWildcardsMax+1): "wildcards",
	} {
		problems := matchProblems("rules[2].match", policy.Match{Path: []string{"/fine", pattern}})
		if len(problems) != 1 || problems[0].Path != "rules[2].match.path[1]" || problems[0].Value != pattern ||
			!strings.Contains(problems[0].Why, why) || problems[0].Remedy == "" {
			t.Errorf("%q: %+v, want %q", pattern, problems, why)
		}
	}
}
