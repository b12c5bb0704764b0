// SPDX-License-Identifier: Apache-2.0

// Package request generates random requests and matches, for tests of core and its packages. The
// requests vary widely. They can contain anything that a client can send, even if it is invalid. A
// test that can use a front does not need the package.
package request

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/seed"
)

// Attributes is a request as a policy sees it. The zero Attributes is empty.
type Attributes struct {
	PathText, MethodText, HostText string
	Headers                        map[string]string // by canonical name
	PeerAddr                       netip.Addr
	Attrs                          map[string]string
	QueryText                      string
	RemoteAddr                     netip.Addr
	Time                           counter.Micros
}

// Path returns PathText.
func (a *Attributes) Path() string { return a.PathText }

// Method returns MethodText.
func (a *Attributes) Method() string { return a.MethodText }

// Host returns HostText.
func (a *Attributes) Host() string { return a.HostText }

// Peer returns PeerAddr.
func (a *Attributes) Peer() netip.Addr { return a.PeerAddr }

// Query returns QueryText.
func (a *Attributes) Query() string { return a.QueryText }

// Remote returns RemoteAddr.
func (a *Attributes) Remote() netip.Addr { return a.RemoteAddr }

// Now returns Time.
func (a *Attributes) Now() counter.Micros { return a.Time }

// Header returns the header with that canonical name.
func (a *Attributes) Header(name string) (string, bool) {
	value, ok := a.Headers[name]
	return value, ok
}

// Attr returns the attribute with that name.
func (a *Attributes) Attr(name string) (string, bool) {
	value, ok := a.Attrs[name]
	return value, ok
}

// Random generates matches and requests from a small vocabulary, so that many requests satisfy many
// matches.
type Random struct{ *rand.Rand }

// NewRandom returns a Random with the numbers of [seed.Random].
func NewRandom(t testing.TB) Random {
	t.Helper()
	return Random{seed.Random(t)}
}

// One returns one of the texts.
func (r Random) One(of ...string) string { return of[r.IntN(len(of))] }

// Some returns a list of at most max of the texts. A text may occur several times.
func (r Random) Some(max int, of ...string) []string {
	var list []string
	for range r.IntN(max + 1) {
		list = append(list, r.One(of...))
	}
	return list
}

// Match returns a valid match.
func (r Random) Match() policy.Match {
	var m policy.Match
	for range r.IntN(3) {
		pattern := ""
		for range r.IntN(5) {
			pattern += "/" + r.One("a", "a", "b", "B", "ab", "*", "**", "\u00e9", "%2F")
		}
		m.Path = append(m.Path, pattern+r.One("/", "/*", "/a*", "/b", "/a", "/**"))
	}
	if r.IntN(3) == 0 {
		m.Method = r.Some(2, "GET", "post", "PUT", "GET")
	}
	if r.IntN(3) == 0 {
		m.Host = r.Some(2, "a.example", "*.example", "*.a.example", "B.example", "[::1]")
	}
	for range r.IntN(2) * r.IntN(3) {
		m.Header = append(m.Header, policy.HeaderMatch{Name: r.One("x-a", "X-B"), Values: r.Some(2, "1", "2", "1*", "*", "12")})
	}
	if r.IntN(3) == 0 {
		for _, text := range r.Some(2, "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "0.0.0.0/0", "::/0", "2001:db8::/32",
			"2001:db8::1/128", "::ffff:10.1.0.0/112", "2001:db8::/65") {
			m.IP = append(m.IP, netip.MustParsePrefix(text))
		}
	}
	if r.IntN(3) == 0 {
		m.Tier, m.User = r.Some(2, "gold", "silver", "x"), r.Some(1, "u", "x")
		m.APIKey, m.Tenant = r.Some(1, "k", "x"), r.Some(2, "acme", "x")
	}
	for range r.IntN(2) * r.IntN(3) {
		m.Attr = append(m.Attr, policy.AttrMatch{Name: r.One("x", "y"), Values: r.Some(2, "1", "12", "1*", "1*2", "*2", "*", "*1*", "X")})
	}
	if len(m.Path) > 0 {
		m.CaseSensitive, m.StrictSlash = r.IntN(4) == 0, r.IntN(4) == 0
	}
	return m
}

// Request returns a request that can satisfy such a match.
func (r Random) Request() *Attributes {
	a := &Attributes{MethodText: r.One("GET", "HEAD", "get", "POST", "PUT", "X"), Headers: map[string]string{},
		HostText: r.One("", "a.example", "A.example:80", "b.a.example.", ".example", "example", "c.b.a.example", "[::1]:8", ".a.example")}
	for range r.IntN(7) {
		a.PathText += r.One("/", "/", "/", "//", "/./", `\`) + r.One("a", "b", "A", "ab", "%61", "..", "a;b", "\u00c9", "%2f", "%5c..", "*")
	}
	a.PathText += r.One("", "/")
	for _, name := range r.Some(2, "X-A", "X-B") {
		a.Headers[name] = r.One("", "1", "2", "12", "3, 1", "3,12 ,3", ",", "1, 1", "*")
	}
	a.Attrs = map[string]string{}
	for _, name := range r.Some(2, "x", "y") {
		a.Attrs[name] = r.One("", "1", "2", "12", "112", "1x2", "1, 2", "x")
	}
	if text := r.One("", "10.1.2.3", "10.2.0.1", "::ffff:10.1.9.9", "2001:db8::1", "fe80::1%eth0", "192.0.2.1"); text != "" {
		a.PeerAddr = netip.MustParseAddr(text)
	}
	return a
}

// Identity returns a client that can satisfy such a match.
func (r Random) Identity() *policy.Identity {
	return &policy.Identity{Tier: r.One("", "gold", "silver"), User: r.One("", "u"), APIKey: r.One("", "k"), Tenant: r.One("", "acme", "x")}
}
