// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"net/netip"
	"testing"
)

// compileAll compiles matches that are expected to be right.
func compileAll(t testing.TB, matches []Match) []condition {
	t.Helper()
	conditions := make([]condition, len(matches))
	for i, m := range matches {
		conditions[i] = compiledMatch(t, m)
	}
	return conditions
}

// compiledMatch compiles a match that is expected to be right.
func compiledMatch(t testing.TB, m Match) condition {
	t.Helper()
	if problems := matchProblems("match", m); len(problems) > 0 {
		t.Fatal(problems)
	}
	c, ok := compileMatch(&m)
	if !ok {
		t.Fatalf("not compiled: %+v", m)
	}
	return c
}

// matchProblems returns what is wrong with a match.
func matchProblems(at string, m Match) Problems {
	var v verifier
	v.match(at, &m)
	return v.problems
}

// manyMatches returns n matches of a large API: endpoints with methods, subtrees, tenants' hosts, networks and headers.
// Three of them hold for manyRequest.
func manyMatches(n int) []Match {
	matches := make([]Match, n)
	for i := range matches {
		switch service := fmt.Sprintf("/api/v1/service%d", i); i % 10 {
		case 0:
			matches[i] = Match{Path: []string{service + "/*"}}
		case 1:
			matches[i] = Match{Path: []string{service + "/*/items"}, Method: []string{"GET"}}
		case 2:
			matches[i] = Match{Path: []string{service, service + "/search"}, Method: []string{"GET", "POST"}}
		case 3:
			matches[i] = Match{Host: []string{fmt.Sprintf("tenant%d.example.com", i)}}
		case 4:
			matches[i] = Match{IP: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)}}
		case 5:
			matches[i] = Match{Header: []HeaderMatch{{Name: "X-Plan", Values: []string{fmt.Sprintf("plan%d", i)}}}}
		case 9:
			matches[i] = Match{Path: []string{service + "/*"}, Tier: []string{fmt.Sprintf("tier%d", i)}}
		case 6:
			matches[i] = Match{Path: []string{service + "/v*"}, Host: []string{"*.example.com"}}
		default:
			matches[i] = Match{Path: []string{service + "/users"}}
		}
	}
	matches[0] = Match{}
	matches[n/2] = Match{Path: []string{"/api/*"}}
	matches[n-1] = Match{Path: []string{"/api/v1/search"}, Method: []string{"GET"}}
	return matches
}

func manyRequest() *fakeAttributes {
	return &fakeAttributes{path: "/api/v1/search", method: "GET", host: "shop.example.com:8080",
		peer: netip.MustParseAddr("192.0.2.7"), headers: map[string]string{"X-Plan": "free"}}
}

func BenchmarkMatch(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		b.Run(fmt.Sprintf("rules=%d", n), func(b *testing.B) { benchmarkMatch(b, manyMatches(n), manyRequest(), 3) })
	}
}

// BenchmarkMatchSpread asks for another of 10,000 endpoints each time, so that the caches are of less help.
func BenchmarkMatchSpread(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		b.Run(fmt.Sprintf("rules=%d", n), func(b *testing.B) {
			m := newMatcher(compileAll(b, manyMatches(n)))
			requests := make([]*fakeAttributes, n)
			for i := range requests {
				requests[i] = manyRequest()
				requests[i].path = fmt.Sprintf("/api/v1/service%d/users", (i*7919)%n)
			}
			var r request
			var found []int32
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				r.read(requests[i%n])
				found = m.appendMatches(found[:0], &r)
			}
		})
	}
}

