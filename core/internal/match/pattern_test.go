// SPDX-License-Identifier: Apache-2.0

package match

import (
	"github.com/penstock/penstock/internal/test/request"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/policy"
)

func equalSegments(a, b []segment) bool { return slices.Equal(a, b) }

// obviousMatch matches a pattern, as written by its author, with a normalized path, by plain
// recursion.
func obviousMatch(pattern, path string, caseSensitive, strict bool) bool {
	var segments []string
	for _, piece := range strings.Split(pattern, "/") {
		if piece != "" {
			segments = append(segments, piece)
		}
	}
	trailing := strings.HasSuffix(pattern, "/")
	if last := len(segments) - 1; last >= 0 && !trailing && strings.HasSuffix(segments[last], "*") && segments[last] != "**" {
		if segments[last] == "*" {
			segments[last] = "**"
		} else {
			segments = append(segments, "**")
		}
	}
	open := len(segments) > 0 && segments[len(segments)-1] == "**" && !trailing
	if strict && !open && trailing != strings.HasSuffix(path, "/") {
		return false
	}
	return obviousSegments(segments, strings.FieldsFunc(path, func(r rune) bool { return r == '/' }), caseSensitive)
}

func obviousSegments(pattern, path []string, caseSensitive bool) bool {
	if len(pattern) == 0 {
		return len(path) == 0
	}
	if pattern[0] == "**" {
		for skip := 0; skip <= len(path); skip++ {
			if obviousSegments(pattern[1:], path[skip:], caseSensitive) {
				return true
			}
		}
		return false
	}
	if len(path) == 0 {
		return false
	}
	text, prefix := strings.CutSuffix(pattern[0], "*")
	text = strings.TrimPrefix(normalized("/="+text), "/=")
	have := path[0]
	if !caseSensitive {
		text, have = string(appendFolded(nil, text)), string(appendFolded(nil, have))
	}
	fits := have == text
	if prefix {
		fits = strings.HasPrefix(have, text)
	}
	return fits && obviousSegments(pattern[1:], path[1:], caseSensitive)
}

func TestPatternMatches(t *testing.T) {
	for _, c := range []struct {
		pattern string
		yes, no []string
	}{
		{"/api/search", []string{"/api/search", "/api/search/", "/API/Search", "/api//search", "/x/../api/%73earch", "/api/search;x=1", `/api\search`, "/api%2Fsearch"},
			[]string{"/api", "/api/searches", "/api/search/x", "/api%252Fsearch", "/api/search.", "/", "*"}},
		{"/api/search/", []string{"/api/search", "/api/search/"}, []string{"/api/search/x"}},
		{"/api/*", []string{"/api", "/api/", "/api/x", "/api/x/y/z", "/Api//x"}, []string{"/", "/apix", "/x/api"}},
		{"/api/**", []string{"/api", "/api/", "/api/x", "/api/x/y/z"}, []string{"/", "/apix"}},
		{"/api/v*", []string{"/api/v", "/api/v1", "/api/V2/users/7", "/api/v/"}, []string{"/api", "/api/x", "/api/x/v1"}},
		{"/api*", []string{"/api", "/apix", "/apix/y", "/api/y"}, []string{"/", "/ap"}},
		{"/users/*/orders", []string{"/users/7/orders", "/users/7/orders/"}, []string{"/users/orders", "/users/7/8/orders", "/users/7/orders/1"}},
		{"/users/*/", []string{"/users/7", "/users/7/"}, []string{"/users", "/users/7/orders"}},
		{"/a/**/b", []string{"/a/b", "/a/x/b", "/a/b/b", "/a/x/y/z/b"}, []string{"/a", "/b", "/a/b/c", "/a/x"}},
		{"/**/admin/**", []string{"/admin", "/x/admin", "/x/admin/y", "/x/y/admin/z/w"}, []string{"/", "/administrator", "/x/y"}},
		{"/**/a/**/a/b", []string{"/a/a/b", "/a/x/a/a/b", "/a/b/a/b"}, []string{"/a/b", "/a/a/b/a"}},
		{"/**/x*", []string{"/x", "/a/xy/z", "/xa/b"}, []string{"/", "/a/b"}},
		{"/**/*/b", []string{"/a/b", "/a/a/b"}, []string{"/b"}},
		{"/", []string{"/", "", "//", "/..", "/x/.."}, []string{"/x", "*"}},
		{"/*", []string{"/", "", "/x", "*", "/x/y"}, nil},
		{"/%2A", []string{"*", "/*", "/%2a"}, []string{"/", "/x"}},
		{"/.*", []string{"/.git/config", "/.env", "/x/../.env", "/./x"}, []string{"/x.", "/"}}, // some servers keep dots
		{"/caf\u00e9", []string{"/caf%c3%a9", "/CAF%C3%89", "/caf\u00e9"}, []string{"/cafe"}},
		{"/a%2Fb", []string{"/a%2fb", "/A%2FB"}, []string{"/a/b"}},
		{"/@me", []string{"/%40me", "/@ME"}, nil},
		{"/a;b", []string{"/a;b", "/a%3Bb", "/a;b/"}, []string{"/a", "/a;c"}},
	} {
		conditions := compileAll(t, []policy.Match{{Path: []string{c.pattern}}})
		for _, path := range append(c.yes, c.no...) {
			var r Request
			r.Read(&request.Attributes{PathText: path})
			want := slices.Contains(c.yes, path)
			if got := conditions[0].Holds(&r); got != want {
				t.Errorf("%q matches %q: %v", c.pattern, path, got)
			}
			if got := len(NewMatcher(conditions).AppendMatches(nil, &r)) == 1; got != want {
				t.Errorf("%q is found for %q: %v", c.pattern, path, got)
			}
		}
	}
}

