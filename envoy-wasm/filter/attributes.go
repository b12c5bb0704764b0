// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/wire"
)

// attributes is one request as the policy sees it. It is taken in once, when the headers are there, and keeps what the
// policy reads and nothing else.
type attributes struct {
	path, method, host, query string
	peer, remote              netip.Addr
	now                       core.Micros
	reads                     *core.Reads
	headers, attrs            []wire.Value
	grpc                      bool
}

// forwarded is the header that proxies write addresses in.
const forwarded = "X-Forwarded-For"

// take takes a request in. Header names are lower case, as Envoy has them.
func (a *attributes) take(h Host, p *policy, headers [][2]string, appended bool) {
	*a = attributes{now: h.Now(), reads: &p.reads, headers: a.headers[:0], attrs: a.attrs[:0]}
	for range p.reads.Headers {
		a.headers = append(a.headers, wire.Value{})
	}
	for _, field := range headers {
		switch name := field[0]; name {
		case ":path":
			a.path, a.query, _ = strings.Cut(field[1], "?")
		case ":method":
			a.method = field[1]
		case ":authority":
			a.host = field[1]
		case "content-type":
			a.grpc = strings.HasPrefix(field[1], "application/grpc")
			a.header(p, name, field[1])
		default:
			a.header(p, name, field[1])
		}
	}
	if !p.reads.Query {
		a.query = ""
	}
	a.address(h, appended)
	for _, name := range p.reads.Attrs {
		value, ok := h.Property(propertyPath(name)...)
		a.attrs = append(a.attrs, wire.Value{Text: value, Given: ok && value != ""})
	}
}

// header keeps a header that the policy reads. Several lines are joined.
func (a *attributes) header(p *policy, name, value string) {
	i, ok := p.headers[name]
	if !ok {
		return
	}
	if v := &a.headers[i]; v.Given {
		v.Text += ", " + value
	} else {
		*v = wire.Value{Text: value, Given: true}
	}
}

// address finds the addresses. The peer's is what Envoy says; where Envoy has added it to X-Forwarded-For it is taken out
// there, since a chain of addresses ends with it anyway.
func (a *attributes) address(h Host, appended bool) {
	text, _ := h.Property("source", "address")
	a.peer = addrOf(text)
	a.remote = a.peer
	i, ok := slices.BinarySearch(a.reads.Headers, forwarded)
	if !ok || !appended || !a.headers[i].Given {
		return
	}
	chain := a.headers[i].Text
	last := strings.LastIndexByte(chain, ',')
	if addrOf(strings.TrimSpace(chain[last+1:])) != a.remote {
		return
	}
	a.headers[i] = wire.Value{Text: chain[:max(0, last)], Given: last >= 0}
}

// addrOf reads an address with or without a port.
func addrOf(text string) netip.Addr {
	if with, err := netip.ParseAddrPort(text); err == nil {
		return with.Addr().Unmap().WithZone("")
	}
	addr, _ := netip.ParseAddr(text) // the zero Addr for what is none
	return addr.Unmap().WithZone("")
}

// propertyPath splits the name of an attribute: metadata.filter_metadata.ns.key. Parts that hold dots are written in
// brackets: metadata.filter_metadata.[envoy.filters.http.jwt_authn].payload.sub.
func propertyPath(name string) (path []string) {
	for name != "" {
		var part string
		if rest, ok := strings.CutPrefix(name, "["); ok {
			part, rest, _ = strings.Cut(rest, "]")
			name = strings.TrimPrefix(rest, ".")
		} else {
			part, name, _ = strings.Cut(name, ".")
		}
		path = append(path, part)
	}
	return path
}

func (a *attributes) Path() string       { return a.path }
func (a *attributes) Method() string     { return a.method }
func (a *attributes) Host() string       { return a.host }
func (a *attributes) Query() string      { return a.query }
func (a *attributes) Peer() netip.Addr   { return a.peer }
func (a *attributes) Remote() netip.Addr { return a.remote }
func (a *attributes) Now() core.Micros   { return a.now }

// Header implements [core.Attributes]. The policy reads what it said it does.
func (a *attributes) Header(name string) (string, bool) {
	return find(a.reads.Headers, a.headers, name)
}

// Attr implements [core.Attributes].
func (a *attributes) Attr(name string) (string, bool) { return find(a.reads.Attrs, a.attrs, name) }

func find(names []string, values []wire.Value, name string) (string, bool) {
	i, ok := slices.BinarySearch(names, name)
	if !ok || i >= len(values) {
		return "", false
	}
	return values[i].Text, values[i].Given
}

// ask is the request as the bridge is asked about it.
func (a *attributes) ask(known uint64) wire.Ask {
	return wire.Ask{Path: a.path, Method: a.method, Host: a.host, Query: a.query, Peer: a.peer, Remote: a.remote,
		Headers: a.headers, Attrs: a.attrs, Known: known}
}

var _ core.Attributes = (*attributes)(nil)
