// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"encoding/binary"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/core"
	corepolicy "github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/exchange"
	"github.com/penstock/penstock/internal/envoy/wire"
)

func le(bits uint64) string { return string(binary.LittleEndian.AppendUint64(nil, bits)) }

// TestAttributes: a property of Envoy is a text, a number, a boolean or raw bytes, because clients
// control some properties.
func TestAttributes(t *testing.T) {
	const jwt = "metadata.filter_metadata.[envoy.filters.http.jwt_authn].jwt_payload."
	for _, c := range []struct {
		name, path, value, want string
		missing                 bool
	}{
		{name: jwt + "sub", value: "user-1", want: "user-1"},
		{name: jwt + "sub", value: "äöüß", want: "äöüß"}, // 8 bytes
		{name: jwt + "sub", value: "12345678", want: "12345678"},
		{name: jwt + "org.id", path: "metadata.filter_metadata.envoy.filters.http.jwt_authn.jwt_payload.org.id", value: "t1", want: "t1"},
		{name: jwt + "n", value: le(math.Float64bits(42)), want: "42"},
		{name: jwt + "n", value: le(math.Float64bits(-0.5)), want: "-0.5"},
		{name: jwt + "n", value: le(math.Float64bits(1e15)), want: "1000000000000000"},
		{name: jwt + "admin", value: "\x01", want: "true"},
		{name: jwt + "admin", value: "\x00", want: "false"},
		{name: jwt + "roles", value: "\x01\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00", want: "\x01\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00"},
		{name: jwt + "sub", value: "user\t1", want: "user\t1"},
		{name: "request.useragent", value: "BadBot/1.0\tx", want: "BadBot/1.0\tx"},
		{name: "request.useragent", value: "BadBot \xff", want: "BadBot \xff"}, // 8 bytes
		{name: "request.url_path", value: "\xff", want: "\xff"},
		{name: "request.headers.x-id", value: "\x01\x02\x03\x04\x05\x06\x07\x08", want: "\x01\x02\x03\x04\x05\x06\x07\x08"},
		{name: "connection.requested_server_name", value: "a\x80", want: "a\x80"},
		{name: "request.size", value: le(7), want: "7"},
		{name: "upstream.port", value: le(80), want: "80"},
		{name: jwt + "sub", value: "", missing: true},
		{name: "connection.id", value: le(7), want: "7"},
		{name: "source.port", value: le(4711), want: "4711"},
		{name: "connection.mtls", value: "\x01", want: "true"},
		{name: "xds.route_name", value: "main", want: "main"},
		{name: "request.id", path: "nobody.knows", value: "x", missing: true},
		// not requested from Envoy, because the SDK cannot encode the name
		{name: ".", value: "x", missing: true},
		{name: "[]", value: "x", missing: true},
	} {
		e := newEnvoy(t)
		if c.path == "" {
			c.path = strings.NewReplacer("[", "", "]", "").Replace(c.name)
		}
		e.properties[c.path] = c.value
		want := wire.Value{Text: c.want, Given: !c.missing}
		if got := attributeText(e, c.name); got != want {
			t.Errorf("%s = %q: %+v, want %+v", c.name, c.value, got, want)
		}
	}
}

