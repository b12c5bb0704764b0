// SPDX-License-Identifier: Apache-2.0

package core

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func normalized(p string) string {
	dst := appendSegments(nil, string(appendDecoded(nil, trimToPath(p), true)), 0)
	return string(unescapeSemicolons(dst, 0))
}

// Each line is one resource: all spellings of it are one path.
func TestPathSpellingsAgree(t *testing.T) {
	for want, spellings := range map[string][]string{
		"/api/search": {"/api/search", "/api//search", "//api/search", "///api///search", "/api/./search", "/./api/search",
			"/x/../api/search", "/../api/search", "/../../api/search", "/x/y/../../api/search", "/x//../api/search",
			"/%61pi/search", "/%61%70%69/%73earch", "/api/%2e/search", "/x/%2e%2e/api/search", "/x/%2E./api/search",
			"/x/.%2e/api/search", "/x/%2e%2E/%2e/api//search", "api/search", "http://host/api/search",
			"HTTPS://user@host:1/api/search", "/api/search?q=1", "/api/search?a=/../../x", "http://host/api/search?x"},
		"/api/search/":   {"/api/search/", "/api/search//", "/api/search/.", "/api/search/%2e", "/api/search/x/..", "/api/search/x/../"},
		"/":              {"", "/", "//", "/.", "/..", "/../..", ".", "..", "/x/..", "/%2e", "http://host", "http://host?x", "?x"},
		"/*":             {"*", "/*", "/%2A", "/%2a"},
		"/@me/a,b":       {"/@me/a,b", "/%40me/a%2Cb", "/%40me/a%2cb"},
		"/a~b_c-d.e":     {"/a~b_c-d.e", "/a%7Eb%5Fc%2Dd%2Ee"},
		"/caf\u00e9":     {"/caf\u00e9", "/caf%C3%A9", "/caf%c3%a9"},
		"/my file":       {"/my file", "/my%20file"},
		"/api%2Fsearch":  {"/api%2Fsearch", "/api%2fsearch"},       // an encoded slash separates nothing
		"/x/..%2Fsearch": {"/x/..%2Fsearch", "/x/%2e%2e%2fsearch"}, // and so this is one segment
		"/%252e%252e/a":  {"/%252e%252e/a", "/x/../%252e%252e/a"},  // decoded once, never twice
		"/a%3Fb":         {"/a%3Fb", "/a%3fb"},
		"/a+b":           {"/a+b", "/a%2Bb"}, // a plus is a plus
		"/%zz/a":         {"/%zz/a", "/%zz/%61", "/%zz//a"},
		"/100%":          {"/100%", "/%3100%"},
		"/%%361":         {"/%%361"}, // "%61" would be another path the next time
		"/%4%31":         {"/%4%31"},
		"/%zA":           {"/%zA", "/%z%41"},
		"/%C0%AF":        nil,
		"/...":           {"/...", "/%2e..", "/a/../..."},
	} {
		for _, spelling := range spellings {
			if got := normalized(spelling); got != want {
				t.Errorf("%q is %q, want %q", spelling, got, want)
			}
		}
	}
}

