// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/internal/underrace"
)

// fakeAttributes is a request made up for a test.
type fakeAttributes struct {
	path, method, host string
	headers            map[string]string // by canonical name
	peer               netip.Addr
	attrs              map[string]string
	query              string
	remote             netip.Addr
	now                Micros
}

func (a *fakeAttributes) Path() string     { return a.path }
func (a *fakeAttributes) Method() string   { return a.method }
func (a *fakeAttributes) Host() string     { return a.host }
func (a *fakeAttributes) Peer() netip.Addr { return a.peer }

func (a *fakeAttributes) Query() string      { return a.query }
func (a *fakeAttributes) Remote() netip.Addr { return a.remote }
func (a *fakeAttributes) Now() Micros        { return a.now }

func (a *fakeAttributes) Header(name string) (string, bool) {
	value, ok := a.headers[name]
	return value, ok
}

func (a *fakeAttributes) Attr(name string) (string, bool) {
	value, ok := a.attrs[name]
	return value, ok
}

// random makes matches and requests out of few words, so that they meet.
type random struct{ *rand.Rand }

func newRandom(t *testing.T) random {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("PENSTOCK_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("PENSTOCK_SEED=%d", seed)
	return random{rand.New(rand.NewPCG(seed, 1))}
}

func (r random) one(of ...string) string { return of[r.IntN(len(of))] }

func (r random) some(max int, of ...string) []string {
	var list []string
	for range r.IntN(max + 1) {
		list = append(list, r.one(of...))
	}
	return list
}

func (r random) match() Match {
	var m Match
	for range r.IntN(3) {
		pattern := ""
		for range r.IntN(5) {
			pattern += "/" + r.one("a", "a", "b", "B", "ab", "*", "**", "\u00e9", "%2F")
		}
		m.Path = append(m.Path, pattern+r.one("/", "/*", "/a*", "/b", "/a", "/**"))
	}
	if r.IntN(3) == 0 {
		m.Method = r.some(2, "GET", "post", "PUT", "GET")
	}
	if r.IntN(3) == 0 {
		m.Host = r.some(2, "a.example", "*.example", "*.a.example", "B.example", "[::1]")
	}
	for range r.IntN(2) * r.IntN(3) {
		m.Header = append(m.Header, HeaderMatch{Name: r.one("x-a", "X-B"), Values: r.some(2, "1", "2", "1*", "*", "12")})
	}
	if r.IntN(3) == 0 {
		for _, text := range r.some(2, "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "0.0.0.0/0", "::/0", "2001:db8::/32",
			"2001:db8::1/128", "::ffff:10.1.0.0/112", "2001:db8::/65") {
			m.IP = append(m.IP, netip.MustParsePrefix(text))
		}
	}
	if r.IntN(3) == 0 {
		m.Tier, m.User = r.some(2, "gold", "silver", "x"), r.some(1, "u", "x")
		m.APIKey, m.Tenant = r.some(1, "k", "x"), r.some(2, "acme", "x")
	}
	for range r.IntN(2) * r.IntN(3) {
		m.Attr = append(m.Attr, AttrMatch{Name: r.one("x", "y"), Values: r.some(2, "1", "12", "1*", "1*2", "*2", "*", "*1*", "X")})
	}
	if len(m.Path) > 0 {
		m.CaseSensitive, m.StrictSlash = r.IntN(4) == 0, r.IntN(4) == 0
	}
	return m
}

func (r random) request() *fakeAttributes {
	a := &fakeAttributes{method: r.one("GET", "HEAD", "get", "POST", "PUT", "X"), headers: map[string]string{},
		host: r.one("", "a.example", "A.example:80", "b.a.example.", ".example", "example", "c.b.a.example", "[::1]:8", ".a.example")}
	for range r.IntN(7) {
		a.path += r.one("/", "/", "/", "//", "/./", `\`) + r.one("a", "b", "A", "ab", "%61", "..", "a;b", "\u00c9", "%2f", "%5c..", "*")
	}
	a.path += r.one("", "/")
	for _, name := range r.some(2, "X-A", "X-B") {
		a.headers[name] = r.one("", "1", "2", "12", "3, 1", "3,12 ,3", ",", "1, 1", "*")
	}
	a.attrs = map[string]string{}
	for _, name := range r.some(2, "x", "y") {
		a.attrs[name] = r.one("", "1", "2", "12", "112", "1x2", "1, 2", "x")
	}
	if text := r.one("", "10.1.2.3", "10.2.0.1", "::ffff:10.1.9.9", "2001:db8::1", "fe80::1%eth0", "192.0.2.1"); text != "" {
		a.peer = netip.MustParseAddr(text)
	}
	return a
}

func (r random) identity() *Identity {
	return &Identity{Tier: r.one("", "gold", "silver"), User: r.one("", "u"), APIKey: r.one("", "k"), Tenant: r.one("", "acme", "x")}
}

// The index finds exactly the conditions that hold, and paths hold as they obviously should.
func TestMatcherAgreesWithConditions(t *testing.T) {
	rnd := newRandom(t)
	var r request // one for all matchers, as a plan has it
	held := 0
	for range underrace.Fewer(300) {
		matches := make([]Match, 1+rnd.IntN(60))
		for i := range matches {
			matches[i] = rnd.match()
		}
		conditions := compileAll(t, matches)
		for i := range conditions {
			conditions[i].everyReading = rnd.IntN(5) == 0
		}
		m := newMatcher(conditions)
		for range 50 {
			a := rnd.request()
			r.read(a)
			if rnd.IntN(4) > 0 {
				r.client = rnd.identity()
			}
			var want []int32
			for i := range conditions {
				if conditions[i].holds(&r) {
					want = append(want, int32(i))
				}
				checkPathObviously(t, &matches[i], &conditions[i], &r)
			}
			held += len(want)
			found := m.appendMatches([]int32{-1}, &r)
			if diff := cmp.Diff(append([]int32{-1}, want...), found); diff != "" {
				t.Fatalf("%+v finds others than those that hold (-hold +found):\n%s\n%s", a, diff, differing(matches, want, found[1:]))
			}
		}
	}
	if held < 1000 {
		t.Errorf("only %d conditions held", held)
	}
}

// differing prints the matches that are in one of the lists only.
func differing(matches []Match, want, found []int32) string {
	var b strings.Builder
	for i := range matches {
		if slices.Contains(want, int32(i)) != slices.Contains(found, int32(i)) {
			fmt.Fprintf(&b, "%d: %+v\n", i, matches[i])
		}
	}
	return b.String()
}

func checkPathObviously(t *testing.T, m *Match, c *condition, r *request) {
	t.Helper()
	some, every := len(m.Path) == 0, true
	for i := range r.readings {
		one := len(m.Path) == 0
		for _, pattern := range m.Path {
			one = one || obviousMatch(pattern, r.readings[i].path, m.CaseSensitive, m.StrictSlash)
		}
		some, every = some || one, every && one
	}
	want := some
	if c.everyReading {
		want = every
	}
	if got := c.holdsParts(r, partPath); got != want {
		t.Fatalf("paths %q (case %v, slash %v) hold for %q: %v", m.Path, m.CaseSensitive, m.StrictSlash, r.path, got)
	}
	if _, ok := c.endpoint(r); ok != (some && len(m.Path) > 0) {
		t.Fatalf("paths %q for %q: endpoint is %v", m.Path, r.path, ok)
	}
}

func TestMatcherDoesNotAllocate(t *testing.T) {
	odd := manyRequest()
	odd.path, odd.method, odd.host = `/API//v1/%53earch;x=1/..\search`, "get", "SHOP.Example.com.:80"
	odd.headers["X-Plan"] = "free, plan5, plan15"
	odd.peer = netip.MustParseAddr("::ffff:10.0.4.1")
	six := manyRequest()
	six.host, six.peer = "[2001:DB8::1]:80", netip.MustParseAddr("2001:db8::1")
	m := newMatcher(compileAll(t, append(manyMatches(1000), Match{Path: []string{"/**/a/**/b"}})))
	var r request
	var found []int32
	who := &Identity{Tier: "tier9", User: "u"}
	for _, a := range []*fakeAttributes{manyRequest(), odd, six, longRequest(8 << 10)} {
		if n := testing.AllocsPerRun(100, func() {
			r.read(a)
			r.client = who
			found = m.appendMatches(found[:0], &r)
		}); n != 0 {
			t.Errorf("%.0f allocations for %.40q", n, a.path)
		}
	}
}

// What one server takes for /api and another for /health is limited as /api and not excused as /health.
func TestAmbiguousPathIsLimitedAndNotExcused(t *testing.T) {
	conditions := compileAll(t, []Match{{Path: []string{"/api/*"}}, {Path: []string{"/health/*"}}})
	conditions[1].everyReading = true
	m := newMatcher(conditions)
	for path, want := range map[string][]int32{
		"/health": {1}, "/health/x;y": {1}, "/health/..;/api": {0}, `/health\..\api`: {0}, "/health/%5c../%5C../api": {0},
		"/health/../api": {0}, "/api/..;/health": {0}} {
		var r request
		r.read(&fakeAttributes{path: path})
		if diff := cmp.Diff(want, m.appendMatches(nil, &r)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", path, diff)
		}
	}
}

// Conditions that share all their paths stand under what tells them apart.
func TestMatcherChoosesTheRarestPart(t *testing.T) {
	var matches []Match
	for i := range 100 {
		value := strconv.Itoa(i)
		matches = append(matches, Match{Path: []string{"/api/*"}, Header: []HeaderMatch{{Name: "X-Plan", Values: []string{value}}}})
	}
	m := newMatcher(compileAll(t, matches))
	if len(m.always) > 0 || len(m.paths.nodes) > 0 || len(m.headers) != 1 || len(m.headers[0].exact) != 100 {
		t.Errorf("always %d, nodes %d, headers %+v", len(m.always), len(m.paths.nodes), m.headers)
	}
}
