// SPDX-License-Identifier: Apache-2.0

package match

import (
	"fmt"
	"github.com/penstock/penstock/internal/test/request"
	"net/netip"
	"testing"

	"github.com/penstock/penstock/core/policy"
)

// compileAll compiles valid matches.
func compileAll(t testing.TB, matches []policy.Match) []Condition {
	t.Helper()
	conditions := make([]Condition, len(matches))
	for i, m := range matches {
		conditions[i] = compiledMatch(t, m)
	}
	return conditions
}

// compiledMatch compiles a valid match.
func compiledMatch(t testing.TB, m policy.Match) Condition {
	t.Helper()
	c, ok := CompileMatch(&m)
	if !ok {
		t.Fatalf("not compiled: %+v", m)
	}
	return c
}

// manyMatches returns n matches of a large API: endpoints with methods, subtrees, hosts of tenants,
// networks and headers. Three of them hold for manyRequest.
func manyMatches(n int) []policy.Match {
	matches := make([]policy.Match, n)
	for i := range matches {
		switch service := fmt.Sprintf("/api/v1/service%d", i); i % 10 {
		case 0:
			matches[i] = policy.Match{Path: []string{service + "/*"}}
		case 1:
			matches[i] = policy.Match{Path: []string{service + "/*/items"}, Method: []string{"GET"}}
		case 2:
			matches[i] = policy.Match{Path: []string{service, service + "/search"}, Method: []string{"GET", "POST"}}
		case 3:
			matches[i] = policy.Match{Host: []string{fmt.Sprintf("tenant%d.example.com", i)}}
		case 4:
			matches[i] = policy.Match{IP: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)}}
		case 5:
			matches[i] = policy.Match{Header: []policy.HeaderMatch{{Name: "X-Plan", Values: []string{fmt.Sprintf("plan%d", i)}}}}
		case 9:
			matches[i] = policy.Match{Path: []string{service + "/*"}, Tier: []string{fmt.Sprintf("tier%d", i)}}
		case 6:
			matches[i] = policy.Match{Path: []string{service + "/v*"}, Host: []string{"*.example.com"}}
		default:
			matches[i] = policy.Match{Path: []string{service + "/users"}}
		}
	}
	matches[0] = policy.Match{}
	matches[n/2] = policy.Match{Path: []string{"/api/*"}}
	matches[n-1] = policy.Match{Path: []string{"/api/v1/search"}, Method: []string{"GET"}}
	return matches
}

func manyRequest() *request.Attributes {
	return &request.Attributes{PathText: "/api/v1/search", MethodText: "GET", HostText: "shop.example.com:8080",
		PeerAddr: netip.MustParseAddr("192.0.2.7"), Headers: map[string]string{"X-Plan": "free"}}
}

func BenchmarkMatch(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		b.Run(fmt.Sprintf("rules=%d", n), func(b *testing.B) { benchmarkMatch(b, manyMatches(n), manyRequest(), 3) })
	}
}

// BenchmarkMatchSpread matches a different endpoint of up to 10,000 each time, so that the CPU's
// caches help less.
func BenchmarkMatchSpread(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		b.Run(fmt.Sprintf("rules=%d", n), func(b *testing.B) {
			m := NewMatcher(compileAll(b, manyMatches(n)))
			requests := make([]*request.Attributes, n)
			for i := range requests {
				requests[i] = manyRequest()
				requests[i].PathText = fmt.Sprintf("/api/v1/service%d/users", (i*7919)%n)
			}
			var r Request
			var found []int32
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				r.Read(requests[i%n])
				found = m.AppendMatches(found[:0], &r)
			}
		})
	}
}

