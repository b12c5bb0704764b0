// SPDX-License-Identifier: Apache-2.0

package match

import (
	"github.com/penstock/penstock/internal/test/request"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/policy"
)

func holds(t *testing.T, m policy.Match, a *request.Attributes) bool {
	t.Helper()
	var r Request
	r.Read(a)
	conditions := compileAll(t, []policy.Match{m})
	found := len(NewMatcher(conditions).AppendMatches(nil, &r)) == 1
	if found != conditions[0].Holds(&r) {
		t.Errorf("%+v and %+v: found is %v", m, a, found)
	}
	return found
}

func TestMethodMatches(t *testing.T) {
	for _, c := range []struct {
		Entry  []string
		method string
		want   bool
	}{
		{[]string{"GET"}, "GET", true}, {[]string{"GET"}, "HEAD", true}, {[]string{"get"}, "GET", true},
		{[]string{"GET", "HEAD"}, "HEAD", true}, {[]string{"GET"}, "get", true}, {[]string{"GET"}, "POST", false},
		{[]string{"POST", "PUT"}, "PUT", true}, {nil, "ANY", true}, {[]string{"PROPFIND"}, "PROPFIND", true},
	} {
		if got := holds(t, policy.Match{Method: c.Entry}, &request.Attributes{MethodText: c.method}); got != c.want {
			t.Errorf("%q and %s: %v", c.Entry, c.method, got)
		}
	}
}

