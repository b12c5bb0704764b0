// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/slim"
)

// forwarded is the header to which proxies append addresses.
const forwarded = "X-Forwarded-For"

// SetAddresses sets the addresses of the request. The argument source is Envoy's source.address,
// headers contains the names of a.Headers, and appended reports whether Envoy appends to
// X-Forwarded-For.
//
// source.address is the address of the connection, with its port. With port 0 it is the address
// that Envoy found in X-Forwarded-For. With use_remote_address Envoy appends the address of the
// connection to X-Forwarded-For, or its own address if the connection is local. The last element of
// the chain is then not part of what the client's proxies sent, so SetAddresses removes it. If
// source.address is not the connection's address, SetAddresses uses the removed element instead.
//
// Without use_remote_address Envoy appends nothing, and source.address is the last address in
// X-Forwarded-For. A client that can connect to such an Envoy can choose that address. A Unix
// socket has no address.
func (a *Ask) SetAddresses(headers []string, source string, appended bool) {
	addr, port := AddrOf(source)
	a.Peer, a.Remote = addr, addr
	i, ok := slices.BinarySearch(headers, forwarded)
	if !ok || !appended || !addr.IsValid() || !a.Headers[i].Given {
		return
	}
	chain := a.Headers[i].Text
	comma := strings.LastIndexByte(chain, ',')
	last, _ := AddrOf(slim.TrimSpace(chain[comma+1:]))
	switch {
	case port != 0 && last != addr && !addr.IsLoopback():
		return // Envoy did not append it: skip_xff_append
	case port == 0 && (last == addr || !last.IsValid()):
		return // Envoy did not append an address here either
	case port == 0:
		a.Remote = last
	}
	a.Headers[i] = Value{Text: chain[:max(0, comma)], Given: comma >= 0}
}

// AddrOf reads an address with or without a port. The result port is 0 if there is none, and addr
// is the zero Addr if the text is not an address. An IPv6 address has brackets if and only if a
// port follows.
func AddrOf(text string) (addr netip.Addr, port uint16) {
	if colon := strings.LastIndexByte(text, ':'); colon > 0 {
		host, bracketed := text[:colon], false
		if inner, opened := strings.CutPrefix(host, "["); opened && strings.HasSuffix(inner, "]") {
			host, bracketed = inner[:len(inner)-1], true
		}
		n, ok := slim.ParseWhole(text[colon+1:])
		if ok && n <= math.MaxUint16 && bracketed == (strings.IndexByte(host, ':') >= 0) {
			text, port = host, uint16(n)
		}
	}
	return core.ParseAddr(text), port
}
