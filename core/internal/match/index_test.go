// SPDX-License-Identifier: Apache-2.0

package match

import (
	"fmt"
	"github.com/penstock/penstock/internal/test/request"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/racescale"
)

// TestMatcherAgreesWithConditions: the index finds exactly the conditions that hold, and paths
// match as in the simple implementation.
func TestMatcherAgreesWithConditions(t *testing.T) {
	rnd := request.NewRandom(t)
	var r Request // one for all matchers, as in a plan
	held := 0
	for range racescale.Fewer(300) {
		matches := make([]policy.Match, 1+rnd.IntN(60))
		for i := range matches {
			matches[i] = rnd.Match()
		}
		conditions := compileAll(t, matches)
		for i := range conditions {
			conditions[i].EveryReading = rnd.IntN(5) == 0
		}
		m := NewMatcher(conditions)
		for range 50 {
			a := rnd.Request()
			r.Read(a)
			if rnd.IntN(4) > 0 {
				r.Client = rnd.Identity()
			}
			var want []int32
			for i := range conditions {
				if conditions[i].Holds(&r) {
					want = append(want, int32(i))
				}
				checkPathObviously(t, &matches[i], &conditions[i], &r)
			}
			held += len(want)
			found := m.AppendMatches([]int32{-1}, &r)
			if diff := cmp.Diff(append([]int32{-1}, want...), found); diff != "" {
				t.Fatalf("%+v finds others than those that hold (-hold +found):\n%s\n%s", a, diff, differing(matches, want, found[1:]))
			}
		}
	}
	if held < 1000 {
		t.Errorf("only %d conditions held", held)
	}
}

// differing formats the matches that are in only one of the lists.
func differing(matches []policy.Match, want, found []int32) string {
	var b strings.Builder
	for i := range matches {
		if slices.Contains(want, int32(i)) != slices.Contains(found, int32(i)) {
			fmt.Fprintf(&b, "%d: %+v\n", i, matches[i])
		}
	}
	return b.String()
}

func checkPathObviously(t *testing.T, m *policy.Match, c *Condition, r *Request) {
	t.Helper()
	some, every := len(m.Path) == 0, true
	for i := range r.Readings {
		one := len(m.Path) == 0
		for _, pattern := range m.Path {
			one = one || obviousMatch(pattern, r.Readings[i].path, m.CaseSensitive, m.StrictSlash)
		}
		some, every = some || one, every && one
	}
	want := some
	if c.EveryReading {
		want = every
	}
	if r.Long { // a long path satisfies only conditions that accept every path
		want = c.parts&partPath == 0
	}
	if got := c.holdsParts(r, partPath, c.EveryReading); got != want {
		t.Fatalf("paths %q (case %v, slash %v) hold for %q: %v", m.Path, m.CaseSensitive, m.StrictSlash, r.path, got)
	}
	if _, ok := c.Endpoint(r); ok != (some && len(m.Path) > 0) {
		t.Fatalf("paths %q for %q: endpoint is %v", m.Path, r.path, ok)
	}
}

func TestMatcherDoesNotAllocate(t *testing.T) {
	odd := manyRequest()
	odd.PathText, odd.MethodText, odd.HostText = `/API//v1/%53earch;x=1/..\search`, "get", "SHOP.Example.com.:80"
	odd.Headers["X-Plan"] = "free, plan5, plan15"
	odd.PeerAddr = netip.MustParseAddr("::ffff:10.0.4.1")
	six := manyRequest()
	six.HostText, six.PeerAddr = "[2001:DB8::1]:80", netip.MustParseAddr("2001:db8::1")
	m := NewMatcher(compileAll(t, append(manyMatches(1000), policy.Match{Path: []string{"/**/a/**/b"}})))
	var r Request
	var found []int32
	who := &policy.Identity{Tier: "tier9", User: "u"}
	for _, a := range []*request.Attributes{manyRequest(), odd, six, longRequest(8 << 10)} {
		if n := testing.AllocsPerRun(100, func() {
			r.Read(a)
			r.Client = who
			found = m.AppendMatches(found[:0], &r)
		}); n != 0 {
			t.Errorf("%.0f allocations for %.40q", n, a.PathText)
		}
	}
}

// TestAmbiguousPathIsLimitedAndNotExcused: a path that one server reads as /api and another as
// /health is limited like /api, and not exempt like /health.
func TestAmbiguousPathIsLimitedAndNotExcused(t *testing.T) {
	conditions := compileAll(t, []policy.Match{{Path: []string{"/api/*"}}, {Path: []string{"/health/*"}}})
	conditions[1].EveryReading = true
	m := NewMatcher(conditions)
	for path, want := range map[string][]int32{
		"/health": {1}, "/health/x;y": {1}, "/health/..;/api": {0}, `/health\..\api`: {0}, "/health/%5c../%5C../api": {0},
		"/health/../api": {0}, "/api/..;/health": {0}} {
		var r Request
		r.Read(&request.Attributes{PathText: path})
		if diff := cmp.Diff(want, m.AppendMatches(nil, &r)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", path, diff)
		}
	}
}

// TestMatcherChoosesTheRarestPart: conditions that share all their paths are indexed by the part
// that differs.
func TestMatcherChoosesTheRarestPart(t *testing.T) {
	var matches []policy.Match
	for i := range 100 {
		value := strconv.Itoa(i)
		matches = append(matches, policy.Match{Path: []string{"/api/*"}, Header: []policy.HeaderMatch{{Name: "X-Plan", Values: []string{value}}}})
	}
	m := NewMatcher(compileAll(t, matches))
	if len(m.always) > 0 || len(m.paths.nodes) > 0 || len(m.headers) != 1 || len(m.headers[0].exact) != 100 {
		t.Errorf("always %d, nodes %d, headers %+v", len(m.always), len(m.paths.nodes), m.headers)
	}
}
