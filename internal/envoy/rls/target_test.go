// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"bytes"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// TestTargetsThatAreNotServed: a request is over its limit if servers could read its path or host
// differently and the policy compares paths or hosts. Nothing is charged. Otherwise
// "x@shop.example" would reach the server of shop.example uncounted.
func TestTargetsThatAreNotServed(t *testing.T) {
	s := serve(t, rules(t, `{name: shop, rules: [{name: r, match: {host: shop.example, path: /admin/*}, per: [], limit: 1/1m}]}`), nil)
	unserved := [][]string{
		{"host", "x@shop.example"}, {":authority", "shop%2eexample"}, {"authority", "shop%2Eexample:80"}, {"host", "shop.example:80:80"},
		{"host", "[2001:db8::1%25eth0]"}, {"path", "x:http://shop.example/admin/x"}, {":path", "http://shop.example/admin/x"},
		{":path", "?q"}, {"path", "*", "method", "GET"},
	}
	for _, pairs := range unserved {
		got := s.checkAnswer(false, descriptor("path", "/admin/x", "host", "shop.example"), descriptor(pairs...))
		if fields(got)["content-type"] != "application/problem+json" || !bytes.Contains(got.RawBody, []byte(`"status":429`)) {
			t.Errorf("%v: %v", pairs, got)
		}
	}
	if s.targets != len(unserved) || s.decided != 0 || s.wrong != 0 {
		t.Errorf("%d targets, %d decided, %d wrong", s.targets, s.decided, s.wrong)
	}
	for _, pairs := range [][]string{{"host", "Shop.Example.:80", "path", "/x"}, {"path", "*", "method", "OPTIONS"}, {"host", "", "path", ""},
		{"host", "[2001:db8::1]"}, {"generic_key", "x@shop.example"}} {
		s.checkAnswer(true, descriptor(pairs...))
	}
	s.checkAnswer(true, descriptor("path", "/admin/x", "host", "shop.example")) // the denied request did not charge it
	s.checkAnswer(false, descriptor("path", "/admin/x", "host", "shop.example"))
}

// TestALongValueIsNotUnlimited: a value that is too long to be compared with a pattern is denied,
// because it might match.
func TestALongValueIsNotUnlimited(t *testing.T) {
	s := serve(t, rules(t, `{name: shop, rules: [{name: api, match: {attr: {envoy.descriptor: path, path: "/api/*/action"}}, per: [], limit: 2/1m}]}`), nil)
	long := "/api/" + strings.Repeat("a", 9000) + "/action"
	for _, path := range []string{"/api/x/action", "/api/y/action"} {
		s.checkAnswer(true, descriptor("path", path))
	}
	s.checkAnswer(false, descriptor("path", "/api/z/action"))
	s.checkAnswer(false, descriptor("path", long))
}

// TestOtherPathsAndHosts: if a policy does not compare paths or hosts, the keys path and host may
// have values of other kinds.
func TestOtherPathsAndHosts(t *testing.T) {
	path, host := []string{"path", "path/a"}, []string{"host", "x@y"}
	for rest, c := range map[string]struct{ path, host bool }{
		"per: [attr:path], limit: 9/1m":                                        {true, true},
		"per: [], limit: 9/1m, match: {path: /x/*}":                            {false, true},
		"per: [], limit: 9/1m, match: {host: h}":                               {true, false},
		"per: [host], limit: 9/1m":                                             {true, false},
		"per: [], limit: 9/1m, cost: {match: {path: /x/*}, n: 2}":              {false, true},
		"per: [], limit: 9/1m, cost: {match: {host: h}, n: 2}":                 {true, false},
		"per: [], limit: 9/1m, match: {host: h}, enabled: false":               {true, true},
		"per: [tenant], missing: skip, limit: 9/1m}], tenant: [{host_label: 1": {true, false},
	} {
		s := serve(t, rules(t, "{name: shop, rules: [{name: r, "+rest+"}]}"), nil)
		for _, one := range []struct {
			want  bool
			pairs []string
		}{{c.path, path}, {c.host, host}} {
			if got := s.ask(descriptor(one.pairs...)).OverallCode == pb.RateLimitResponse_OK; got != one.want {
				t.Errorf("%s: %v passes: %t", rest, one.pairs, got)
			}
		}
	}
}
