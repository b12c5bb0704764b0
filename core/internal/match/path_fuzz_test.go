// SPDX-License-Identifier: Apache-2.0

package match

import (
	"github.com/penstock/penstock/internal/test/request"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// FuzzNormalizePath: normalizing a normalized path changes nothing, paths grow by at most a byte,
// and every other spelling is normalized to the same path.
func FuzzNormalizePath(f *testing.F) {
	for _, p := range hostilePaths() {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p string) {
		n := normalized(p)
		if again := normalized(n); again != n {
			t.Fatalf("%q is %q, and that is %q", p, n, again)
		}
		if len(n) > len(p)+1 {
			t.Fatalf("%q grew to %q", p, n)
		}
		if n[0] != '/' || strings.Contains(n, "//") || strings.Contains(n, "?") {
			t.Fatalf("%q is %q", p, n)
		}
		for _, segment := range strings.Split(n, "/") {
			if segment == "." || segment == ".." {
				t.Fatalf("%q keeps dots: %q", p, n)
			}
		}
		checkRespelled(t, p, n)
		sameReadings(t, p)
		var r Request
		if r.Read(&request.Attributes{PathText: p}); r.Long {
			return
		}
		if r.path != n || r.Readings[0].path != n || r.folded != string(appendFolded(nil, n)) {
			t.Fatalf("%q was read as %+v", p, r.Readings)
		}
	})
}

// checkRespelled checks that other spellings of the path p are normalized to n too.
func checkRespelled(t *testing.T, p, n string) {
	if strings.Contains(n, "%") {
		return // the following would respell a lone % or a byte that stays encoded
	}
	var encoded, dotted strings.Builder
	for i := 0; i < len(n); i++ {
		if n[i] == '/' {
			encoded.WriteByte('/')
			dotted.WriteString("//./x/%2e%2E/")
			continue
		}
		encoded.Write([]byte{'%', slim.UpperHex[n[i]>>4], slim.UpperHex[n[i]&15]})
		dotted.WriteByte(n[i])
	}
	for _, spelling := range []string{encoded.String(), dotted.String(), "/.." + n, n + "?" + p, "http://h" + n} {
		if got := normalized(spelling); got != n {
			t.Fatalf("%q is %q, but %q is %q", p, n, spelling, got)
		}
	}
}

// FuzzPattern: no pattern or path causes a panic, and the index, the pattern and the simple
// implementation agree.
func FuzzPattern(f *testing.F) {
	for _, p := range []string{"/", "/*", "/**", "/api/*", "/api/v*", "/a/*/b", "/a/**/b", "/**/a/**/b/**", "/a/*/", "/***", "/a*b",
		"", "x", "/a?b", "/%2A", "/%zz", "/a/../b", "/A%2fb", "/caf\u00e9*", "/a//b", "/**/**", "/.*"} {
		for i, path := range []string{"/api/search", "/a/x/b", "/a/a/b/b/a/b", "/API/V1/"} {
			f.Add(p, path, i%2 == 0, i < 2)
		}
	}
	f.Fuzz(func(t *testing.T, text, path string, caseSensitive, strict bool) {
		p, why, _ := ParsePattern(text, caseSensitive, strict)
		if why != "" {
			return
		}
		again, why, _ := ParsePattern(p.text, caseSensitive, strict)
		if why != "" || again.text != p.text || !equalSegments(again.segments, p.segments) || again.slash != p.slash {
			t.Fatalf("%q is written as %q, which is another: %v %s", text, p.text, again, why)
		}
		c := compileAll(t, []policy.Match{{Path: []string{text}, CaseSensitive: caseSensitive, StrictSlash: strict}})
		m := NewMatcher(c)
		var r Request
		r.Read(&request.Attributes{PathText: path})
		found := len(m.AppendMatches(nil, &r)) == 1
		if holds := c[0].Holds(&r); holds != found {
			t.Fatalf("%q and %q: holds %v, index %v", text, r.path, holds, found)
		}
		if strings.Count(path, "/")+strings.Count(path, `\`) > 24 {
			return // the simple implementation would take too long
		}
		obvious := false
		for i := range r.Readings {
			obvious = obvious || obviousMatch(text, r.Readings[i].path, caseSensitive, strict)
		}
		if found != obvious {
			t.Fatalf("%q and %q: found %v, obviously %v", text, r.path, found, obvious)
		}
	})
}