// BenchmarkMatchBadCases are policies and requests that the index helps least with.
func BenchmarkMatchBadCases(b *testing.B) {
	const n = 1000
	policy := func(one func(i int) Match) []Match {
		matches := make([]Match, n)
		for i := range matches {
			matches[i] = one(i)
		}
		return matches
	}
	b.Run("one header, many values", func(b *testing.B) {
		benchmarkMatch(b, policy(func(i int) Match {
			return Match{Header: []HeaderMatch{{Name: "X-Plan", Values: []string{fmt.Sprint("plan", i)}}}}
		}), headerRequest("X-Plan", "plan500"), 1)
	})
	b.Run("many headers", func(b *testing.B) {
		benchmarkMatch(b, policy(func(i int) Match {
			return Match{Header: []HeaderMatch{{Name: fmt.Sprint("X-Plan-", i)}}}
		}), headerRequest("X-Plan-500", "x"), 1)
	})
	b.Run("any path, many header values", func(b *testing.B) {
		benchmarkMatch(b, policy(func(i int) Match {
			return Match{Path: []string{"/*"}, Header: []HeaderMatch{{Name: "X-Plan", Values: []string{fmt.Sprint("plan", i)}}}}
		}), headerRequest("X-Plan", "plan500"), 1)
	})
	b.Run("one path, many header values", func(b *testing.B) {
		benchmarkMatch(b, policy(func(i int) Match {
			return Match{Path: []string{"/api/*"}, Header: []HeaderMatch{{Name: "X-Plan", Values: []string{fmt.Sprint("plan", i)}}}}
		}), headerRequest("X-Plan", "plan500"), 1)
	})
	b.Run("all the same, method differs", func(b *testing.B) {
		benchmarkMatch(b, policy(func(int) Match { return Match{Path: []string{"/api/*"}, Method: []string{"POST"}} }), manyRequest(), 0)
	})
	b.Run("one path, many users", func(b *testing.B) {
		benchmarkMatch(b, policy(func(i int) Match {
			return Match{Path: []string{"/api/*"}, User: []string{fmt.Sprint("user", i)}}
		}), manyRequest(), 0)
	})
	b.Run("address ranges of all lengths", func(b *testing.B) {
		benchmarkMatch(b, policy(func(i int) Match {
			a := netip.AddrFrom4([4]byte{192, byte(i >> 2), byte(i >> 4), byte(i)})
			return Match{IP: []netip.Prefix{netip.PrefixFrom(a, 8+i%25)}}
		}), manyRequest(), 84)
	})
	deep := policy(func(i int) Match { return Match{Path: []string{fmt.Sprintf("/**/a%d/**/b", i)}} })
	b.Run("many **", func(b *testing.B) {
		r := manyRequest()
		r.path = "/x/a7/y/z/b"
		benchmarkMatch(b, deep, r, 1)
	})
	b.Run("many **, path of 8 KiB", func(b *testing.B) { benchmarkMatch(b, deep, longRequest(8<<10), 0) })
	b.Run("path of 8 KiB", func(b *testing.B) { benchmarkMatch(b, manyMatches(n), longRequest(8<<10), 1) })
	b.Run("path of 1 MiB, four readings, many **", func(b *testing.B) {
		r := longRequest(1 << 20)
		r.path = r.path[:len(r.path)-5] + `/a;/\b`
		benchmarkMatch(b, deep, r, 1)
	})
}

func headerRequest(name, value string) *fakeAttributes {
	r := manyRequest()
	r.headers = map[string]string{name: value}
	return r
}

// longRequest asks for a path of so many bytes, all of it segments.
func longRequest(bytes int) *fakeAttributes {
	r := manyRequest()
	path := make([]byte, 0, bytes)
	for i := 0; len(path) < bytes; i++ {
		path = append(path, "/a7/"[:2+i%2]...)
	}
	r.path = string(path)
	return r
}

func benchmarkMatch(b *testing.B, matches []Match, a *fakeAttributes, want int) {
	conditions := compileAll(b, matches)
	m := newMatcher(conditions)
	var r request
	var found []int32
	b.ReportAllocs()
	for b.Loop() {
		r.read(a)
		found = m.appendMatches(found[:0], &r)
	}
	hold := 0
	for i := range conditions {
		if conditions[i].holds(&r) {
			hold++
		}
	}
	if len(found) != want || hold != want {
		b.Fatalf("%d conditions found, %d hold, want %d", len(found), hold, want)
	}
}