func TestPatternCaseAndSlash(t *testing.T) {
	for _, c := range []struct {
		match   policy.Match
		yes, no []string
	}{
		{policy.Match{Path: []string{"/Api/V*"}, CaseSensitive: true}, []string{"/Api/V1", "/%41pi/V"}, []string{"/api/V1", "/Api/v1"}},
		{policy.Match{Path: []string{"/a"}, StrictSlash: true}, []string{"/a", "/A", "/b/../a"}, []string{"/a/", "/a/.", "/a/b/.."}},
		{policy.Match{Path: []string{"/a/"}, StrictSlash: true}, []string{"/a/", "/a/.", "/a/b/.."}, []string{"/a"}},
		{policy.Match{Path: []string{"/a/*"}, StrictSlash: true}, []string{"/a", "/a/", "/a/b", "/a/b/"}, []string{"/"}},
		{policy.Match{Path: []string{"/a/**/"}, StrictSlash: true}, []string{"/a/", "/a/b/"}, []string{"/a", "/a/b"}},
		{policy.Match{Path: []string{"/"}, StrictSlash: true}, []string{"", "/", "/a/.."}, []string{"/a/"}},
	} {
		conditions := compileAll(t, []policy.Match{c.match})
		for _, path := range append(c.yes, c.no...) {
			var r Request
			r.Read(&request.Attributes{PathText: path})
			want := slices.Contains(c.yes, path)
			if got := len(NewMatcher(conditions).AppendMatches(nil, &r)) == 1; got != want || conditions[0].Holds(&r) != want {
				t.Errorf("%+v matches %q: %v", c.match, path, got)
			}
		}
	}
}

func TestPatternSpelling(t *testing.T) {
	for text, want := range map[string]string{"/API/Search/": "/API/Search", "/a/**": "/a/*", "/**": "/*", "/**/**/a": "/**/a", "/v*": "/v*",
		"/a/*/": "/a/*/", "/caf\u00e9": "/caf%C3%A9", "/%61%2fb%2a": "/a%2Fb%2A", "/": "/", "/a%20b": "/a%20b"} {
		p, why, _ := ParsePattern(text, false, false)
		if why != "" || p.text != want {
			t.Errorf("%q is written %q (%s), want %q", text, p.text, why, want)
		}
	}
}

// TestPatternWorkIsBounded: matching takes time linear in the length of the path, even if pattern
// and path differ only at the very end.
func TestPatternWorkIsBounded(t *testing.T) {
	c := compileAll(t, []policy.Match{{Path: []string{"/**/a/**/a/**/a/**/a/**/a/**/a/**/b"}}})
	var r Request
	r.Read(&request.Attributes{PathText: strings.Repeat("/a", 100_000)})
	// Work that grew with the sixth power of 100,000 would never end.
	if c[0].Holds(&r) || len(NewMatcher(c).AppendMatches(nil, &r)) > 0 {
		t.Error("there is no b")
	}
}