func TestHostMatches(t *testing.T) {
	for _, c := range []struct {
		Entry, host string
		want        bool
	}{
		{"example.com", "EXAMPLE.com:8080", true}, {"Example.com.", "example.com", true}, {"example.com", "www.example.com", false},
		{"*.example.com", "www.example.com", true}, {"*.example.com", "a.b.example.com.:1", true},
		{"*.example.com", "example.com", false}, {"*.example.com", ".example.com", false}, {"*.example.com", "badexample.com", false},
		{"[2001:DB8:0::1]", "[2001:db8::1]:443", true}, {"2001:db8::1", "[2001:db8::1]", true}, {"[::1]", "[::2]", false},
		{"192.0.2.1", "192.0.2.1:80", true}, {"example.com", "", false},
	} {
		if got := holds(t, policy.Match{Host: []string{c.Entry}}, &request.Attributes{HostText: c.host}); got != c.want {
			t.Errorf("%q and %q: %v", c.Entry, c.host, got)
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
		m := policy.Match{Header: []policy.HeaderMatch{{Name: "x-plan", Values: c.values}}}
		if got := holds(t, m, &request.Attributes{Headers: map[string]string{"X-Plan": c.sent}}); got != c.want {
			t.Errorf("%q and %q: %v", c.values, c.sent, got)
		}
		if holds(t, m, &request.Attributes{}) {
			t.Errorf("%q holds without the header", c.values)
		}
	}
}

// TestEveryElementMatches: a condition is certain if it matches every element of a header, or if it
// lists the whole value. Commas in a field that is no list separate nothing.
func TestEveryElementMatches(t *testing.T) {
	many := []string{"small, large", "tiny*"}
	for i := range fewValues {
		many = append(many, strconv.Itoa(i))
	}
	for _, c := range []struct {
		name   string
		values []string
		sent   string
		want   bool
	}{
		{"X-Size", []string{"small"}, "small", true}, {"X-Size", []string{"small"}, "small, large", false}, {"X-Size", []string{"small"}, "large,small", false},
		{"X-Size", []string{"small"}, "small ,\tsmall", true}, {"X-Size", []string{"small"}, "small,", false}, {"X-Size", []string{"small"}, ", small", false},
		{"X-Size", []string{"small*"}, "small, large", false}, {"X-Size", []string{"small*"}, "small, smaller", true}, {"X-Size", []string{"*"}, "small, large", true},
		{"X-Size", nil, "small, large", true}, {"X-Size", []string{"small", "large"}, "small, large", true}, {"X-Size", []string{"small, large"}, "small, large", true},
		{"X-Size", []string{"small, large", "small"}, "small, large, small", false}, {"X-Size", []string{"small, large*", "small"}, "small, large", false},
		{"X-Size", many, "small, large", true}, {"X-Size", many, "3, tinier", false}, {"X-Size", many, "3, tiny4", true}, {"X-Size", many, "3, large", false},
		{"User-Agent", []string{"ShopApp/*"}, "ShopApp/1 (KHTML, like Gecko)", true}, {"User-Agent", []string{"ShopApp/*"}, "x, ShopApp/1", false},
		{"Date", []string{"Tue, *"}, "Tue, 1 Jan", true}, {"Authorization", []string{"Digest *"}, "Digest a=1, b=2", true},
	} {
		conditions := compileAll(t, []policy.Match{{Header: []policy.HeaderMatch{{Name: c.name, Values: c.values}}}})
		a := &request.Attributes{Headers: map[string]string{c.name: c.sent}}
		var r Request
		if r.Read(a); !strings.Contains(c.sent, "x, ") && !conditions[0].Holds(&r) {
			t.Errorf("%q and %q: does not hold", c.values, c.sent)
		}
		if got := conditions[0].Certain(&r); got != c.want {
			t.Errorf("%s %q and %q: certain is %v", c.name, c.values, c.sent, got)
		}
		conditions[0].EveryReading = true
		if found := NewMatcher(conditions).AppendMatches(nil, &r); len(found) == 1 != c.want {
			t.Errorf("%s %q and %q: with EveryReading, found is %v", c.name, c.values, c.sent, found)
		}
	}
}

func TestIPMatches(t *testing.T) {
	for _, c := range []struct {
		Entry, peer string
		want        bool
	}{
		{"10.0.0.0/8", "10.9.8.7", true}, {"10.0.0.0/8", "::ffff:10.9.8.7", true}, {"::ffff:10.0.0.0/104", "10.9.8.7", true},
		{"10.1.2.3/8", "10.9.8.7", true}, {"10.0.0.0/8", "11.0.0.1", false}, {"::/0", "10.0.0.1", false}, {"0.0.0.0/0", "::1", false},
		{"0.0.0.0/0", "1.2.3.4", true}, {"2001:db8::/33", "2001:db8:7fff::1", true}, {"2001:db8::/33", "2001:db8:8000::1", false},
		{"fe80::/10", "fe80::1%eth0", true}, {"2001:db8::4/126", "2001:db8::7", true}, {"2001:db8::4/126", "2001:db8::8", false},
	} {
		m := policy.Match{IP: []netip.Prefix{netip.MustParsePrefix(c.Entry)}}
		if got := holds(t, m, &request.Attributes{PeerAddr: netip.MustParseAddr(c.peer)}); got != c.want {
			t.Errorf("%s and %s: %v", c.Entry, c.peer, got)
		}
		if holds(t, m, &request.Attributes{}) {
			t.Errorf("%s holds for nobody", c.Entry)
		}
	}
}

// TestPartsHoldTogether: every part of a match must hold.
func TestPartsHoldTogether(t *testing.T) {
	m := policy.Match{Path: []string{"/api/*"}, Method: []string{"GET"}, Host: []string{"shop.example.com"},
		Header: []policy.HeaderMatch{{Name: "X-Plan"}}, IP: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	if !holds(t, m, manyRequest()) {
		t.Error("all parts hold")
	}
	for part, spoil := range map[string]func(*request.Attributes){
		"path": func(a *request.Attributes) { a.PathText = "/" }, "method": func(a *request.Attributes) { a.MethodText = "PUT" },
		"host": func(a *request.Attributes) { a.HostText = "x" }, "header": func(a *request.Attributes) { a.Headers = nil },
		"ip": func(a *request.Attributes) { a.PeerAddr = netip.Addr{} },
	} {
		a := manyRequest()
		if spoil(a); holds(t, m, a) {
			t.Errorf("holds with another %s", part)
		}
	}
}

func TestEndpointIsTheMostSpecific(t *testing.T) {
	patterns := []string{"/*", "/api/*", "/api/v*", "/api/v1*", "/**/search", "/api/*/search", "/API/Search", "/api/**/x/*", "/api/*/"}
	conditions := compileAll(t, []policy.Match{{Path: patterns}, {Method: []string{"GET"}}, {Path: []string{"/*"}}, {Path: []string{"/**/a", "/**"}}})
	for path, want := range map[string]string{"/": "/*", "/api": "/api/*", "/api/search": "/API/Search", "/api/v": "/api/v*",
		"/api/v12/x": "/api/v1*", "/x/search": "/**/search", "/api/a/search": "/api/*/search", "/api/a": "/api/*/",
		"/api/a/x/y": "/api/**/x/*", "/api/a/b": "/api/*", "/api/search;x": "/API/Search"} {
		var r Request
		r.Read(&request.Attributes{PathText: path})
		if got, ok := conditions[0].Endpoint(&r); got != want || !ok {
			t.Errorf("%q is under %q, want %q", path, got, want)
		}
	}
	var r Request
	r.Read(&request.Attributes{PathText: "/x/a"})
	if got, ok := conditions[1].Endpoint(&r); ok {
		t.Errorf("no patterns, but endpoint %q", got)
	}
	if got, _ := conditions[3].Endpoint(&r); got != "/**/a" {
		t.Errorf("/x/a is under %q", got)
	}
	if conditions[2].EndpointSpecific() || !conditions[1].EndpointSpecific() {
		t.Error("a match of every path names no endpoint, a method does")
	}
}