// Overlong UTF-8, as some old servers decoded it, spells neither a slash nor a dot.
func TestPathOverlongIsNoSlash(t *testing.T) {
	if got, want := normalized("/a/%c0%af%c0%ae%c0%ae/b"), "/a/\xc0\xaf\xc0\xae\xc0\xae/b"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPathControlBytesAreBytes(t *testing.T) {
	if got, want := normalized("/a%00b/%0a"), "/a\x00b/\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The look that spares most paths the work must never spare one that needs it.
func TestPathPlainMeansNormalized(t *testing.T) {
	for _, p := range append(hostilePaths(), "/a/b", "/a.b/c", "/a/b/", "/A", "/a;b", `/a\b`, "/\u00e9") {
		traits := inspectPath(p)
		if traits.plain && normalized(p) != p {
			t.Errorf("%q counts as normalised and is %q", p, normalized(p))
		}
		if traits.folded && string(appendFolded(nil, p)) != p {
			t.Errorf("%q counts as folded", p)
		}
	}
}

// What one server reads as parameters or separators another takes as letters: both readings are looked at.
func TestPathReadings(t *testing.T) {
	for p, want := range map[string][]string{
		"/api/search":            {"/api/search"},
		"/api/search;x=1":        {"/api/search;x=1", "/api/search"},
		"/api;v=1/search;x=1":    {"/api;v=1/search;x=1", "/api/search"},
		"/x/..;/api":             {"/x/..;/api", "/api"},
		"/api;":                  {"/api;", "/api"},
		"/api%3Bx":               {"/api;x"}, // encoded it starts no parameters
		`/x\..\api`:              {`/x\..\api`, "/api"},
		"/x%5C..%5capi":          {`/x\..\api`, "/api"},
		`/a;p\..\b`:              {`/a;p\..\b`, "/a", "/b"},
		`/a\..;\..\api`:          {`/a\..;\..\api`, `/a\..`, "/a/api", "/api"},
		"/x%255C..":              {"/x%255C.."},
		`\api\search`:            {`/\api\search`, "/api/search"},
		"http://host/api;x":      {"/api;x", "/api"},
		"//h/api":                {"/h/api", "/api"},
		"//u@h:80?/api":          {"/u@h:80", "/"},
		"///h//api":              {"/h/api", "/api"},
		`/\h\api`:                {`/\h\api`, "/h/api", "/api"},
		"/.//h/api":              {"/h/api"},
		"api/..;/search":         {"/api/..;/search", "/search"},
		"/caf\u00c9;p/\u00c9":    {"/caf\u00c9;p/\u00c9", "/caf\u00c9/\u00c9"},
		"/x;a/../api/%2e%2e;/go": {"/api/..;/go", "/go"},
	} {
		var r request
		r.read(&fakeAttributes{path: p})
		var got []string
		for _, reading := range r.readings {
			got = append(got, reading.path)
			if reading.folded != string(appendFolded(nil, reading.path)) {
				t.Errorf("%q: %q is folded to %q", p, reading.path, reading.folded)
			}
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%q reads as %q, want %q", p, got, want)
		}
	}
}

func TestFoldAgreesWithEqualFold(t *testing.T) {
	words := []string{"api", "API", "Api", "caf\u00e9", "CAF\u00c9", "\u212aelvin", "kelvin", "KELVIN", "stra\u00dfe", "STRA\u1e9eE",
		"\u03c3\u03c2\u03a3", "\u03a3\u03a3\u03a3", "\u023a", "\u2c65", "\u017fun", "sun", "\u4e16", "\u0130", "i", "I", "\u0131"}
	for _, a := range words {
		for _, b := range words {
			folded := string(appendFolded(nil, a)) == string(appendFolded(nil, b))
			if folded != strings.EqualFold(a, b) {
				t.Errorf("%q and %q: folded alike is %v", a, b, folded)
			}
		}
	}
	for r := rune(0); r < 0x20000; r++ {
		if utf8.ValidRune(r) && foldRune(foldRune(r)) != foldRune(r) {
			t.Fatalf("folding %U twice is another letter", r)
		}
	}
}

func TestHostIsCanonical(t *testing.T) {
	for host, want := range map[string]string{
		"": "", "example.com": "example.com", "EXAMPLE.com": "example.com", "example.com:8080": "example.com",
		"Example.COM.:443": "example.com", "example.com.": "example.com", "192.0.2.1:80": "192.0.2.1",
		"[2001:DB8::1]:443": "[2001:db8::1]", "[2001:db8:0:0:0:0:0:1]": "[2001:db8::1]", "::1": "[::1]", "[::1]": "[::1]",
		"[FE80::1%25eth0]:1": "[fe80::1%25eth0]:1", "a:1:2": "a:1:2", "[": "[", "[::": "[::]", ":": "", ".": "",
	} {
		var r request
		r.read(&fakeAttributes{host: host})
		if r.host != want {
			t.Errorf("host %q is %q, want %q", host, r.host, want)
		}
	}
}

func TestMethodIsCanonical(t *testing.T) {
	for method, want := range map[string]string{"GET": "GET", "HEAD": "GET", "get": "GET", "head": "GET", "Post": "POST",
		"PROPFIND": "PROPFIND", "": ""} {
		var r request
		r.read(&fakeAttributes{method: method})
		if r.method != want {
			t.Errorf("method %q is %q, want %q", method, r.method, want)
		}
	}
}

// A path is read to its end or not at all, so that padding hides nothing.
func TestPathIsReadWholeOrNotAtAll(t *testing.T) {
	c := compileAll(t, []Match{{Path: []string{"/api/search"}}})
	var r request
	for _, padding := range []string{"/", "/.", "/x/..", "/%2e", "/;x/%2e./x/..", `\`} {
		for n := range 2 * pathPiecesMax {
			r.read(&fakeAttributes{path: strings.Repeat(padding, n) + "/API/search"})
			if !r.long && !c[0].holds(&r) {
				t.Errorf("%d times %q hides the path", n, padding)
			}
		}
		if !r.long || len(r.readings) != 0 {
			t.Errorf("%d times %q is read", 2*pathPiecesMax, padding)
		}
	}
	r.read(&fakeAttributes{path: "/" + strings.Repeat("A", PathBytesMax)})
	if !r.long {
		t.Error("a long segment is read")
	}
	r.read(&fakeAttributes{path: "/API"})
	if r.long || r.folded != "/api" {
		t.Errorf("folded is %q", r.folded)
	}
}

// hostilePaths are spellings seen in attacks, for the tests and as seeds of the fuzz targets.
func hostilePaths() []string {
	return []string{"", "/", "*", "?", "/api/search", "/api//search", "/api/./search", "/x/../api/search", "/%61pi/search",
		"/API/search", "/api/search;x=1", `/api\search`, "/api%5Csearch", "/api/search/%2e", "/api/search%2e", "/%zz", "/%", "/%2",
		"/%%361", "/%3%31", "/%252e%252e", "/%c0%af", "/%00", "/a\x00b", "http://h/api", "https://", "/..;/a", "/x/..%2fa",
		"/caf%C3%A9", "/CAF\u00c9", "/\xff\xfe", "//..//..//", "/a/b/../../..", "/#a", "/a b", "/a%23b", "/%2A", "/%3fb"}
}
