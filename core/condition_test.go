// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"strings"
	"testing"
)

func holds(t *testing.T, m Match, a *fakeAttributes) bool {
	t.Helper()
	var r request
	r.read(a)
	conditions := compileAll(t, []Match{m})
	found := len(newMatcher(conditions).appendMatches(nil, &r)) == 1
	if found != conditions[0].holds(&r) {
		t.Errorf("%+v and %+v: found is %v", m, a, found)
	}
	return found
}

func TestMethodMatches(t *testing.T) {
	for _, c := range []struct {
		listed []string
		method string
		want   bool
	}{
		{[]string{"GET"}, "GET", true}, {[]string{"GET"}, "HEAD", true}, {[]string{"get"}, "GET", true},
		{[]string{"GET", "HEAD"}, "HEAD", true}, {[]string{"GET"}, "get", true}, {[]string{"GET"}, "POST", false},
		{[]string{"POST", "PUT"}, "PUT", true}, {nil, "ANY", true}, {[]string{"PROPFIND"}, "PROPFIND", true},
	} {
		if got := holds(t, Match{Method: c.listed}, &fakeAttributes{method: c.method}); got != c.want {
			t.Errorf("%q and %s: %v", c.listed, c.method, got)
		}
	}
}

func TestHostMatches(t *testing.T) {
	for _, c := range []struct {
		listed, host string
		want         bool
	}{
		{"example.com", "EXAMPLE.com:8080", true}, {"Example.com.", "example.com", true}, {"example.com", "www.example.com", false},
		{"*.example.com", "www.example.com", true}, {"*.example.com", "a.b.example.com.:1", true},
		{"*.example.com", "example.com", false}, {"*.example.com", ".example.com", false}, {"*.example.com", "badexample.com", false},
		{"[2001:DB8:0::1]", "[2001:db8::1]:443", true}, {"2001:db8::1", "[2001:db8::1]", true}, {"[::1]", "[::2]", false},
		{"192.0.2.1", "192.0.2.1:80", true}, {"example.com", "", false},
	} {
		if got := holds(t, Match{Host: []string{c.listed}}, &fakeAttributes{host: c.host}); got != c.want {
			t.Errorf("%q and %q: %v", c.listed, c.host, got)
		}
	}
}

func TestHeaderMatches(t *testing.T) {
	for _, c := range []struct {
		values []string
		sent   string
		want   bool
	}{
		{nil, "", true}, {[]string{"free"}, "free", true}, {[]string{"free"}, "Free", false}, {[]string{"free"}, "freedom", false},
		{[]string{"free*"}, "freedom", true}, {[]string{"free*"}, "free", true}, {[]string{"a", "b"}, "b", true}, {[]string{"*"}, "", true},
		{[]string{"free"}, "free, free", true}, {[]string{"free"}, "paid,\tfree ,x", true}, {[]string{"fr*"}, "paid, free", true},
		{[]string{"Tue, 1 Jan"}, "Tue, 1 Jan", true}, {[]string{"text/*"}, "image/png, text/html;q=0.5", true}, {[]string{"free"}, "paid", false},
	} {
		m := Match{Header: []HeaderMatch{{Name: "x-plan", Values: c.values}}}
		if got := holds(t, m, &fakeAttributes{headers: map[string]string{"X-Plan": c.sent}}); got != c.want {
			t.Errorf("%q and %q: %v", c.values, c.sent, got)
		}
		if holds(t, m, &fakeAttributes{}) {
			t.Errorf("%q holds without the header", c.values)
		}
	}
}

func TestIPMatches(t *testing.T) {
	for _, c := range []struct {
		listed, peer string
		want         bool
	}{
		{"10.0.0.0/8", "10.9.8.7", true}, {"10.0.0.0/8", "::ffff:10.9.8.7", true}, {"::ffff:10.0.0.0/104", "10.9.8.7", true},
		{"10.1.2.3/8", "10.9.8.7", true}, {"10.0.0.0/8", "11.0.0.1", false}, {"::/0", "10.0.0.1", false}, {"0.0.0.0/0", "::1", false},
		{"0.0.0.0/0", "1.2.3.4", true}, {"2001:db8::/33", "2001:db8:7fff::1", true}, {"2001:db8::/33", "2001:db8:8000::1", false},
		{"fe80::/10", "fe80::1%eth0", true}, {"2001:db8::4/126", "2001:db8::7", true}, {"2001:db8::4/126", "2001:db8::8", false},
	} {
		m := Match{IP: []netip.Prefix{netip.MustParsePrefix(c.listed)}}
		if got := holds(t, m, &fakeAttributes{peer: netip.MustParseAddr(c.peer)}); got != c.want {
			t.Errorf("%s and %s: %v", c.listed, c.peer, got)
		}
		if holds(t, m, &fakeAttributes{}) {
			t.Errorf("%s holds for nobody", c.listed)
		}
	}
}

