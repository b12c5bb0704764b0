// SPDX-License-Identifier: Apache-2.0

package match

import (
	"github.com/penstock/penstock/internal/test/request"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/penstock/penstock/core/policy"
)

func normalized(p string) string {
	return string(appendSegments(nil, decodedText(trimToPath(p)), 0, ""))
}

// decodedText returns a path or segment with its escapes decoded.
func decodedText(s string) string {
	decoded, _ := appendDecoded(nil, s, neverDecoded)
	return string(decoded)
}

// TestPathSpellingsAgree: all spellings in an entry of the table denote one path.
func TestPathSpellingsAgree(t *testing.T) {
	for want, spellings := range map[string][]string{
		"/api/search": {"/api/search", "/api//search", "//api/search", "///api///search", "/api/./search", "/./api/search",
			"/x/../api/search", "/../api/search", "/../../api/search", "/x/y/../../api/search", "/x//../api/search",
			"/%61pi/search", "/%61%70%69/%73earch", "/api/%2e/search", "/x/%2e%2e/api/search", "/x/%2E./api/search",
			"/x/.%2e/api/search", "/x/%2e%2E/%2e/api//search", "api/search", "http://host/api/search",
			"HTTPS://user@host:1/api/search", "/api/search?q=1", "/api/search?a=/../../x", "http://host/api/search?x"},
		"/api/search/": {"/api/search/", "/api/search//", "/api/search/.", "/api/search/%2e", "/api/search/x/..", "/api/search/x/../"},
		"/":            {"", "/", "//", "/.", "/..", "/../..", ".", "..", "/x/..", "/%2e", "http://host", "http://host?x", "?x"},
		"/*":           {"*", "/*", "/%2A", "/%2a"},
		"/@me/a,b":     {"/@me/a,b", "/%40me/a%2Cb", "/%40me/a%2cb"},
		"/a~b_c-d.e":   {"/a~b_c-d.e", "/a%7Eb%5Fc%2Dd%2Ee"},
		"/caf\u00e9":   {"/caf\u00e9", "/caf%C3%A9", "/caf%c3%a9"},
		"/my file":     {"/my file", "/my%20file"},
		// an encoded slash does not separate here
		"/api%2Fsearch":  {"/api%2Fsearch", "/api%2fsearch"},
		"/x/..%2Fsearch": {"/x/..%2Fsearch", "/x/%2e%2e%2fsearch"}, // so this is one segment
		"/%252e%252e/a":  {"/%252e%252e/a", "/x/../%252e%252e/a"},  // decoded once, never twice
		"/a%3Fb":         {"/a%3Fb", "/a%3fb"},
		"/a+b":           {"/a+b", "/a%2Bb"}, // a plus is not a space in a path
		"/%zz/a":         {"/%zz/a", "/%zz/%61", "/%zz//a"},
		"/100%":          {"/100%", "/%3100%"},
		"/%%361":         {"/%%361"}, // if "%61" were decoded again, the path would be a different one
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

// TestPathOverlongIsNoSlash: overlong UTF-8, which some old servers decoded, is neither a slash nor
// a dot.
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

// TestPathPlainMeansNormalized: the quick inspection never reports that a path is normalized if it
// is not.
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

// TestPathReadings: some servers treat certain characters as separators and others as ordinary
// characters. Both readings are matched.
func TestPathReadings(t *testing.T) {
	for p, want := range map[string][]string{
		"/api/search":         {"/api/search"},
		"/api/search;x=1":     {"/api/search;x=1", "/api/search"},
		"/api;v=1/search;x=1": {"/api;v=1/search;x=1", "/api/search", "/api"},
		"/x/..;/api":          {"/x/..;/api", "/api", "/x/../api", "/", "/x/.."},
		"/api;":               {"/api;", "/api"},
		// an encoded semicolon starts parameters only for some servers
		"/api%3Bx":               {"/api;x", "/api"},
		`/x\..\api`:              {`/x\..\api`, "/api", "/x/../api"},
		`/admin\..`:              {`/admin\..`, "/", "/admin/.."},
		"/x%5C..%5capi":          {`/x\..\api`, "/api", "/x/../api"},
		`/a;p\..\b`:              {`/a;p\..\b`, "/a", "/b", "/a;p/../b", "/a/../b"},
		`/a\..;\..\api`:          {`/a\..;\..\api`, `/a\..`, "/a/api", "/api", "/a/..;/../api", "/a/../../api", "/", "/a/.."},
		"/x%255C..":              {"/x%255C.."},
		`\api\search`:            {`/\api\search`, "/api/search"},
		"http://host/api;x":      {"/api;x", "/api"},
		"//h/api":                {"/h/api", "/api"},
		"//u@h:80?/api":          {"/u@h:80", "/"},
		"///h//api":              {"/h/api", "/api"},
		`/\h\api`:                {`/\h\api`, "/h/api", "/api"},
		"/.//h/api":              {"/h/api", "/./h/api"},
		"api/..;/search":         {"/api/..;/search", "/search", "/api/../search", "/", "/api/.."},
		"/caf\u00c9;p/\u00c9":    {"/caf\u00c9;p/\u00c9", "/caf\u00c9/\u00c9", "/caf\u00c9"},
		"/x;a/../api/%2e%2e;/go": {"/api/..;/go", "/go", "/x;a/../api/..;/go", "/x/../api/../go", "/api/../go", "/x"},
		"/admin%2Fx":             {"/admin%2Fx", "/admin/x"},
		"/ADMIN%2fx":             {"/ADMIN%2Fx", "/ADMIN/x"},
		"/%2Fadmin":              {"/%2Fadmin", "/admin", "/"},
		"/y/..%2fadmin%2F":       {"/y/..%2Fadmin%2F", "/admin/", "/y/../admin/"},
		"/admin%252fx":           {"/admin%252fx"},
		"/a%2F..;%2Fb":           {"/a%2F..;%2Fb", "/a%2F..", "/a/..;/b", "/b", "/a/../b", "/", "/a/.."},
		"/a%5C..%2F%3Bb/c":       {`/a\..%2F;b/c`, "/a/..%2F;b/c", `/a\../;b/c`, "/;b/c", `/a\..%2F/c`, "/a/..%2F/c", `/a\../c`, "/c", "/a/../;b/c", "/a/../c", `/a\..%2F`, "/a/..%2F", `/a\../`, "/", "/a/../"},
		"/a%5C..%2F;%3Bb/c":      nil, // too many readings
		"/admin/..":              {"/", "/admin/.."},
		"/admin/x/%2e%2E/y/.":    {"/admin/y/", "/admin/x/../y/.", "/admin/x/../y/"},
		"/.well-known/x.y/..z/":  {"/.well-known/x.y/..z/"},
		"//h%2Fadmin/x":          {"/h%2Fadmin/x", "/x", "/h/admin/x", "/admin/x"},
		"http://host/a%2Fb":      {"/a%2Fb", "/a/b"},
		// some servers drop parts of a path before they read it
		"/api;x/y":                    {"/api;x/y", "/api/y", "/api"},
		"/api%3Bx/y;z/u":              {"/api;x/y;z/u", "/api;x/y/u", "/api/y/u", "/api", "/api;x/y", "/api/y"},
		"/api/x%0A":                   {"/api/x\n", "/api/x"},
		"/api%0A/x%0a%0A?":            {"/api\n/x\n\n", "/api\n/x\n"},
		"/ap\xffi%C3/x":               {"/ap\xffi\xc3/x", "/api/x"},
		"/%E2%82\xac/%80%e2%82%AC%0A": {"/\u20ac/\x80\u20ac\n", "/\u20ac/\u20ac\n", "/\u20ac/\x80\u20ac", "/\u20ac/\u20ac"},
		"/caf%C3%A9/%0A%":             {"/caf\u00e9/\n%"},
	} {
		var r Request
		r.Read(&request.Attributes{PathText: p})
		var got []string
		for _, reading := range r.Readings {
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

// TestFoldAgreesWithServers tests that two letters are folded alike if a server that folds case, or
// converts to lower or upper case, takes them for one letter.
func TestFoldAgreesWithServers(t *testing.T) {
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if !utf8.ValidRune(r) {
			continue
		}
		folded := foldRune(r)
		for _, other := range []rune{folded, unicode.SimpleFold(r), unicode.ToLower(r), unicode.ToUpper(r)} {
			if foldRune(other) != folded {
				t.Errorf("%U and %U are folded to %U and %U", r, other, folded, foldRune(other))
			}
		}
		if utf8.RuneLen(folded) > utf8.RuneLen(r) {
			t.Errorf("%U is folded to %U, which has more bytes", r, folded)
		}
	}
}

// TestFoldAgreesWithEqualFold tests that other letters are not folded alike.
func TestFoldAgreesWithEqualFold(t *testing.T) {
	words := []string{"api", "API", "Api", "caf\u00e9", "CAF\u00c9", "\u212aelvin", "kelvin", "KELVIN", "stra\u00dfe", "STRA\u1e9eE",
		"\u03c3\u03c2\u03a3", "\u03a3\u03a3\u03a3", "\u023a", "\u2c65", "\u017fun", "sun", "\u4e16", "\u0130", "i", "I", "\u0131"}
	latin := strings.NewReplacer("\u0130", "i", "\u0131", "i") // as in Turkish
	for _, a := range words {
		for _, b := range words {
			folded := string(appendFolded(nil, a)) == string(appendFolded(nil, b))
			if folded != strings.EqualFold(latin.Replace(a), latin.Replace(b)) {
				t.Errorf("%q and %q: folded alike is %v", a, b, folded)
			}
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
		var r Request
		r.Read(&request.Attributes{HostText: host})
		if r.Host != want {
			t.Errorf("host %q is %q, want %q", host, r.Host, want)
		}
	}
}

func TestMethodIsCanonical(t *testing.T) {
	for method, want := range map[string]string{"GET": "GET", "HEAD": "GET", "get": "GET", "head": "GET", "Post": "POST",
		"PROPFIND": "PROPFIND", "": ""} {
		var r Request
		r.Read(&request.Attributes{MethodText: method})
		if r.Method != want {
			t.Errorf("method %q is %q, want %q", method, r.Method, want)
		}
	}
}

// TestLongPathWithParameters tests paths in which only the last segment has parameters. Such a path
// has two readings, so it is read up to the general bound.
func TestLongPathWithParameters(t *testing.T) {
	var r Request
	for _, end := range []string{";jsessionid=1", ";"} {
		path := "/" + strings.Repeat("a", policy.PathBytesMax-1-len(end))
		r.Read(&request.Attributes{PathText: path + end})
		if r.Long || len(r.Readings) != 2 || r.Readings[1].path != path {
			t.Errorf("%d bytes with %q: long %v, %d readings", len(path+end), end, r.Long, len(r.Readings))
		}
	}
}

// TestPathIsReadWholeOrNotAtAll: a path is read completely or not at all, so that padding cannot
// hide a part of it.
func TestPathIsReadWholeOrNotAtAll(t *testing.T) {
	c := compileAll(t, []policy.Match{{Path: []string{"/api/search"}}})
	var r Request
	for _, padding := range []string{"/", "/.", "/x/..", "/%2e", "/;x/%2e./x/..", `\`} {
		for n := range 2 * PathPiecesMax {
			r.Read(&request.Attributes{PathText: strings.Repeat(padding, n) + "/API/search"})
			if !r.Long && !c[0].Holds(&r) {
				t.Errorf("%d times %q hides the path", n, padding)
			}
		}
		if !r.Long || len(r.Readings) != 0 {
			t.Errorf("%d times %q is read", 2*PathPiecesMax, padding)
		}
	}
	r.Read(&request.Attributes{PathText: "/" + strings.Repeat("A", policy.PathBytesMax)})
	if !r.Long {
		t.Error("a long segment is read")
	}
	r.Read(&request.Attributes{PathText: "/API"})
	if r.Long || r.folded != "/api" {
		t.Errorf("folded is %q", r.folded)
	}
}

// hostilePaths are spellings known from attacks, for tests and as seeds of fuzz targets.
func hostilePaths() []string {
	return []string{"", "/", "*", "?", "/api/search", "/api//search", "/api/./search", "/x/../api/search", "/%61pi/search",
		"/API/search", "/api/search;x=1", `/api\search`, "/api%5Csearch", "/api/search/%2e", "/api/search%2e", "/%zz", "/%", "/%2",
		"/%%361", "/%3%31", "/%252e%252e", "/%c0%af", "/%00", "/a\x00b", "http://h/api", "https://", "/..;/a", "/x/..%2fa",
		"/caf%C3%A9", "/CAF\u00c9", "/\xff\xfe", "//..//..//", "/a/b/../../..", "/#a", "/a b", "/a%23b", "/%2A", "/%3fb"}
}

// TestPathsThatServersResolveOtherwise: some servers resolve these spellings to a protected path
// and others do not. The rules of the protected path apply to all of them.
func TestPathsThatServersResolveOtherwise(t *testing.T) {
	for _, p := range []string{
		"/admin//../x", "/admin/y//../../x", "/admin//%2e%2e/x", `/admin\\..\x`, `/admin/\../x`, "/admin//./..//x",
		"//a%5cb@h/admin/x", "//*%5Cu@h/admin/x", `/\a%5cb@h\admin/x`, "//a%2Fb@h/admin/x",
		"/admin%3ba/x", "/health/..%3b/admin/x", "/admin%3Ba=%2F;b/x",
		`/admin\y%5c/../x`, `/y\..\admin/x`, `/y%5C..\..\admin/x`,
		"/admin%2F%2F../x", "/admin%5C%5C../x",
		`//a\b@h/admin/x`, `//a\b/admin/x`, "//a%5Cb/admin/x", `/%2Fu"@h/admin/x`, "/%2fh/admin/x", "/%5Ch/admin/x", `/%5c\h\admin/x`,
		"/admin/%2e/../x", "/admin/%2E%2e/../x", "/y/../admin/%2e/./../x", "/admin%2Fy/z%2e/../%2e%2e/x",
		`/;\y/x\..\admin/x`, "/;%2Fx/%2Fadmin/x", "/;%2fy/admin%2Fx", "/./%5ch/admin/x", `/..;/\h\admin\x`,
		"/admin/x%0A", "/admin/x%0a?q", "/%61dmin/x%0A", "/y/..%2Fadmin/x%0A",
		"/admin/x;/y", "/admin/x;", "/admin/./x;a=b/c;d", "/admin/x%3B/y", "/admin/x%3b;/y", "/y/../admin/x;/../z", "/admin/x%0A;/y",
		"/ad\xffmin/x", "/ad%FFmin/%80x", "/admin/x%C3", "/admin/x%e2%82", "/admin/x\xa0", "/%FFadmin%F0/%ffx%0A", "/y/%FF..\x80/admin/x;/z",
	} {
		var r Request
		r.Read(&request.Attributes{PathText: p})
		if !slices.ContainsFunc(r.Readings, func(way pathReading) bool { return way.path == "/admin/x" }) {
			t.Errorf("%q is read as %+v, and never as /admin/x", p, r.Readings)
		}
	}
}