// BenchmarkMatchBadCases measures policies and requests for which the index helps least.
func BenchmarkMatchBadCases(b *testing.B) {
	const n = 1000
	pol := func(one func(i int) policy.Match) []policy.Match {
		matches := make([]policy.Match, n)
		for i := range matches {
			matches[i] = one(i)
		}
		return matches
	}
	b.Run("one header, many values", func(b *testing.B) {
		benchmarkMatch(b, pol(func(i int) policy.Match {
			return policy.Match{Header: []policy.HeaderMatch{{Name: "X-Plan", Values: []string{fmt.Sprint("plan", i)}}}}
		}), headerRequest("X-Plan", "plan500"), 1)
	})
	b.Run("many headers", func(b *testing.B) {
		benchmarkMatch(b, pol(func(i int) policy.Match {
			return policy.Match{Header: []policy.HeaderMatch{{Name: fmt.Sprint("X-Plan-", i)}}}
		}), headerRequest("X-Plan-500", "x"), 1)
	})
	b.Run("any path, many header values", func(b *testing.B) {
		benchmarkMatch(b, pol(func(i int) policy.Match {
			return policy.Match{Path: []string{"/*"}, Header: []policy.HeaderMatch{{Name: "X-Plan", Values: []string{fmt.Sprint("plan", i)}}}}
		}), headerRequest("X-Plan", "plan500"), 1)
	})
	b.Run("one path, many header values", func(b *testing.B) {
		benchmarkMatch(b, pol(func(i int) policy.Match {
			return policy.Match{Path: []string{"/api/*"}, Header: []policy.HeaderMatch{{Name: "X-Plan", Values: []string{fmt.Sprint("plan", i)}}}}
		}), headerRequest("X-Plan", "plan500"), 1)
	})
	b.Run("all the same, method differs", func(b *testing.B) {
		benchmarkMatch(b, pol(func(int) policy.Match { return policy.Match{Path: []string{"/api/*"}, Method: []string{"POST"}} }), manyRequest(), 0)
	})
	b.Run("one path, many users", func(b *testing.B) {
		benchmarkMatch(b, pol(func(i int) policy.Match {
			return policy.Match{Path: []string{"/api/*"}, User: []string{fmt.Sprint("user", i)}}
		}), manyRequest(), 0)
	})
	b.Run("address ranges of all lengths", func(b *testing.B) {
		benchmarkMatch(b, pol(func(i int) policy.Match {
			a := netip.AddrFrom4([4]byte{192, byte(i >> 2), byte(i >> 4), byte(i)})
			return policy.Match{IP: []netip.Prefix{netip.PrefixFrom(a, 8+i%25)}}
		}), manyRequest(), 84)
	})
	deep := pol(func(i int) policy.Match { return policy.Match{Path: []string{fmt.Sprintf("/**/a%d/**/b", i)}} })
	b.Run("many **", func(b *testing.B) {
		r := manyRequest()
		r.PathText = "/x/a7/y/z/b"
		benchmarkMatch(b, deep, r, 1)
	})
	b.Run("many **, path of 8 KiB", func(b *testing.B) { benchmarkMatch(b, deep, longRequest(8<<10), 0) })
	b.Run("path of 8 KiB", func(b *testing.B) { benchmarkMatch(b, manyMatches(n), longRequest(8<<10), 1) })
	b.Run("path of 1 MiB, four readings, many **", func(b *testing.B) {
		r := longRequest(1 << 20)
		r.PathText = r.PathText[:len(r.PathText)-5] + `/a;/\b`
		benchmarkMatch(b, deep, r, 1)
	})
}

func headerRequest(name, value string) *request.Attributes {
	r := manyRequest()
	r.Headers = map[string]string{name: value}
	return r
}

// longRequest returns a request whose path has the given length and many segments.
func longRequest(bytes int) *request.Attributes {
	r := manyRequest()
	path := make([]byte, 0, bytes)
	for i := 0; len(path) < bytes; i++ {
		path = append(path, "/a7/"[:2+i%2]...)
	}
	r.PathText = string(path)
	return r
}

func benchmarkMatch(b *testing.B, matches []policy.Match, a *request.Attributes, want int) {
	conditions := compileAll(b, matches)
	m := NewMatcher(conditions)
	var r Request
	var found []int32
	b.ReportAllocs()
	for b.Loop() {
		r.Read(a)
		found = m.AppendMatches(found[:0], &r)
	}
	hold := 0
	for i := range conditions {
		if conditions[i].Holds(&r) {
			hold++
		}
	}
	if len(found) != want || hold != want {
		b.Fatalf("%d conditions found, %d hold, want %d", len(found), hold, want)
	}
}