// Every part must hold.
func TestPartsHoldTogether(t *testing.T) {
	m := Match{Path: []string{"/api/*"}, Method: []string{"GET"}, Host: []string{"shop.example.com"},
		Header: []HeaderMatch{{Name: "X-Plan"}}, IP: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	if !holds(t, m, manyRequest()) {
		t.Error("all parts hold")
	}
	for part, spoil := range map[string]func(*fakeAttributes){
		"path": func(a *fakeAttributes) { a.path = "/" }, "method": func(a *fakeAttributes) { a.method = "PUT" },
		"host": func(a *fakeAttributes) { a.host = "x" }, "header": func(a *fakeAttributes) { a.headers = nil },
		"ip": func(a *fakeAttributes) { a.peer = netip.Addr{} },
	} {
		a := manyRequest()
		if spoil(a); holds(t, m, a) {
			t.Errorf("holds with another %s", part)
		}
	}
}

func TestEndpointIsTheMostSpecific(t *testing.T) {
	patterns := []string{"/*", "/api/*", "/api/v*", "/api/v1*", "/**/search", "/api/*/search", "/API/Search", "/api/**/x/*", "/api/*/"}
	conditions := compileAll(t, []Match{{Path: patterns}, {Method: []string{"GET"}}, {Path: []string{"/*"}}, {Path: []string{"/**/a", "/**"}}})
	for path, want := range map[string]string{"/": "/*", "/api": "/api/*", "/api/search": "/API/Search", "/api/v": "/api/v*",
		"/api/v12/x": "/api/v1*", "/x/search": "/**/search", "/api/a/search": "/api/*/search", "/api/a": "/api/*/",
		"/api/a/x/y": "/api/**/x/*", "/api/a/b": "/api/*", "/api/search;x": "/API/Search"} {
		var r request
		r.read(&fakeAttributes{path: path})
		if got, ok := conditions[0].endpoint(&r); got != want || !ok {
			t.Errorf("%q is under %q, want %q", path, got, want)
		}
	}
	var r request
	r.read(&fakeAttributes{path: "/x/a"})
	if got, ok := conditions[1].endpoint(&r); ok {
		t.Errorf("no patterns, but endpoint %q", got)
	}
	if got, _ := conditions[3].endpoint(&r); got != "/**/a" {
		t.Errorf("/x/a is under %q", got)
	}
	if conditions[2].endpointSpecific() || !conditions[1].endpointSpecific() {
		t.Error("a match of every path names no endpoint, a method does")
	}
}

// All problems are reported, each with its place.
func TestMatchProblems(t *testing.T) {
	problems := matchProblems("rules[2].match", Match{
		Path:   []string{"api", "/fine", "/***"},
		Method: []string{"", "GE T", "HEAD"},
		Host: []string{"", "*", "http://a", "a:80", "a.*", "*.", "b\u00fccher.de", "[::1", "[::1%eth0]", "[::1]:80", "a..b", "a b",
			strings.Repeat("a.", 127) + "a"},
		Header: []HeaderMatch{{Name: ""}, {Name: "X-A:"}, {Name: "host"}, {Name: "X-B", Values: []string{"ok", "", " x", "a\nb"}}},
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
	if problems := matchProblems("m", Match{Path: make([]string, matchListMax+1)}); len(problems) != 1 {
		t.Errorf("a list of %d: %v", matchListMax+1, problems)
	}
	if problems := matchProblems("m", Match{User: make([]string, matchListMax+1)}); len(problems) != 1 {
		t.Errorf("a list of %d users: %v", matchListMax+1, problems)
	}
}