func TestPropertyPaths(t *testing.T) {
	for name, want := range map[string][]string{
		"request.id":                       {"request", "id"},
		"metadata.filter_metadata.[a.b].c": {"metadata", "filter_metadata", "a.b", "c"},
		"[a.b]":                            {"a.b"},
		"a.[b":                             {"a", "b"},
	} {
		if got := propertyPath(name); !slices.Equal(got, want) {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

// TestAddresses tests the client's address under every configuration of Envoy.
func TestAddresses(t *testing.T) {
	for name, c := range map[string]struct {
		source, chain  string // "" means no header
		kept           bool   // xff_appended: false
		peer, remote   string // "" means none
		chainAfterward string
	}{
		"use_remote_address":                    {source: "192.0.2.7:4711", chain: "1.1.1.1, 192.0.2.7", peer: "192.0.2.7", remote: "192.0.2.7", chainAfterward: "1.1.1.1"},
		"and nothing before":                    {source: "192.0.2.7:4711", chain: "192.0.2.7", peer: "192.0.2.7", remote: "192.0.2.7"},
		"and the peer is of this machine":       {source: "127.0.0.1:4711", chain: "1.1.1.1,10.0.0.1", peer: "127.0.0.1", remote: "127.0.0.1", chainAfterward: "1.1.1.1"},
		"and the peer is of this machine, IPv6": {source: "[::1]:4711", chain: "10.0.0.1", peer: "::1", remote: "::1"},
		"and an IPv6 peer":                      {source: "[2001:db8::7]:4711", chain: "1.1.1.1, 2001:db8::7", peer: "2001:db8::7", remote: "2001:db8::7", chainAfterward: "1.1.1.1"},
		"and skip_xff_append": {source: "192.0.2.7:4711", chain: "1.1.1.1, 2.2.2.2", peer: "192.0.2.7", remote: "192.0.2.7",
			chainAfterward: "1.1.1.1, 2.2.2.2"},
		"and skip_xff_append, told of": {source: "192.0.2.7:4711", chain: "1.1.1.1, 192.0.2.7", kept: true, peer: "192.0.2.7",
			remote: "192.0.2.7", chainAfterward: "1.1.1.1, 192.0.2.7"},
		"xff_num_trusted_hops": {source: "2.2.2.2:0", chain: "1.1.1.1, 2.2.2.2, 192.0.2.7", peer: "2.2.2.2", remote: "192.0.2.7",
			chainAfterward: "1.1.1.1, 2.2.2.2"},
		"no use_remote_address": {source: "2.2.2.2:0", chain: "1.1.1.1, 2.2.2.2", peer: "2.2.2.2", remote: "2.2.2.2",
			chainAfterward: "1.1.1.1, 2.2.2.2"},
		"no use_remote_address, garbage at the end": {source: "2.2.2.2:0", chain: "2.2.2.2, x", peer: "2.2.2.2", remote: "2.2.2.2",
			chainAfterward: "2.2.2.2, x"},
		"no header":              {source: "192.0.2.7:4711", peer: "192.0.2.7", remote: "192.0.2.7"},
		"a mapped address":       {source: "[::ffff:192.0.2.7]:1", peer: "192.0.2.7", remote: "192.0.2.7"},
		"an address with a zone": {source: "[fe80::1%eth0]:1", peer: "fe80::1", remote: "fe80::1"},
		"a Unix socket":          {source: "@/run/envoy.sock", chain: "1.1.1.1", chainAfterward: "1.1.1.1"},
		"nothing":                {chain: "1.1.1.1", chainAfterward: "1.1.1.1"},
	} {
		e := newEnvoy(t)
		e.properties["source.address"] = c.source
		p := &policy{reads: exchange.ReadsOf(core.Inputs{Headers: []string{"X-Forwarded-For"}})}
		request := get("/")
		if c.chain != "" {
			request = get("/", "x-forwarded-for", c.chain)
		}
		var a attributes
		a.take(e, p, request, !c.kept)
		for _, got := range []struct {
			what string
			addr netip.Addr
			want string
		}{{"peer", a.View.Peer(), c.peer}, {"remote", a.View.Remote(), c.remote}} {
			if want, _ := netip.ParseAddr(got.want); got.addr != want {
				t.Errorf("%s: the %s is %v, want %v", name, got.what, got.addr, want)
			}
		}
		if got, given := a.View.Header("X-Forwarded-For"); got != c.chainAfterward || given != (c.chainAfterward != "") {
			t.Errorf("%s: the chain is %q (%v), want %q", name, got, given, c.chainAfterward)
		}
	}
}

// FuzzAddrOf compares the parsed addresses with net/netip, which the filter does not use because of
// its size.
func FuzzAddrOf(f *testing.F) {
	for _, seed := range []string{"192.0.2.7:4711", "[::1]:80", "::1", "::1:80", "[1.2.3.4]:5", "[1.2.3.4:5", "[::1]", "[fe80::1%eth0]:1", "1.2.3.4", "1.2.3.4:",
		"1.2.3.4:65536", "1.2.3.4:+1", ":1", "[]:1", "[[::1]]:1", "@/run/envoy.sock", "[::ffff:192.0.2.7]:0", "x:1", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		addr, port := wire.AddrOf(text)
		var want netip.AddrPort
		if with, err := netip.ParseAddrPort(text); err == nil {
			want = with
		} else if alone, err := netip.ParseAddr(text); err == nil {
			want = netip.AddrPortFrom(alone, 0)
		}
		if addr != want.Addr().Unmap().WithZone("") || addr.IsValid() && port != want.Port() {
			t.Errorf("%q is read as %v, port %d; the library reads %v", text, addr, port, want)
		}
	})
}

// TestLinesOfAHeader: header lines are joined as in Caddy, and the host is :authority.
func TestLinesOfAHeader(t *testing.T) {
	p := &policy{reads: exchange.ReadsOf(core.Inputs{Headers: []string{"Cookie", "Host", "X-A", "X-B"}, Query: true})}
	var a attributes
	a.take(newEnvoy(t), p, get("/p?q=1?", "cookie", "a=1; b=2", "x-a", "1", "cookie", "c=3", "x-a", "2", "host", "other", "x-c", "3"), true)
	for name, want := range map[string]string{"Cookie": corepolicy.JoinLines("Cookie", []string{"a=1; b=2", "c=3"}),
		"X-A": corepolicy.JoinLines("X-A", []string{"1", "2"}), "X-B": "", "Host": "", "X-C": ""} {
		if got, given := a.View.Header(name); got != want || given != (want != "") {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if a.View.Host() != "example.com" || a.View.Path() != "/p" || a.View.Query() != "q=1?" {
		t.Errorf("%q %q %q", a.View.Host(), a.View.Path(), a.View.Query())
	}
	a.take(newEnvoy(t), p, [][2]string{{"host", "old.example"}, {":path", "/"}}, true)
	if a.View.Host() != "old.example" {
		t.Errorf("without :authority the host is %q", a.View.Host())
	}
}
